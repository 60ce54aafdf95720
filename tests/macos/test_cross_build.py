# SPDX-License-Identifier: MIT
"""The module for Macs, built here (tools/macos): it comes out as a Mac can load it, and what is wrong
with it would be noticed: in the compiler, in the linker, by the check.

What was compiled before is kept in $ESKER_MACOS_CACHE or in the system's folder for temporary files.
"""

import fcntl
import os
import shlex
import struct
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "macos"))

import cross_build
import macho

METAL_DEVICE = ROOT / "csrc/backends/gpu/metal/metal_device.cpp"

pytestmark = pytest.mark.skipif(
    sys.platform == "darwin", reason="on a Mac the real build says all this and more"
)


@pytest.fixture(scope="module")
def out():
    """Where it was built; nobody else builds there meanwhile."""
    default = Path(tempfile.gettempdir()) / f"esker-macos-{os.getuid()}"
    folder = Path(os.environ.get("ESKER_MACOS_CACHE") or default)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        script = ROOT / "tools" / "macos" / "cross_build.py"
        done = run(sys.executable, str(script), str(folder), "--fast")
        assert done.returncode == 0, done.stdout[-6000:]
        yield folder


@pytest.fixture(scope="module")
def module(out):
    return next((out / "module").rglob("_core*.so"))


@pytest.fixture(scope="module")
def environment(out):
    return cross_build.prepare(out)


