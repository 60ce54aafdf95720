# SPDX-License-Identifier: MIT
"""The Metal host on Linux: csrc/backends/gpu/metal as it is, on Apple's C++ headers and a fake Metal.

    environment()                  # what makes backend="metal" run, through host_library()
    Fake(path)                     # the fake inside a library: faults, live objects, settings
    host_library((Mutant(...),))   # the same with a fault sown into the host's sources

The headers, metal-cpp, are those of the pip package mlx-metal: an installed one, or a wheel that pip
fetches into the cache (tests/gpu/simt.py says where that is). The host is compiled by the clang of the pip
package ziglang, for blocks, against the C++ library of the system's g++, which compiles all else.
"""

import ctypes
import dataclasses
import functools
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import device_library
import pytest
import simt

HERE = Path(__file__).resolve().parent
FAKE = HERE / "fake"
CSRC = simt.ROOT / "csrc"
HOST = CSRC / "backends" / "gpu" / "metal"
MLX_METAL = "mlx-metal==0.32.4"

# Of the rest of the project, what the host links.
BESIDE_HOST = (
    *(CSRC / "base" / f"{name}.cpp" for name in ("aligned_buffer", "env", "error", "units")),
    CSRC / "backends" / "gpu" / "kernel_sources.cpp",
)
FAKE_SOURCES = (*sorted(FAKE.glob("*.cpp")), FAKE / "messages.S")
# What of metal-cpp nobody uses is dropped by the linker, with the functions of Apple's that it calls.
FLAGS = ["-std=c++20", "-O1", "-g1", "-fPIC", "-fvisibility=hidden", "-ffunction-sections"]
WARNINGS = ["-Wall", "-Wextra", "-Werror"]
# A Mac's pages (fake/host_system.cpp).
MAC = ["-Dsysconf=fake_sysconf", "-Dmmap=fake_mmap"]


def fetch_headers(folder):
    """pip has no network at times, and a wheel for Macs is no package it would install here."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        MLX_METAL,
        "--platform",
        "macosx_14_0_arm64",
    ]
    command += ["--only-binary=:all:", "--no-deps", "--quiet", "-d", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise simt.SimtError(f"[metal] no {MLX_METAL}: {done.stderr[-500:]}")
    (wheel,) = folder.glob("*.whl")
    out = folder / "metal-cpp"
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if "/include/metal_cpp/" in name:
                to = out / name.split("/include/metal_cpp/")[1]
                to.parent.mkdir(parents=True, exist_ok=True)
                to.write_bytes(archive.read(name))


@functools.cache
def metal_cpp():
    """The folder of Apple's headers, or None where there are none to be had."""
    installed = importlib.util.find_spec("mlx")
    for place in installed.submodule_search_locations or () if installed else ():
        if (Path(place) / "include" / "metal_cpp" / "Metal" / "Metal.hpp").exists():
            return Path(place) / "include" / "metal_cpp"
    name = f"{MLX_METAL.replace('==', '-')}.metal-cpp"
    # make() moves what its build leaves under the same name.
    try:
        return simt.make(simt.cache_dir() / name, lambda folder: unpack(folder, name))
    except simt.SimtError:
        return None


def unpack(folder, name):
    fetch_headers(folder)
    (folder / "metal-cpp").rename(folder / name)


@functools.cache
def ziglang():
    found = importlib.util.find_spec("ziglang")
    return Path(found.origin).parent if found else None


def why_not():
    """What is missing to build the host here; None when nothing is."""
    if ziglang() is None:
        return "no clang with blocks: want pip install ziglang"
    if metal_cpp() is None:
        return f"no metal-cpp: want pip install {MLX_METAL}, or a network for pip"
    return None


needs_host = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


