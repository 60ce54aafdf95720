# SPDX-License-Identifier: MIT
"""Builds the wheel for Macs with Apple silicon on another machine, and checks what came out.

    python tools/macos/cross_build.py OUT [--fast]        # pip install ".[test]" has what it takes

The project's own build runs, with the clang of pip's ziglang in place of Apple's. metal-cpp comes from the
mlx-metal wheel, and so does what Apple's frameworks export: the stubs to link against list the symbols
that the wheel's own library, which runs on Macs, takes from them. Whatever else is used fails the link.
OUT keeps the wheel and all that a second build needs not do again. --fast compiles for a check only.

What it cannot tell: whether the module runs. Python's headers are this machine's, of the same data model.
"""

from __future__ import annotations

import argparse
import functools
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterable
from importlib.metadata import files
from pathlib import Path

import macho

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "tools" / "macos"
TARGET = "aarch64-macos.14.0"
MINIMUM_OS = (14, 0)
MLX_METAL = "mlx-metal==0.32.4"

METAL = "/System/Library/Frameworks/Metal.framework/Versions/A/Metal"
FOUNDATION = "/System/Library/Frameworks/Foundation.framework/Versions/C/Foundation"
OBJC = "/usr/lib/libobjc.A.dylib"
SYSTEM = "/usr/lib/libSystem.B.dylib"  # zig has Apple's list of what it exports
STUBS = {
    METAL: "Metal.framework/Metal.tbd",
    FOUNDATION: "Foundation.framework/Foundation.tbd",
    OBJC: "libobjc.tbd",
}

# A module for Python leaves Python's symbols open. The first link has a library of just these to find them
# in, so that any other open symbol fails; the second, whose output is kept, leaves them open.
COMPILER = """\
#!/bin/sh
for a do case $a in -c|-E) exec '{zig}' c++ {flags} "$@";; esac; done
for a do
  shift
  case $a in
    -bundle) set -- "$@" -shared;;  # zig cannot; dlopen() takes either
    -Wl,@*|-Wl,-x) ;;               # lists of symbols that may be open; local symbols stay
    *) set -- "$@" "$a";;
  esac
done
set -- c++ {flags} "$@" '-F{stubs}' '-L{stubs}'
'{zig}' "$@" -lPython -o '{tools}/checked.so' && exec '{zig}' "$@" -undefined dynamic_lookup
"""
TOOL = """\
#!/bin/sh
exec '{zig}' {name} "$@"
"""
# Kernels cast pointers as they like; zig's default would call a checker that Macs do not have.
FLAGS = f"-target {TARGET} -fno-sanitize=undefined"


class CheckError(RuntimeError):
    """What was built is not what a Mac can use."""


@functools.cache
def zig() -> Path:
    return _packaged("ziglang", "zig")


@functools.cache
def python_symbols() -> frozenset[str]:
    """What a module may leave open for the interpreter to fill, as nanobind lists it."""
    listed = _packaged("nanobind", "darwin-ld-cpython.sym").read_text().split()
    return frozenset(word for word in listed if word != "-U")


def _packaged(package: str, name: str) -> Path:
    return next(Path(f.locate()) for f in files(package) or () if f.name == name)


def fetch_mlx_metal(out: Path) -> Path:
    """The folder with metal-cpp and libmlx.dylib, out of the wheel from PyPI."""
    folder = out / MLX_METAL
    if not folder.exists():
        wheels, unpacked = out / "wheels", out / "unpacked"
        shutil.rmtree(unpacked, ignore_errors=True)
        command = (
            "-m pip download --quiet --disable-pip-version-check --only-binary=:all: --no-deps"
        )
        command += " --platform=macosx_14_0_arm64 --python-version=3.12"
        subprocess.run([sys.executable, *command.split(), "-d", str(wheels), MLX_METAL], check=True)
        with zipfile.ZipFile(next(wheels.glob("*.whl"))) as wheel:
            names = [n for n in wheel.namelist() if "/metal_cpp/" in n or "/libmlx." in n]
            wheel.extractall(unpacked, names)
        (unpacked / "mlx").rename(folder)
        shutil.rmtree(wheels)
        shutil.rmtree(unpacked)
    return folder


def write_stubs(folder: Path, known: macho.MachO) -> None:
    """Text stubs of the system's libraries, with the symbols that `known` takes from them."""
    for library, name in STUBS.items():
        symbols = [symbol for symbol, source in known.imports.items() if source == library]
        write_stub(folder / name, library, symbols)
    write_stub(folder / "libPython.tbd", "Python", python_symbols())


def write_stub(path: Path, library: str, symbols: Iterable[str]) -> None:
    text = (
        "--- !tapi-tbd\n"
        "tbd-version: 4\n"
        "targets: [ arm64-macos ]\n"
        f"install-name: '{library}'\n"
        "exports:\n"
        "  - targets: [ arm64-macos ]\n"
        f"    symbols: [ {', '.join(sorted(symbols))} ]\n"
        "...\n"
    )
    write(path, text)