@pytest.fixture(scope="module")
def device_command(out, environment):
    """How metal_device.cpp was compiled, as words."""
    build = out / "build-fast"
    text = subprocess.run(
        ["ninja", "-C", str(build), "-t", "commands", "_core" + cross_build.module_suffix()],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    line = next(line for line in text.splitlines() if line.endswith(f"-c {METAL_DEVICE}"))
    words = shlex.split(line)
    del words[words.index("-MD") : words.index("-o")]
    return words[: words.index("-o")]


def run(*command, **options):
    options |= {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.run(command, check=False, **options)


def compile_text(text, command, environment, folder):
    source = folder / "source.cpp"
    source.write_text(text)
    return run(
        *command, "-o", str(folder / "object.o"), "-c", str(source), env=environment, cwd=folder
    )


def test_the_module_is_one_that_python_on_a_mac_can_load(module):
    file = cross_build.check_module(module)
    assert file.cpu == macho.CPU_ARM64 and file.minimum_os == (14, 0)
    assert "_PyInit__core" in file.exports
    assert file.imports["_MTLCreateSystemDefaultDevice"] == cross_build.METAL
    assert file.imports["_objc_msgSend"] == cross_build.OBJC
    assert file.imports["_madvise"] == cross_build.SYSTEM
    assert file.imports["_PyErr_SetString"] is None


def test_the_wheel_has_the_module_and_every_file_of_the_package(out):
    (wheel,) = out.glob("esker-*.whl")
    cross_build.check_wheel(wheel)
    with zipfile.ZipFile(wheel) as archive:
        (tags,) = [n for n in archive.namelist() if n.endswith("/WHEEL")]
        assert "-macosx_14_0_arm64" in archive.read(tags).decode()


def test_a_wheel_that_lacks_or_has_too_much_is_refused(out, tmp_path):
    (wheel,) = out.glob("esker-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = [n for n in archive.namelist() if not n.endswith("/")]
    for changed, message in (
        ([n for n in names if not n.startswith("esker/_core.cpython")], "lacks"),
        ([n for n in names if n != "esker/data/esker-demo.gguf"], "esker-demo.gguf"),
        ([*names, "esker/left_over.o"], "left_over.o"),
    ):
        copy = tmp_path / wheel.name
        with zipfile.ZipFile(copy, "w") as archive:
            for name in changed:
                archive.writestr(name, "")
        with pytest.raises(cross_build.CheckError, match=message):
            cross_build.check_wheel(copy)


MUTANTS = {
    "as it is": ("newSharedEvent()", "newSharedEvent()", ""),
    "a misspelt method": (
        "->maxTotalThreadsPerThreadgroup()",
        "->maxThreadsPerThreadgroup()",
        "no member named 'maxThreadsPerThreadgroup'",
    ),
    "a wrong order of arguments": (
        "setBytes(d.args.data(), d.args.size(), 0)",
        "setBytes(d.args.size(), d.args.data(), 0)",
        "no matching member function for call to 'setBytes'",
    ),
    "a misspelt enumerator": (
        "MTL::DispatchTypeConcurrent",
        "MTL::DispatchTypeParallel",
        "DispatchTypeParallel",
    ),
    "a method of another class": (
        "queue_->addResidencySet(",
        "queue_->addAllocation(",
        "no member named 'addAllocation'",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_metals_real_headers_judge_the_host_code(name, device_command, environment, tmp_path):
    old, new, message = MUTANTS[name]
    text = METAL_DEVICE.read_text()
    assert old in text
    done = compile_text(text.replace(old, new), device_command, environment, tmp_path)
    assert (done.returncode == 0) == (message == ""), done.stdout
    assert message in done.stdout


def link(calls, out, environment, folder, *options):
    """A module that calls functions of these names."""
    declared = "".join(f'extern "C" void {name}();\n' for name in calls)
    called = "".join(f"  {name}();\n" for name in calls)
    text = (
        declared + 'extern "C" __attribute__((visibility("default"))) void PyInit__small() {\n'
        f"{called}}}\n"
    )
    compiler = str(out / "tools" / "c++")
    assert compile_text(text, [compiler, "-O0"], environment, folder).returncode == 0
    module = folder / "_small.so"
    module.unlink(missing_ok=True)
    arguments = ["-framework", "Metal", "-lobjc", *options, "object.o", "-o", str(module)]
    done = run(compiler, "-bundle", *arguments, env=environment, cwd=folder)
    return module, done


@pytest.mark.parametrize(
    "name",
    ["MTLCreateSystemDefaultDevise", "sel_registerNames", "PyLong_FromLonger", "madvices", "bar"],
)
def test_a_symbol_that_nobody_exports_fails_the_link(name, out, environment, tmp_path):
    _, done = link([name], out, environment, tmp_path)
    assert done.returncode != 0
    assert f"undefined symbol: _{name}" in done.stdout


@pytest.fixture
def small(out, environment, tmp_path):
    names = ["MTLCreateSystemDefaultDevice", "sel_registerName", "PyLong_FromLong", "madvise"]
    module, done = link(names, out, environment, tmp_path)
    assert done.returncode == 0, done.stdout
    return module


def test_the_check_knows_where_symbols_come_from(small):
    imports = cross_build.check_module(small).imports
    assert imports["_MTLCreateSystemDefaultDevice"] == cross_build.METAL
    assert imports["_sel_registerName"] == cross_build.OBJC
    assert imports["_PyLong_FromLong"] is None
    assert imports["_madvise"] == cross_build.SYSTEM


def load_commands(data):
    at = 32
    for _ in range(struct.unpack_from("<I", data, 16)[0]):
        command, size = struct.unpack_from("<2I", data, at)
        yield at, command
        at += size


def patch(kind, offset, value):
    """Writes a word of the first load command of a kind."""

    def change(data):
        at = next(at for at, command in load_commands(data) if command == kind)
        struct.pack_into("<I", data, at + offset, value)

    return change


def patch_head(offset, value):
    return lambda data: struct.pack_into("<I", data, offset, value)


def from_nowhere(data):
    """What came from a library is looked up at run time, in a module that is otherwise the same."""
    at = next(at for at, command in load_commands(data) if command == macho.LC_SYMTAB)
    symbols, count, strings, _ = struct.unpack_from("<4I", data, at + 8)
    for i in range(count):
        place = symbols + 16 * i
        name = strings + struct.unpack_from("<I", data, place)[0]
        if data[name : data.index(b"\0", name)] == b"_madvise":
            struct.pack_into("<H", data, place + 6, macho.FLAT_LOOKUP << 8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (patch_head(0, 0xFEEDFACE), "not a 64-bit Mach-O file"),
        (patch_head(4, 0x01000007), "not for arm64"),
        (patch_head(12, 2), "not a file to load: executable"),
        (patch(macho.LC_BUILD_VERSION, 8, 2), "not for macOS"),
        (patch(macho.LC_BUILD_VERSION, 12, 15 << 16), r"minimum macOS: \(15, 0\)"),
        (patch(macho.LC_CODE_SIGNATURE, 0, 0x2B), "unsigned"),
        (patch(macho.LC_SYMTAB, 0, 0x2B), "no table of symbols"),
        (from_nowhere, r"symbols from nowhere: \['_madvise'\]"),
        (lambda data: data.__delitem__(slice(200, None)), "cut short or damaged"),
        (lambda data: data.clear(), "cut short or damaged"),
    ],
)
def test_a_module_that_a_mac_would_refuse_is_refused(change, message, small):
    data = bytearray(small.read_bytes())
    change(data)
    small.write_bytes(data)
    with pytest.raises(cross_build.CheckError, match=message):
        cross_build.check_module(small)


def test_a_library_that_macs_do_not_have_is_refused(out, environment, tmp_path):
    cross_build.write_stub(tmp_path / "libother.tbd", "/usr/local/lib/libother.dylib", ["_other"])
    module, done = link(["other"], out, environment, tmp_path, f"-L{tmp_path}", "-lother")
    assert done.returncode == 0, done.stdout
    with pytest.raises(cross_build.CheckError, match=r"loads other libraries.*libother"):
        cross_build.check_module(module)


def test_a_module_without_its_entry_is_refused(small):
    other = small.with_name("_other.so")
    other.write_bytes(small.read_bytes())
    with pytest.raises(cross_build.CheckError, match="does not export: _PyInit__other"):
        cross_build.check_module(other)