@functools.cache
def clang():
    """clang's command line for the C++ library and the headers that g++ has."""
    told = subprocess.run(
        [simt.compiler(), "-E", "-x", "c++", "-", "-v"],
        input="",
        capture_output=True,
        text=True,
        check=True,
    ).stderr
    folders = re.search(
        r"#include <\.\.\.> search starts here:\n(.*?)End of search", told, re.DOTALL
    )
    target = subprocess.run(
        [simt.compiler(), "-dumpmachine"], capture_output=True, text=True, check=True
    ).stdout.strip()
    system = [folder.strip() for folder in folders[1].splitlines()]
    # g++'s own headers are g++'s; clang's take their place.
    own = str(ziglang() / "lib" / "include")
    system = [own if re.search(r"/gcc(-cross)?/.*/include$", f) else f for f in system]
    includes = [word for folder in system for word in ("-isystem", folder)]
    return [
        *(sys.executable, "-m", "ziglang", "clang"),
        *("-target", target, "-nostdinc", *includes, "-fblocks"),
    ]


def run_compiler(command):
    environment = {
        **os.environ,
        "ZIG_GLOBAL_CACHE_DIR": str(simt.cache_dir() / "zig"),
        "ZIG_LOCAL_CACHE_DIR": str(simt.cache_dir() / "zig"),
    }
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        raise simt.SimtError(f"[metal] {' '.join(command)}\n{done.stderr[-6000:]}")


@functools.cache
def headers_text():
    folders = (CSRC, simt.RUNTIME, FAKE)
    return "".join(p.read_text() for folder in folders for p in sorted(folder.rglob("*.h")))


def compiled(source, command, text=None):
    """The object of a source; of another text in its place where one is given."""
    text = text if text is not None else source.read_text()
    name = f"{simt.digest(text, headers_text(), simt.compiler_version(), command)}-{source.stem}.o"

    def build(folder):
        file = folder / source.name
        file.write_text(text)
        run_compiler([*command, "-c", str(file), "-o", str(folder / name)])

    return simt.make(simt.cache_dir() / name, build)


def by_gcc(source, *flags):
    command = [simt.compiler(), *FLAGS, *WARNINGS, *flags]
    return compiled(
        source, [*command, f"-I{CSRC}", f"-I{simt.RUNTIME}", f"-I{FAKE}", f"-I{FAKE / 'include'}"]
    )


def by_clang(source, text=None):
    apple = ["-isystem", str(metal_cpp()), f"-I{FAKE / 'include'}", "-Wno-ignored-attributes"]
    flags = ["-DMETALCPP_SYMBOL_VISIBILITY_HIDDEN", *MAC, *apple, f"-I{CSRC}"]
    return compiled(source, [*clang(), *FLAGS, *WARNINGS, *flags], text)


@functools.cache
def kernel_sources():
    """The kernels' texts as C++, as the build makes them (tools/embed_kernels.py)."""
    tools = [simt.ROOT / "tools" / name for name in ("embed_kernels.py", "msl.py")]
    inputs = [*tools, *sorted((simt.ROOT / "metal").iterdir()), *sorted((CSRC / "abi").iterdir())]
    folder = simt.cache_dir() / simt.digest(*(p.read_text() for p in inputs), *simt.include_dirs())
    out = folder.with_name(f"{folder.name}-kernel_sources.cpp")
    includes = [word for path in simt.include_dirs()[1:] for word in ("-I", str(path))]
    command = [sys.executable, str(tools[0])]
    return simt.make(
        out,
        lambda made: run_compiler(
            [*command, str(made / out.name), str(simt.ROOT / "metal"), *includes]
        ),
    )


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A fault sown into one of the host's sources: a text that is there once, and what takes its place."""

    file: str
    old: str
    new: str

    def apply(self, file, text):
        if file != self.file:
            return text
        if text.count(self.old) != 1:
            raise AssertionError(
                f"{self.file} has {text.count(self.old)} times, not once: {self.old}"
            )
        return text.replace(self.old, self.new)


def linked(objects, name):
    path = simt.cache_dir() / f"{simt.digest(*objects)}-{name}.so"
    flags = ["-shared", *(f"-Wl,{f}" for f in ("--gc-sections", "--no-undefined", "-Bsymbolic"))]
    flags += ["-ldl", "-lpthread"]
    command = [simt.compiler(), *map(str, objects)]
    return simt.make(
        path, lambda folder: run_compiler([*command, *flags, "-o", str(folder / path.name)])
    )


