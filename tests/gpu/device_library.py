# SPDX-License-Identifier: MIT
"""The simt device as the gpu backend loads it (tests/simt/simt_device.cpp), and the environment it wants.

    python tests/gpu/device_library.py COMMAND...

runs a command in that environment: `esker selftest`, `esker run --backend simt "How does"`.
"""

import functools
import os
import sys

import simt

FILES = (
    "attention",
    "delta",
    "experts",
    "expert_matmat",
    "matmat",
    "matvec",
    "mixer",
    "ple",
    "route",
)
SOURCES = (
    simt.RUNTIME / "simt_device.cpp",
    *(
        simt.ROOT / "csrc" / "base" / name
        for name in ("aligned_buffer.cpp", "error.cpp", "units.cpp")
    ),
)


@functools.cache
def device_library():
    headers = [*(simt.ROOT / "csrc").rglob("*.h"), *simt.RUNTIME.glob("*.h")]
    text = "".join(path.read_text() for path in [*SOURCES, *sorted(headers)])
    path = simt.cache_dir() / f"{simt.digest(text, simt.compiler_version())}-device.so"
    flags = [
        "-std=c++20",
        "-O2",
        "-g1",
        "-fPIC",
        "-fvisibility=hidden",
        "-Wall",
        "-Wextra",
        "-Werror",
    ]
    flags += [f"-I{simt.ROOT / 'csrc'}", f"-I{simt.RUNTIME}"]
    sources = [str(source) for source in SOURCES]
    return simt.make(
        path,
        lambda folder: simt.compile_command(
            ["-shared", *flags, *sources, "-o", str(folder / path.name), "-ldl", "-lpthread"]
        ),
    )


def environment(files=FILES):
    """What makes backend="simt" run the kernels of these files."""
    kernels = ":".join(str(simt.device(file).library_path) for file in files)
    return {"ESKER_SIMT_LIBRARY": str(device_library()), "ESKER_SIMT_KERNEL_LIBRARIES": kernels}


if __name__ == "__main__":
    os.execvpe(sys.argv[1], sys.argv[1:], {**os.environ, **environment()})
