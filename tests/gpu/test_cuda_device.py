# SPDX-License-Identifier: MIT
"""The cuda device where there is none, and where there is one its cache of compiled kernels."""

import esker
import pytest
from esker import _core


def open_device(folder=""):
    """Skips where the machine has no NVIDIA GPU or no compiler for it."""
    try:
        return _core.GpuDevice("cuda", str(folder))
    except esker.DeviceError as error:
        pytest.skip(str(error))


def test_a_machine_without_one_is_one_clear_error():
    try:
        _core.GpuDevice("cuda")
    except esker.DeviceError as error:
        assert str(error).startswith("[cuda] ") and "hint: " in str(error)
        assert "cpu backend" in str(error)
        with pytest.raises(esker.DeviceError, match=r"\[cuda\]"):
            esker.Model(backend="cuda")
    else:
        pytest.skip("there is an NVIDIA GPU here")


def test_compiled_kernels_are_kept(tmp_path):
    open_device(tmp_path).compile(["swiglu", "route"])
    kept = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert len(kept) == 2 and all(name.endswith(".cubin") for name in kept)
    open_device(tmp_path).compile(["swiglu", "route"])
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == kept


@pytest.mark.parametrize("damage", [b"", b"short", b"\0" * 4096])
def test_a_damaged_kernel_is_compiled_again(tmp_path, damage):
    open_device(tmp_path).compile(["swiglu"])
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(damage)
    open_device(tmp_path).compile(["swiglu"])
    assert path.read_bytes() == whole


def test_a_kernel_that_is_not_there_is_one_clear_error():
    with pytest.raises(esker.DeviceError, match="no such kernel"):
        open_device().compile(["matvec_Q9_9_r1"])