def fake_objects():
    return [by_gcc(source) for source in FAKE_SOURCES]


@functools.cache
def host_library(mutants=()):
    """The library that ESKER_METAL_LIBRARY names."""
    host = []
    for source in sorted(HOST.glob("*.cpp")):
        text = source.read_text()
        for mutant in mutants:
            text = mutant.apply(source.name, text)
        host.append(by_clang(source, text))
    beside = [by_gcc(source, *MAC) for source in BESIDE_HOST]
    entry = by_clang(HERE / "host_library.cpp")
    return linked([*host, *beside, by_gcc(kernel_sources()), entry, *fake_objects()], "metal-host")


@functools.cache
def driver_library():
    """A small host of the tests' own, which does things wrong when told to."""
    return linked(
        [by_clang(HERE / "driver.cpp"), by_clang(HOST / "metal_cpp.cpp"), *fake_objects()],
        "metal-driver",
    )


def environment(mutants=(), files=device_library.FILES):
    """What makes backend="metal" run the kernels of these files."""
    return {
        "ESKER_METAL_LIBRARY": str(host_library(mutants)),
        "ESKER_SIMT_KERNEL_LIBRARIES": device_library.environment(files)[
            "ESKER_SIMT_KERNEL_LIBRARIES"
        ],
    }


@functools.cache
def slow_reads():
    """A library to be preloaded: reads that are late."""
    return linked([by_gcc(HERE / "slow_reads.cpp")], "slow-reads")


def play(
    cache,
    model=None,
    *,
    prompt,
    decode=0,
    options=None,
    mutants=(),
    logits=None,
    times=1,
    timeout=100,
    **extra,
):
    """Runs play.py: what came of `times` times a model opened, a prompt read and tokens decoded.

    cache is the folder of compiled kernels; extra is added to the environment. Where the process
    ended before its time, "crash" has its last words.
    """
    job = {
        "model": model,
        "prompt": list(prompt),
        "decode": decode,
        "options": options or {},
        "logits": logits and str(logits),
        "times": times,
    }
    folders = [str(HERE), str(simt.ROOT / "tests" / "gpu"), *filter(None, sys.path)]
    run = {
        **os.environ,
        **environment(mutants),
        "XDG_CACHE_HOME": str(cache),
        "PYTHONPATH": os.pathsep.join(folders),
        "OPENBLAS_NUM_THREADS": "1",
        "ESKER_DEVICE_TIMEOUT": "5",
        **extra,
    }
    command = [sys.executable, str(HERE / "play.py"), json.dumps(job)]
    done = subprocess.run(
        command, env=run, capture_output=True, text=True, timeout=timeout, check=False
    )
    if done.returncode != 0:
        return {"crash": done.stderr[-2000:], "status": done.returncode}
    return {"crash": None, **json.loads(done.stdout)}


class Fake:
    """The fake in a library, of this process."""

    def __init__(self, path):
        self.library = ctypes.CDLL(str(path))
        self.library.fake_metal_report.restype = ctypes.c_char_p
        self.library.fake_metal_live_objects.restype = ctypes.c_long
        self.library.fake_metal_count.restype = ctypes.c_int64

    def set(self, **settings):
        for name, value in settings.items():
            self.library.fake_metal_set(name.encode(), ctypes.c_int64(value))

    def live(self, class_name=None):
        return self.library.fake_metal_live_objects(class_name and class_name.encode())

    def count(self, name):
        return self.library.fake_metal_count(name.encode())

    def report(self):
        return self.library.fake_metal_report().decode().splitlines()

    def faults(self):
        return [line.removeprefix("fault ") for line in self.report() if line.startswith("fault ")]

    def settle(self, objects=0):
        """The last owner of a command buffer is a thread of the fake, which may need a moment."""
        end = time.monotonic() + 2
        while self.live() > objects and time.monotonic() < end:
            time.sleep(0.005)

    def forget(self):
        self.library.fake_metal_forget()
