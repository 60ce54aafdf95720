# SPDX-License-Identifier: MIT
"""What a GPU, its driver or its memory do wrong: one clear error each, within a time, and nothing left alive."""

import fake_metal
import pytest
from decoding import tokens
from test_host import SMALL

pytestmark = fake_metal.needs_host

# The setting: the error's class, and what its text says. With times=2 the model is opened anew and works.
ONCE = {
    "fail_buffer=1": ("PlanError", "the GPU cannot be given the memory of"),
    "fail_buffer=60": ("PlanError", "the GPU cannot be given the memory of"),
    "max_buffer=16384": ("PlanError", "at most 16"),
    "fail_residency=2": ("DeviceError", "there is no room for a residency set"),
    "fail_queue=2": ("DeviceError", "Metal gives no command queue"),
    "fail_library=1": ("DeviceError", "program_source:1:1: error"),
    "fail_pipeline=3": ("DeviceError", "Compiler encountered an internal error"),
    "simd_width=64": ("DeviceError", "SIMD groups of 64"),
    "max_threads=64": ("DeviceError", "so many threads"),
    "no_device=1": ("DeviceError", "this machine has no Metal device"),
    "family=6": ("DeviceError", "want an Apple M1 or newer"),
    "fail_command=1": ("DeviceError", "Insufficient Memory"),
    "fail_command=4": ("DeviceError", "Insufficient Memory"),
    "fail_command=3 fail_code=2": ("DeviceError", "Caused GPU Timeout Error"),
    "fail_command=2 fail_code=3": ("DeviceError", "Caused GPU Address Fault Error"),
    "lose_device=2": ("DeviceError", "SubmissionsIgnored"),
}
# Orders that hold for the next model of the process too.
LASTING = ("max_buffer", "simd_width", "max_threads", "no_device", "family", "lose_device")


@pytest.mark.parametrize("order", ONCE)
def test_a_failure_is_one_clear_error(order, kernels_cache, tmp_path):
    kind, says = ONCE[order]
    cold = order.startswith(("fail_library", "fail_pipeline"))
    found = fake_metal.play(
        tmp_path if cold else kernels_cache,
        str(SMALL),
        prompt=tokens(12),
        decode=3,
        options={"slots": 5},
        times=2,
        ESKER_FAKE_METAL=order,
    )
    assert found["crash"] is None
    assert found["errors"][0][0] == kind and says in found["errors"][0][1]
    assert found["live"] == 0 and found["seconds"] < 20
    allowed = ("newBuffer of",) if order.startswith("max_buffer") else ()
    assert [f for f in found["faults"] if not f.startswith(allowed)] == []
    if order.startswith(LASTING):
        assert len(found["errors"]) == 2 and found["tokens"] == []
    else:
        assert len(found["errors"]) == 1 and len(found["tokens"]) == 1


@pytest.mark.parametrize("signal", [1, 6])
def test_a_signal_that_never_comes_ends_in_an_error(signal, kernels_cache):
    found = fake_metal.play(
        kernels_cache,
        str(SMALL),
        prompt=tokens(12),
        decode=3,
        ESKER_FAKE_METAL=f"lose_signal={signal}",
        ESKER_DEVICE_TIMEOUT="1",
    )
    assert found["crash"] is None
    ((kind, text),) = found["errors"]
    assert kind == "DeviceError" and "the device does not answer" in text
    assert found["seconds"] < 15


def test_a_queue_that_is_not_let_go_fails_by_its_own_time(kernels_cache):
    """The host's turn takes longer than the GPU waits: reads are slow, as from a disk that spins up."""
    found = fake_metal.play(
        kernels_cache,
        str(SMALL),
        prompt=tokens(12),
        decode=3,
        options={"slots": 5},
        ESKER_FAKE_METAL="wait_limit_ms=1",
        LD_PRELOAD=str(fake_metal.slow_reads()),
        SLOW_READS_US="60000",
    )
    assert found["crash"] is None
    ((kind, text),) = found["errors"]
    assert kind == "DeviceError" and "Caused GPU Timeout Error" in text
    assert found["live"] == 0 and found["faults"] == []
