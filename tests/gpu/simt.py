# SPDX-License-Identifier: MIT
"""Runs Metal kernels on the CPU: tests/simt from Python.

    dev = device("matvec")                 # metal/matvec.metal, translated, compiled, loaded
    dev.run("matvec_Q8_0_r1", args, [w, x, y], groups=(8, 1, 1), threads=(128, 1, 1),
            constants={abi.kLanesConstant: 32}, order="reverse")

args (a ctypes structure, or bytes) is buffer 0, the arrays are those after it, written in place.
What a kernel does wrong raises SimtError. Libraries are kept by the hash of all that goes into
them, in $ESKER_SIMT_CACHE or in the system's folder for temporary files.

    python tests/gpu/simt.py address,undefined|thread [what pytest takes]

runs tests with kernels compiled that way; the first finding ends the process. Where
ESKER_SIMT_KERNELS is a pattern, only kernels of such names are compiled, and tests that want others
are skipped.
"""

import concurrent.futures
import contextlib
import ctypes
import fcntl
import functools
import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
RUNTIME = ROOT / "tests" / "simt"
RUNTIME_FILES = ("capi.cpp", "faults.cpp", "fiber.cpp", "runtime.cpp")
ORDERS = ("forward", "reverse", "random")
SANITIZE = os.environ.get("ESKER_SIMT_SANITIZE", "")
ONLY = os.environ.get("ESKER_SIMT_KERNELS", "")
# Kernels cast pointers as GPUs allow, and a sum is what the source says.
KERNEL_FLAGS = [
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    "-Wall",
    "-Wno-unused",
    "-Wno-unknown-pragmas",
]
KERNEL_FLAGS += [
    "-Wno-deprecated-enum-enum-conversion"
]  # arithmetic of enumerators is how C++14 does constants


class SimtError(RuntimeError):
    """A kernel did something that a GPU would not forgive; or it could not be built."""


sys.path.insert(0, str(ROOT / "tools"))
import gen_codebooks
import msl


@functools.cache
def cache_dir():
    name = (
        os.environ.get("ESKER_SIMT_CACHE")
        or Path(tempfile.gettempdir()) / f"esker-simt-{os.getuid()}"
    )
    path = Path(name)
    path.mkdir(parents=True, exist_ok=True)
    return path


def digest(*parts):
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:24]


def write_whole(path, text):
    """Another process sees all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
        file.write(text)
    os.replace(file.name, path)


@functools.cache
def include_dirs():
    """Where quoted includes of kernels are looked for; the last has what the build generates."""
    script = ROOT / "tools" / "gen_codebooks.py"
    generated = (
        cache_dir() / f"generated-{digest(script.read_text(), importlib.metadata.version('gguf'))}"
    )
    header = generated / "formats" / "codebooks_metal.h"
    if not header.exists():
        write_whole(header, gen_codebooks.generate_metal())
    return (ROOT / "metal", ROOT / "csrc", generated)


@functools.cache
def compiler():
    found = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    if not found:
        raise SimtError("[simt] no C++ compiler: want g++ on PATH, or CXX")
    return found


@functools.cache
def compiler_version():
    return subprocess.run(
        [compiler(), "--version"], capture_output=True, text=True, check=True
    ).stdout


@functools.cache
def base_flags():
    # g++ would merge templates' variables of different libraries.
    unique = ["-fno-gnu-unique"] if "Free Software Foundation" in compiler_version() else []
    return ["-std=c++20", "-fPIC", "-fvisibility=hidden", *unique, f"-I{RUNTIME}"]


@functools.cache
def machine_flags():
    """Halves and fused multiply-adds in hardware where this machine has them: libm's are slow."""
    with contextlib.suppress(OSError):
        flags = set(
            re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)[
                1
            ].split()
        )
        if {"avx2", "fma", "f16c", "bmi2"} <= flags:
            return ["-mavx2", "-mfma", "-mf16c", "-mbmi2"]
    return []


def kernel_flags(sanitize):
    """-O2 compiles up to three times as long and runs no faster than the tests need."""
    flags = [*base_flags(), *KERNEL_FLAGS, *machine_flags(), "-O1", "-g1"]
    if not sanitize:
        return flags
    return [
        *flags,
        f"-fsanitize={sanitize}",
        "-fno-sanitize-recover=all",
        "-fno-omit-frame-pointer",
    ]


