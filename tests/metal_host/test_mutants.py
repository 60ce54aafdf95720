# SPDX-License-Identifier: MIT
"""Faults sown into the Metal host, one at a time: each is seen, by the fake, in the text, or as an error."""

import fake_metal
import numpy as np
import pytest
from decoding import LIMIT, decoded, tokens
from fake_metal import Mutant
from test_host import SMALL

pytestmark = fake_metal.needs_host

DEVICE, PIPELINES = "metal_device.cpp", "metal_pipelines.cpp"
PROMPT, DECODE = tokens(7), 2
MUTANTS = {
    "buffers swapped": Mutant(DEVICE, "b.offset_bytes, index++", "b.offset_bytes, 1 + ((index++ - 1) ^ 1)"),
    "a buffer's place in its pages forgotten": Mutant(
        DEVICE, "memory->lead() + b.offset_bytes", "b.offset_bytes"
    ),
    "the wrong size of arguments": Mutant(DEVICE, "d.args.size(), 0)", "d.args.size() - 4, 0)"),
    "arguments at the wrong index": Mutant(DEVICE, "d.args.size(), 0)", "d.args.size(), 1)"),
    "groups and threads swapped": Mutant(
        DEVICE,
        "MTL::Size::Make(d.groups.x, d.groups.y, d.groups.z)",
        "MTL::Size::Make(d.threads.x, d.threads.y, d.threads.z)",
    ),
    "no barrier": Mutant(DEVICE, "if (encoder_) encoder_->memoryBarrier(MTL::BarrierScopeBuffers);", ""),
    "a fence that is not updated": Mutant(DEVICE, "encoder_->updateFence(fence_.get());", ""),
    "an encoder left open": Mutant(DEVICE, "encoder_->endEncoding();", ""),
    "a command buffer never committed": Mutant(DEVICE, "    buffer_->commit();\n", ""),
    "a residency set never committed": Mutant(DEVICE, "set_->commit();", ""),
    "memory left out of the residency set": Mutant(DEVICE, "set_->addAllocation(buffer);", "(void)buffer;"),
    "the wrong value signalled": Mutant(
        DEVICE, "->encodeSignalEvent(static_cast<MetalEvent&>(event).event(), value)",
        "->encodeSignalEvent(static_cast<MetalEvent&>(event).event(), value + 1)",
    ),
    "the wrong value waited for": Mutant(
        DEVICE, "->encodeWait(static_cast<MetalEvent&>(event).event(), value)",
        "->encodeWait(static_cast<MetalEvent&>(event).event(), value + 100)",
    ),
    "no wait for the host": Mutant(
        DEVICE, "open_buffer()->encodeWait(static_cast<MetalEvent&>(event).event(), value);", "(void)event, (void)value;"
    ),
    "an event leaked": Mutant(
        DEVICE, "NS::TransferPtr(device->newSharedEvent())", "NS::RetainPtr(device->newSharedEvent())"
    ),
    "a command buffer released too often": Mutant(
        DEVICE, "NS::RetainPtr(queue_->commandBufferWith", "NS::TransferPtr(queue_->commandBufferWith"
    ),
    "an encoder leaked": Mutant(
        DEVICE, "encoder_ = {};", "encoder_.detach();"
    ),
    "the wrong function": Mutant(PIPELINES, "ns_string(spec.name), values", 'ns_string(spec.name + "_"), values'),
    "a constant of the wrong type": Mutant(PIPELINES, "MTL::DataTypeUInt", "MTL::DataTypeFloat"),
    "a constant at the wrong number": Mutant(PIPELINES, "NS::UInteger{c.index}", "NS::UInteger{c.index} + 1"),
    "fast math": Mutant(PIPELINES, "MTL::MathModeSafe", "MTL::MathModeFast"),
}  # fmt: skip


@pytest.fixture(scope="module")
def wanted():
    """Greedy tokens and logits of the cpu backend."""
    return decoded(SMALL, "cpu", PROMPT, DECODE)[:2]


def complaints(wanted, folder, mutants=()):
    """What is wrong with a run, by whoever notices."""
    path = folder / "logits.npy"
    found = fake_metal.play(
        folder,
        str(SMALL),
        prompt=PROMPT,
        decode=DECODE,
        options={"slots": 5},
        mutants=mutants,
        logits=path,
        ESKER_SIMT_ORDER="random",
        ESKER_DEVICE_TIMEOUT="2",
        # Reads that take a while: who does not wait for the host computes with what was there before.
        LD_PRELOAD=str(fake_metal.slow_reads()),
        SLOW_READS_US="3000",
    )
    if found["crash"] is not None:
        return [found["crash"]]
    seen = [*found["errors"], *found["report"]]
    if not found["errors"]:
        tokens_wanted, logits_wanted = wanted
        seen += [] if found["tokens"] == [tokens_wanted] else ["other tokens"]
        seen += [] if np.abs(np.load(path) - logits_wanted).max() <= LIMIT else ["other logits"]
    return seen


def test_nothing_is_wrong_with_the_host_as_it_is(wanted, tmp_path):
    assert complaints(wanted, tmp_path) == []


@pytest.mark.parametrize("name", MUTANTS)
def test_a_fault_of_the_host_is_seen(name, wanted, tmp_path):
    assert complaints(wanted, tmp_path, (MUTANTS[name],)) != []
