# SPDX-License-Identifier: MIT
"""esker.parity.abi says what a compiler says of the header, and the header's kernels are those of metal/."""

import re
import subprocess
from pathlib import Path

import pytest
import simt
from esker.parity import abi

METAL = Path(__file__).resolve().parents[2] / "metal"
HEADER = METAL.parent / "csrc" / "abi" / "kernel_args.h"
TEXT = HEADER.read_text(encoding="utf-8")
COMMENTS = "\n".join(re.findall(r"^// ?(.*)$", TEXT, re.MULTILINE))
WEIGHT_TYPES = re.findall(
    r'^.*?"(\w+)", \d+, \d+\}',
    (HEADER.parent / "weight_types.h").read_text().replace("}, ", "},\n"),
    re.MULTILINE,
)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """What a program that includes the header prints: name -> number."""
    lines = []
    for name, struct in abi.STRUCTS.items():
        lines.append(f'print("{name}", sizeof({name}));')
        lines += [
            f'print("{name}.{field}", offsetof({name}, {field}));' for field, _ in struct._fields_
        ]
        lines += [
            f'print("size {name}.{field}", sizeof({name}::{field}));'
            for field, _ in struct._fields_
        ]
    lines += [f'print("{name}", {name});' for name in abi.CONSTANTS]
    folder = tmp_path_factory.mktemp("abi")
    source = folder / "abi.cpp"
    source.write_text(
        f'#include <cstddef>\n#include <cstdio>\n#include "{HEADER}"\n'
        "using namespace esker::gpu;\n"
        'static void print(const char* name, size_t n) { std::printf("%s=%zu\\n", name, n); }\n'
        "int main() {\n" + "\n".join(lines) + "\n}\n"
    )
    simt.compile_command(["-std=c++20", str(source), "-o", str(folder / "abi")])
    printed = subprocess.run([folder / "abi"], capture_output=True, text=True, check=True).stdout
    return {
        name: int(value)
        for name, value in (line.rsplit("=", 1) for line in printed.split("\n") if line)
    }


def test_every_struct_of_the_header_is_there():
    code = re.sub(r"//[^\n]*", "", TEXT)
    assert set(abi.STRUCTS) == set(re.findall(r"\bstruct (\w+)", code))
    assert len(abi.STRUCTS) > 20
    assert set(abi.STRUCTS) == set(re.findall(r"static_assert\(sizeof\((\w+)\)", code)), (
        "a size is not asserted"
    )


@pytest.mark.parametrize("name", abi.STRUCTS)
def test_a_struct_is_laid_out_as_the_compiler_does(compiled, name):
    struct = abi.STRUCTS[name]
    assert abi.ctypes.sizeof(struct) == compiled[name]
    end = 0
    for field, _ in struct._fields_:
        assert getattr(struct, field).offset == compiled[f"{name}.{field}"] == end, (
            "a hole, or another place"
        )
        end += compiled[f"size {name}.{field}"]
    assert end == compiled[name], "a hole at the end"


def test_constants_are_the_compilers(compiled):
    assert abi.CONSTANTS
    assert {name: compiled[name] for name in abi.CONSTANTS} == abi.CONSTANTS


def kernels_of_metal():
    """Names as the host uses them, and without weight type, rows and codebook in their place."""
    names = set()
    for path in METAL.glob("*.metal"):
        names |= {i.name for i in simt.msl.Module(path, simt.include_dirs()).instances}
    types = "|".join(sorted(WEIGHT_TYPES, key=len, reverse=True))
    return names, {re.sub(rf"_(?:{types})(_r\d)?(_tg)?$", "", name) for name in names}


def test_kernels_of_the_header_are_those_of_metal():
    names, families = kernels_of_metal()
    assert len(WEIGHT_TYPES) == 27
    described = re.findall(
        r"(?:^|[;.] )([a-z][a-z0-9_]*?)((?:_TYPE)?)((?:_rR)?)(?: \(SPEC [\d.]+\))?:",
        COMMENTS,
        re.MULTILINE,
    )
    assert len(described) > 25
    for name, weight_type, rows in described:
        for t in WEIGHT_TYPES if weight_type else [""]:
            full = name + (f"_{t}" if t else "")
            pattern = re.escape(full) + (r"_r\d" if rows else "") + "$"
            assert any(re.match(pattern, n) for n in names), (
                f"{full}{rows} is in the header and not in metal/"
            )
    words = set(re.findall(r"[a-z]\w+", re.sub(r"_TYPE|_rR", "", COMMENTS)))
    assert families <= words, "in metal/ and not in the header"
