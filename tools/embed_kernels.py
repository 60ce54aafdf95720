# SPDX-License-Identifier: MIT
"""Writes the kernels' sources as C++, for csrc/backends/gpu/kernel_sources.h.

python tools/embed_kernels.py OUTPUT METAL_FOLDER [-I FOLDER]...
"""

import argparse
import pathlib
import sys

import msl

HEAD = """// Written by tools/embed_kernels.py.
#include "backends/gpu/kernel_sources.h"

namespace esker::gpu {
namespace {
"""
# Compilers take string literals of some 64 KB; longer ones are joined from pieces.
PIECE = 12000


def literal(text):
    pieces = [text[i : i + PIECE] for i in range(0, len(text), PIECE)]
    return "\n".join(f'    R"~~~({piece})~~~"' for piece in pieces)


def embed(target, files, include_dirs):
    """The tables of one target, and the function that gives them."""
    tables, rows = [], []
    for path in files:
        names = ", ".join(f'"{i.name}"' for i in msl.Module(path, include_dirs).instances)
        tables.append(f"constexpr std::string_view k_{target}_{path.stem}_names[] = {{{names}}};")
        text = msl.translate(target, path, include_dirs)
        name = f"k_{target}_{path.stem}"
        tables.append(f"constexpr char {name}_text[] =\n{literal(text)};")
        rows.append(
            f'    {{"{path.stem}", {{{name}_text, sizeof {name}_text - 1}}, {name}_names}},'
        )
    table = "\n".join([f"constexpr KernelSource k_{target}[] = {{", *rows, "};"])
    function = f"std::span<const KernelSource> {target}_sources() {{ return k_{target}; }}"
    return "\n".join([*tables, table]), function


def main(arguments):
    parser = argparse.ArgumentParser(description="Writes the kernels' sources as C++.")
    parser.add_argument("output")
    parser.add_argument("folder")
    parser.add_argument("-I", dest="include_dirs", action="append", default=[], metavar="FOLDER")
    options = parser.parse_args(arguments)
    files = sorted(pathlib.Path(options.folder).glob("*.metal"))
    try:
        parts = [
            embed(target, files, [options.folder, *options.include_dirs])
            for target in ("metal", "cuda")
        ]
    except msl.MslError as error:
        print(error, file=sys.stderr)
        return 1
    text = HEAD + "\n".join(tables for tables, _ in parts) + "\n}  // namespace\n\n"
    text += "\n".join(function for _, function in parts) + "\n}  // namespace esker::gpu\n"
    pathlib.Path(options.output).write_text(text, encoding="utf-8", newline="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