def write(path: Path, text: str, mode: int = 0o644) -> None:
    """Leaves a file with this text as it is: builds look at its time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
        path.chmod(mode)


def prepare(out: Path) -> dict[str, str]:
    """Makes headers, stubs and tools in OUT; the environment in which to build with them."""
    mlx = fetch_mlx_metal(out)
    write_stubs(out / "stubs", macho.MachO.read(mlx / "lib" / "libmlx.dylib"))
    tools, flags = out / "tools", f"{FLAGS} -isystem '{HERE / 'include'}'"
    compiler = COMPILER.format(zig=zig(), flags=flags, stubs=out / "stubs", tools=tools)
    write(tools / "c++", compiler, 0o755)
    for name in ("ar", "ranlib"):
        write(tools / name, TOOL.format(zig=zig(), name=name), 0o755)
    cache = str(out / "zig-cache")
    return {
        **os.environ,
        "ESKER_MACOS_TOOLS": str(tools),
        "ZIG_GLOBAL_CACHE_DIR": cache,
        "ZIG_LOCAL_CACHE_DIR": cache,
        "CMAKE_TOOLCHAIN_FILE": str(HERE / "toolchain.cmake"),
        "_PYTHON_HOST_PLATFORM": "macosx-14.0-arm64",
        "SETUPTOOLS_EXT_SUFFIX": module_suffix(),
        "ESKER_METAL_CPP": str(mlx / "include" / "metal_cpp"),
    }


def module_suffix() -> str:
    return f".cpython-{sysconfig.get_config_var('py_version_nodot')}-darwin.so"


def build_wheel(out: Path, fast: bool = False) -> Path:
    environment = prepare(out)
    settings = {
        "build-dir": str(out / ("build-fast" if fast else "build")),
        "cmake.define.ESKER_METAL_CPP": environment["ESKER_METAL_CPP"],
    }
    if fast:
        settings["cmake.build-type"] = "None"
        settings["cmake.define.CMAKE_CXX_FLAGS"] = "-O0"
    code = f"from scikit_build_core.build import build_wheel as b; print(b({str(out)!r}, {settings!r}))"
    for old in out.glob("esker-*.whl"):
        old.unlink()
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, check=True)
    return next(out.glob("esker-*.whl"))


def check_module(path: Path) -> macho.MachO:
    """Raises CheckError unless Python on a Mac can load it, as far as its file says."""
    try:
        file = macho.MachO.read(path)
    except macho.MachOError as error:
        raise CheckError(f"{path.name}: {error}") from None

    def want(what: str, got: object, fine: bool) -> None:
        if not fine:
            raise CheckError(f"{path.name}: {what}: {got}")

    want("not for arm64", hex(file.cpu), file.cpu == macho.CPU_ARM64)
    want("not a file to load", file.file_type, file.file_type in macho.LOADABLE)
    want("not for macOS", file.platform, file.platform == macho.PLATFORM_MACOS)
    want("minimum macOS", file.minimum_os, file.minimum_os == MINIMUM_OS)
    want("unsigned, which arm64 refuses", file.is_signed, file.is_signed)
    others = set(file.libraries) - {SYSTEM, *STUBS}
    want("loads other libraries", sorted(others), not others)
    want("looks for libraries in folders of its own", file.rpaths, not file.rpaths)
    entry = f"_PyInit_{path.name.partition('.')[0]}"
    want("does not export", entry, entry in file.exports)
    nowhere = {name for name, library in file.imports.items() if library is None}
    want("symbols from nowhere", sorted(nowhere - python_symbols()), nowhere <= python_symbols())
    return file


def check_wheel(path: Path) -> None:
    """Raises CheckError unless it has the module, and the package's files, for a Mac."""
    with zipfile.ZipFile(path) as wheel:
        names = {n for n in wheel.namelist() if not n.endswith("/")}
    module = f"esker/_core{module_suffix()}"
    source = ROOT / "python"
    wanted = {module}
    for file in (source / "esker").rglob("*"):
        if file.is_file() and "__pycache__" not in file.parts:
            wanted.add(file.relative_to(source).as_posix())
    got = {n for n in names if ".dist-info/" not in n}
    if got != wanted:
        lacks, more = sorted(wanted - got), sorted(got - wanted)
        raise CheckError(f"{path.name}: lacks {lacks}, has beyond what it should {more}")
    if not path.name.endswith("-macosx_14_0_arm64.whl"):
        raise CheckError(f"{path.name}: not tagged for macOS 14 on arm64")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--fast", action="store_true", help="compile for a check only")
    args = parser.parse_args()
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    wheel = build_wheel(out, args.fast)
    check_wheel(wheel)
    name = f"esker/_core{module_suffix()}"
    with zipfile.ZipFile(wheel) as archive:
        module = Path(archive.extract(name, out / "module"))
    file = check_module(module)
    print(f"{wheel}\n{module}")
    print(f"Mach-O 64-bit arm64 {file.file_type}, macOS {MINIMUM_OS[0]}.{MINIMUM_OS[1]} or newer")
    for library in [*file.libraries, None]:
        names = sum(source == library for source in file.imports.values())
        print(f"  {names:4} symbols of {library or 'Python, found when it is loaded'}")


if __name__ == "__main__":
    main()
