# SPDX-License-Identifier: MIT
"""The argument structs of the kernels and the numbers beside them, as csrc/abi/kernel_args.h has
them, out of the kernels' text: abi.MatrixArgs(rows=..., ...), abi.kTileTokens.
"""

from __future__ import annotations

import ctypes
import re
from typing import Any

from .. import _core

_TYPES: dict[str, type] = {
    "uint32_t": ctypes.c_uint32,
    "int32_t": ctypes.c_int32,
    "uint64_t": ctypes.c_uint64,
    "float": ctypes.c_float,
}
STRUCTS: dict[str, type[ctypes.Structure]] = {}
CONSTANTS: dict[str, int] = {}


def _parse(text: str) -> None:
    code = re.sub(r"//[^\n]*", "", text)
    for body in re.findall(r"\benum\b[^{;]*\{([^}]*)\}", code):
        value = -1
        for item in filter(None, (part.strip() for part in body.split(","))):
            name, _, expression = (part.strip() for part in item.partition("="))
            value = eval(expression, {}, CONSTANTS) if expression else value + 1
            CONSTANTS[name] = value
    for name, body in re.findall(r"\bstruct\s+(\w+)\s*\{([^}]*)\}", code):
        fields: list[tuple[str, type]] = []
        for declaration in filter(None, (part.strip() for part in body.split(";"))):
            kind, names = declaration.split(None, 1)
            fields += [(field.strip(), _TYPES[kind]) for field in names.split(",")]
        STRUCTS[name] = type(name, (ctypes.Structure,), {"_fields_": fields})


def _of_header(text: str) -> str:
    """The part of a kernel file's text that comes from the header."""
    parts = re.split(r'^#line \d+ "([^"]*)"$', text, flags=re.MULTILINE)
    return "".join(
        body
        for name, body in zip(parts[1::2], parts[2::2], strict=True)
        if name.endswith("abi/kernel_args.h")
    )


_parse(_of_header(_core.kernel_source("matvec")))


def __getattr__(name: str) -> Any:
    for known in (STRUCTS, CONSTANTS):
        if name in known:
            return known[name]  # type: ignore[index]
    raise AttributeError(name)