def runtime_flags(sanitize):
    """The runtime is never instrumented; it is told what the kernels are."""
    told = ["-DSIMT_ASAN"] * ("address" in sanitize) + ["-DSIMT_TSAN"] * ("thread" in sanitize)
    return [*base_flags(), *told, "-O2", "-g1", "-fno-builtin", "-U_FORTIFY_SOURCE"]


def compile_command(command):
    done = subprocess.run([compiler(), *command], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise SimtError(f"[simt] {' '.join(command)}\n{done.stderr[-6000:]}")


@contextlib.contextmanager
def lock(path):
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def make(path, build):
    """path, made by build(temporary name) unless it is there; one process at a time."""
    if not path.exists():
        with lock(path.with_suffix(".lock")):
            if not path.exists():
                with tempfile.TemporaryDirectory(dir=path.parent) as folder:
                    build(Path(folder))
                    os.replace(Path(folder) / path.name, path)
    return path


def runtime_object(name, sanitize, sources):
    path = (
        cache_dir()
        / f"{digest(sources, compiler_version(), runtime_flags(sanitize))}-{Path(name).stem}.o"
    )
    command = [*runtime_flags(sanitize), "-c", str(RUNTIME / name), "-o"]
    return make(path, lambda folder: compile_command([*command, str(folder / path.name)]))


def build(file, folders=(), sanitize=SANITIZE):
    """The shared library of a .metal file; several processes compile a file of many kernels."""
    try:
        source = msl.translate("cpu", file, [*folders, *include_dirs()], ONLY)
    except msl.MslError as error:
        raise SimtError(f"[simt] {error}") from error
    sources = "".join(p.read_text() for p in sorted(RUNTIME.glob("*.h")))
    sources += "".join((RUNTIME / name).read_text() for name in RUNTIME_FILES)
    flags = kernel_flags(sanitize)
    path = (
        cache_dir() / f"{digest(source, sources, compiler_version(), flags)}-{Path(file).stem}.so"
    )
    n_kernel = source.count("SIMT_PARTS == SIMT_PART\n")
    parts = max(1, min(os.cpu_count() or 1, n_kernel // 4, 8))

    def compile_parts(folder):
        text = folder / "kernels.cpp"
        text.write_text(source, encoding="utf-8")
        names = [folder / f"{part}.o" for part in range(parts)]
        commands = [
            [*flags, f"-DSIMT_PARTS={parts}", f"-DSIMT_PART={i}", "-c", str(text), "-o", str(name)]
            for i, name in enumerate(names)
        ]
        with concurrent.futures.ThreadPoolExecutor(parts) as pool:
            list(pool.map(compile_command, commands))
        objects = [runtime_object(name, sanitize, sources) for name in RUNTIME_FILES]
        instrument = [f"-fsanitize={sanitize}"] if sanitize else []
        objects = [str(p) for p in [*names, *objects]]
        compile_command(
            ["-shared", *instrument, *objects, "-o", str(folder / path.name), "-ldl", "-lpthread"]
        )

    return make(path, compile_parts)


class Buffer(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("bytes", ctypes.c_size_t)]


class ConstantValue(ctypes.Structure):
    _fields_ = [("index", ctypes.c_uint32), ("bits", ctypes.c_uint64)]


CONSTANT_TYPES = {
    "bool": np.bool_,
    "int": np.int32,
    "uint": np.uint32,
    "float": np.float32,
    "short": np.int16,
    "ushort": np.uint16,
    "uint32_t": np.uint32,
    "int32_t": np.int32,
}


class Device:
    """One .metal file's kernels."""

    def __init__(self, file, folders=(), sanitize=SANITIZE):
        self.library_path = build(file, folders, sanitize)
        self.library = ctypes.CDLL(str(self.library_path))
        for function in ("simt_kernel_name", "simt_constant_type", "simt_dispatch"):
            getattr(self.library, function).restype = ctypes.c_char_p
        self.library.simt_kernel_count.restype = ctypes.c_size_t
        count = self.library.simt_kernel_count()
        name = self.library.simt_kernel_name
        self.kernels = {name(ctypes.c_size_t(i)).decode(): i for i in range(count)}

    def run(
        self,
        name,
        args,
        buffers,
        *,
        groups,
        threads,
        constants=None,
        order="forward",
        seed=1,
        threadgroup_bytes=(),
        workers=1,
    ):
        """Runs a kernel on groups[0] * groups[1] * groups[2] threadgroups of threads[..] threads.

        None in buffers leaves an index unbound; args None leaves index 0 to the first of buffers.
        """
        if name not in self.kernels:
            if ONLY and not re.search(ONLY, name):
                pytest.skip(f"{name} is not among the kernels of ESKER_SIMT_KERNELS")
            raise SimtError(f"[simt] no kernel {name}; there are {', '.join(sorted(self.kernels))}")
        kernel = ctypes.c_size_t(self.kernels[name])
        bound = [] if args is None else [np.frombuffer(bytes(args), np.uint8)]
        bound += buffers
        for i, array in enumerate(bound):
            if array is not None and not (
                isinstance(array, np.ndarray) and array.flags.c_contiguous
            ):
                raise TypeError(
                    f"buffer {i} of {name}: want a C-contiguous numpy array, got {type(array)}"
                )
        table = (Buffer * max(1, len(bound)))()
        for i, array in enumerate(bound):
            if array is not None:
                # An empty array is bound, though there is nothing in it.
                table[i] = Buffer(array.ctypes.data, array.nbytes)
        values = self.constant_values(kernel, constants or {})
        sizes = (ctypes.c_uint32 * 6)(*(*groups, 1, 1)[:3], *(*threads, 1, 1)[:3])
        room = (ctypes.c_size_t * max(1, len(threadgroup_bytes)))(*threadgroup_bytes)
        error = self.library.simt_dispatch(
            kernel,
            table,
            ctypes.c_size_t(len(bound)),
            sizes,
            values,
            ctypes.c_size_t(len(values)),
            room,
            ctypes.c_size_t(len(threadgroup_bytes)),
            ctypes.c_uint32(ORDERS.index(order)),
            ctypes.c_uint64(seed),
            ctypes.c_uint32(workers),
            ctypes.c_uint32(1),  # on guarded copies
        )
        if error is not None:
            raise SimtError(with_lines(error.decode(errors="replace")))

    def constant_values(self, kernel, constants):
        values = []
        for index, value in constants.items():
            kind = self.library.simt_constant_type(kernel, ctypes.c_uint32(index))
            if kind is not None:
                bits = np.array([value], CONSTANT_TYPES[kind.decode()]).tobytes().ljust(8, b"\0")
                values.append(ConstantValue(index, int.from_bytes(bits, "little")))
        return (ConstantValue * len(values))(*values)


def with_lines(message):
    """Code addresses in a message as places in a .metal file, where addr2line is there to tell."""

    def place(match):
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            command = ["addr2line", "-i", "-e", match[1], match[2]]
            found = subprocess.run(
                command, capture_output=True, text=True, check=True
            ).stdout.split("\n")
            known = [
                re.sub(r" \(.*", "", line)
                for line in found
                if "?" not in line and "/simt/msl" not in line
            ]
            if known:
                return "at " + known[0].removeprefix(f"{ROOT}/")
        return match[0]

    return re.sub(r"\[(\S+)\+(0x[0-9a-f]+)\]", place, message)


@functools.cache
def device(name):
    """The kernels of metal/<name>.metal."""
    return Device(ROOT / "metal" / f"{name}.metal")


def sanitized_environment(sanitize):
    """What a process needs to load such a library; None where the compiler lacks the sanitizer.

    The first finding ends the process, with exit status 99.
    """
    names = (
        ["libasan.so"] if "address" in sanitize else ["libtsan.so"] if "thread" in sanitize else []
    )
    preload = []
    for name in names:
        command = [compiler(), f"-print-file-name={name}"]
        path = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        if not os.path.isabs(path):
            return None
        preload.append(os.path.realpath(path))
    return {
        **os.environ,
        "ESKER_SIMT_SANITIZE": sanitize,
        "LD_PRELOAD": ":".join(preload),
        # Python itself is no place to look for leaks.
        "ASAN_OPTIONS": "exitcode=99:detect_leaks=0",
        "UBSAN_OPTIONS": "exitcode=99:print_stacktrace=1",
        "TSAN_OPTIONS": "exitcode=99:halt_on_error=1:history_size=0",
        "OPENBLAS_NUM_THREADS": "1",
    }


def main(arguments):
    environment = sanitized_environment(arguments[0])
    if environment is None:
        print(f"{compiler()} has no library for -fsanitize={arguments[0]}", file=sys.stderr)
        return 2
    return subprocess.run(
        [sys.executable, "-m", "pytest", *arguments[1:]], env=environment, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
