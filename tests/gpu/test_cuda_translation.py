# SPDX-License-Identifier: MIT
"""The kernels as NVRTC gets them: each compiles, for the oldest and a new GPU.  No GPU is needed."""

import ctypes
import functools
import importlib.util
from pathlib import Path

import pytest
import simt
from esker.parity import abi

FILES = sorted(path.stem for path in (simt.ROOT / "metal").glob("*.metal"))
TILE = {abi.kLanesConstant: 32, abi.kSplitConstant: 1, abi.kTokensConstant: 1}
# The chunks of heads of other widths than the model's: code for all of them takes NVRTC a minute.
CONSTANTS = {"delta_chunk": {abi.kHeadConstant: 128}}


@functools.cache
def nvrtc():
    """The library of the package nvidia-cuda-nvrtc, or of CUDA's toolkit."""
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(p) for p in (spec.submodule_search_locations if spec else [])]
    found = sorted(path for folder in folders for path in folder.glob("*/lib/libnvrtc.so.*"))
    found += sorted(Path("/usr/local/cuda/lib64").glob("libnvrtc.so.1?"))
    if not found:
        pytest.skip("no NVRTC here: pip install nvidia-cuda-nvrtc")
    for part in found[0].parent.glob("libnvrtc-builtins.so.*"):
        ctypes.CDLL(str(part), ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(found[0]))


@functools.cache
def module(file):
    path = simt.ROOT / "metal" / f"{file}.metal"
    return simt.msl.Module(path, simt.include_dirs()), simt.msl.translate(
        "cuda", path, simt.include_dirs()
    )


def compile_kernel(text, name, architecture, constants):
    """The compiler's status and what it says."""
    library, program, size = nvrtc(), ctypes.c_void_p(), ctypes.c_size_t()
    created = library.nvrtcCreateProgram(
        ctypes.byref(program), text.encode(), name.encode(), 0, None, None
    )
    assert created == 0
    values = "".join(f",{{{index}u,{value}u}}" for index, value in constants.items())
    options = [
        f"--gpu-architecture=sm_{architecture}",
        "--std=c++17",
        "--device-as-default-execution-space",
        "--fmad=false",
        f"-DMSL_CONSTANTS={values}",
        f"-DMSL_MAKE_{name}",
    ]
    encoded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    status = library.nvrtcCompileProgram(program, len(options), encoded)
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return status, log.value.decode()


@pytest.mark.parametrize("architecture", [80, 90])
@pytest.mark.parametrize("file", FILES)
def test_every_kernel_compiles(file, architecture):
    """An instance of each template, its first and its last; the first has no codebook."""
    kernels, text = module(file)
    wanted = {}
    for instance in kernels.instances:
        first = wanted.setdefault(instance.kernel.name, [instance.name])
        first[1:] = [instance.name]
    for name in {name for names in wanted.values() for name in names}:
        status, log = compile_kernel(text, name, architecture, CONSTANTS.get(name, TILE))
        assert status == 0, f"{name}\n{log[:2000]}"


def test_an_entry_is_made_only_of_what_is_asked_for():
    kernels, text = module("mixer")
    assert [i.name for i in kernels.instances if f"MSL_MAKE_{i.name}\n" not in text] == []
    status, log = compile_kernel(
        text.replace("MSL_ENTRY_swiglu(swiglu,", "?("), "mix_read", 90, TILE
    )
    assert status == 0, log
