# SPDX-License-Identifier: MIT
"""csrc/abi/kernel_args.h for Python: structs as ctypes.Structure, enumerators as numbers.

    abi.MatrixArgs(rows=8, cols=64, ...)    abi.kTileTokens    abi.STRUCTS    abi.CONSTANTS

The header is read when this is imported, so that the two cannot differ; test_abi.py asks a
compiler.
"""

import ctypes
import re
from pathlib import Path

HEADER = Path(__file__).resolve().parents[2] / "csrc" / "abi" / "kernel_args.h"
TYPES = {
    "uint32_t": ctypes.c_uint32,
    "int32_t": ctypes.c_int32,
    "uint64_t": ctypes.c_uint64,
    "float": ctypes.c_float,
}
STRUCTS = {}
CONSTANTS = {}


def parse(text):
    code = re.sub(r"//[^\n]*", "", text)
    for body in re.findall(r"\benum\b[^{;]*\{([^}]*)\}", code):
        value = -1
        for item in filter(None, (part.strip() for part in body.split(","))):
            name, _, expression = (part.strip() for part in item.partition("="))
            value = eval(expression, {}, CONSTANTS) if expression else value + 1
            CONSTANTS[name] = value
    for name, body in re.findall(r"\bstruct\s+(\w+)\s*\{([^}]*)\}", code):
        fields = []
        for declaration in filter(None, (part.strip() for part in body.split(";"))):
            kind, names = declaration.split(None, 1)
            fields += [(field.strip(), TYPES[kind]) for field in names.split(",")]
        STRUCTS[name] = type(name, (ctypes.Structure,), {"_fields_": fields})


parse(HEADER.read_text(encoding="utf-8"))
globals().update(STRUCTS)
globals().update(CONSTANTS)
