# SPDX-License-Identifier: MIT
"""The fake Metal device itself: a small host that does nothing wrong, then one thing at a time."""

import functools
import json
import os
import subprocess
import sys

import fake_metal
import pytest
import simt

pytestmark = fake_metal.needs_host
DOUBLED_TWICE = [4.0 * i for i in range(64)]

# What the host does wrong: what the fake says, and what the host is told ("" where all goes on). A fault
# that ends the process has no second text.
WRONG = {
    "language": ("Metal 3.1", ""),
    "fast math": ("fast math", ""),
    "constant type": ("function constant 0 is uint, got a value of type 53", "has another type"),
    "no constant": ("function constant kFactor (0) has no value", "has no value"),
    "page": ("whole pages of 16384 bytes, got length 256", "no buffer"),
    "residency commit": ("buffer 1 is not resident", "is not resident"),
    "residency queue": ("buffer 1 is not resident", "is not resident"),
    "fence": ("no fence orders it after an encoder that uses its buffer values", "no fence"),
    "pipeline": ("dispatchThreadgroups without a pipeline", "without a pipeline"),
    "large bytes": ("setBytes of 4100 bytes", "setBytes of 4100 bytes"),
    "argument size": ("buffer args (0): got 4 bytes, its type has 8", "got 4 bytes"),
    "unbound": ("buffer values (1) is not bound", "is not bound"),
    "offset": ("buffer values (1): not aligned to 4 bytes", "not aligned"),
    "threads": ("scale: 2048 threads a threadgroup, at most 1024", "2048 threads"),
    "signal in encoder": ("encodeSignalEvent while an encoder is open", "encodeSignalEvent"),
    "end": ("encodeSignalEvent while an encoder is open", "while an encoder is open"),
    "after end": ("setBuffer after endEncoding", ""),
    "event value": (None, "the event has another value"),
    "falling event": ("a queue sets an event from 3 back to 2", ""),
    "early release": ("buffer 1 is gone before the kernel ran", "is gone"),
    "commit": ("never committed: MTLCommandBuffer", ""),
    "commit twice": ("committed twice: MTLCommandBuffer", ""),
    "after commit": ("encodeSignalEvent after commit", ""),
    "over-release": ("released once too often: MTLComputeCommandEncoder", ""),
    "leak": (None, ""),
    "function name": (None, "Function scaled was not found in the library"),
    "dead": ("message status to a dead MTLCommandBuffer", None),
    "unknown selector": ("-[MTLCommandBuffer blitCommandEncoder] is not known here", None),
}


@functools.cache
def kernels():
    return str(simt.Device(fake_metal.HERE / "scale.metal").library_path)


def start(wrong="", **settings):
    return subprocess.run(
        [
            *(sys.executable, str(fake_metal.HERE / "drive.py"), str(fake_metal.driver_library())),
            *(str(fake_metal.HERE / "scale.metal"), wrong),
        ],
        env={
            **os.environ,
            "ESKER_SIMT_KERNEL_LIBRARIES": kernels(),
            "ESKER_FAKE_METAL": " ".join(f"{name}={value}" for name, value in settings.items()),
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def drive(wrong="", **settings):
    done = start(wrong, **settings)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_host_that_does_nothing_wrong():
    found = drive()
    assert found == {"error": None, "numbers": DOUBLED_TWICE, "report": [], "left": 0}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_a_host_does_wrong_is_noticed(wrong):
    fault, told = WRONG[wrong]
    if told is None:
        done = start(wrong)
        assert done.returncode != 0 and f"fake Metal: {fault}" in done.stderr
        return
    found = drive(wrong)
    faults = [line for line in found["report"] if line.startswith("fault ")]
    if fault is None:
        assert faults == []
    else:
        assert any(fault in line for line in faults), found["report"]
    if told:
        assert told in found["error"]
    elif wrong not in ("commit", "falling event"):
        assert found["error"] is None and found["numbers"] == DOUBLED_TWICE


def test_what_is_leaked_stays_alive():
    assert drive("leak")["report"] == ["live MTLSharedEvent 1"]


def test_what_is_autoreleased_without_a_pool_is_a_fault():
    (fault, *_), live = (
        [line for line in drive("pool")["report"] if line.startswith(kind)]
        for kind in ("fault", "live")
    )
    assert fault == "fault autoreleased with no pool in place, just leaking: NSString"
    assert "live MTLCommandBuffer 1" in live


# What is ordered: what the host is told.
ORDERED = {
    "no_device=1": "no device",
    "fail_library=1": "program_source:1:1: error",
    "fail_pipeline=1": "Compiler encountered an internal error",
    "fail_buffer=1": "no buffer",
    "fail_residency=1": "no room for a residency set",
    "fail_command=1": "Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory) (code 8)",
    "lose_device=1": "(00000004:kIOGPUCommandBufferCallbackErrorSubmissionsIgnored) (code 4)",
    "lose_signal=1": "the event has another value",
}


@pytest.mark.parametrize("order", ORDERED)
def test_what_is_ordered_to_fail_fails(order):
    name, value = order.split("=")
    found = drive(**{name: value})
    assert ORDERED[order] in found["error"] and not any("live" in s for s in found["report"])


def test_macos_14_has_no_residency_sets():
    done = start(macos=14)
    assert "-[MTLCompileOptions setMathMode:] is not known here" in done.stderr
    done = start("fast math", macos=14)
    assert "-[MTLDevice newResidencySetWithDescriptor:error:] is not known here" in done.stderr


def test_an_unknown_setting_is_refused():
    assert "there is no setting nonsense" in start(nonsense=1).stderr


def test_messages_assemble_for_arm():
    """What a test machine of another kind would need, and Apple's are."""
    command = [sys.executable, "-m", "ziglang", "clang", "-target", "aarch64-linux-gnu", "-c"]
    subprocess.run(
        [*command, str(fake_metal.FAKE / "messages.S"), "-o", os.devnull], check=True, timeout=60
    )
