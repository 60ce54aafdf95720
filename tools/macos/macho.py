# SPDX-License-Identifier: MIT
"""Reads a Mach-O file, and checks a Python module made for Macs.

    file = MachO.read("_core.cpython-312-darwin.so")
    file.libraries, file.imports, file.exports, file.minimum_os

    python tools/macos/macho.py MODULE     # what it is, loads, imports and exports

Knows the 64-bit little-endian layout, which is all that Apple's machines have (mach-o/loader.h, nlist.h).
"""

from __future__ import annotations

import struct
import sys
from dataclasses import dataclass, field
from pathlib import Path

MAGIC_64 = 0xFEEDFACF
CPU_ARM64 = 0x0100000C
FILE_TYPES = {1: "object", 2: "executable", 6: "dynamic library", 8: "bundle"}
LOADABLE = ("dynamic library", "bundle")  # what dlopen() takes
TWO_LEVEL = 0x80

LC_SYMTAB, LC_BUILD_VERSION, LC_CODE_SIGNATURE = 0x2, 0x32, 0x1D
# Kinds of a loaded library: plain, weak, re-exported, lazy, upward. Ordinals count all of them.
LC_LOAD = {0xC, 0x80000018, 0x8000001F, 0x20, 0x80000023}
LC_RPATH = 0x8000001C
PLATFORM_MACOS = 1

N_STAB, N_TYPE, N_EXT, N_PRIVATE = 0xE0, 0x0E, 0x01, 0x10
# Library ordinals that are none: found in whatever was loaded before, in the program.
FLAT_LOOKUP, EXECUTABLE = 254, 255


class MachOError(ValueError):
    """Not a file of this kind, or one that breaks its own rules."""


@dataclass
class MachO:
    cpu: int
    file_type: str
    flags: int
    platform: int | None = None
    minimum_os: tuple[int, int] | None = None
    is_signed: bool = False
    libraries: list[str] = field(default_factory=list)
    rpaths: list[str] = field(default_factory=list)
    # From symbol to library; None: the file names none.
    imports: dict[str, str | None] = field(default_factory=dict)
    exports: set[str] = field(default_factory=set)

    @classmethod
    def read(cls, path: str | Path) -> MachO:
        data = Path(path).read_bytes()
        try:
            return cls._parse(data)
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise MachOError(f"{path}: cut short or damaged ({error})") from None

    @classmethod
    def _parse(cls, data: bytes) -> MachO:
        magic, cpu, _, kind, n_commands, _, flags, _ = struct.unpack_from("<8I", data)
        if magic != MAGIC_64:
            raise MachOError(f"not a 64-bit Mach-O file: it begins with {data[:4].hex()}")
        file = cls(cpu, FILE_TYPES.get(kind, f"file type {kind}"), flags)
        at, symbols = 32, None
        for _ in range(n_commands):
            command, size = struct.unpack_from("<2I", data, at)
            if command in LC_LOAD:
                file.libraries.append(_text(data, at + struct.unpack_from("<I", data, at + 8)[0]))
            elif command == LC_RPATH:
                file.rpaths.append(_text(data, at + struct.unpack_from("<I", data, at + 8)[0]))
            elif command == LC_BUILD_VERSION:
                file.platform, version = struct.unpack_from("<2I", data, at + 8)
                file.minimum_os = (version >> 16, version >> 8 & 0xFF)
            elif command == LC_CODE_SIGNATURE:
                file.is_signed = True
            elif command == LC_SYMTAB:
                symbols = struct.unpack_from("<4I", data, at + 8)
            at += size
        if symbols is None:
            raise MachOError("it has no table of symbols")
        file._read_symbols(data, *symbols)
        return file

    def _read_symbols(self, data: bytes, at: int, count: int, strings: int, size: int) -> None:
        for i in range(count):
            name, kind, _, description, _ = struct.unpack_from("<IBBHQ", data, at + 16 * i)
            if kind & N_STAB or not kind & N_EXT:
                continue
            if name >= size:
                raise MachOError(f"the name of symbol {i} lies outside the table of names")
            symbol = _text(data, strings + name)
            if kind & N_TYPE:
                if not kind & N_PRIVATE:
                    self.exports.add(symbol)
            else:
                ordinal = description >> 8
                named = 0 < ordinal <= len(self.libraries) and self.flags & TWO_LEVEL
                self.imports[symbol] = self.libraries[ordinal - 1] if named else None


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()


def main() -> None:
    file = MachO.read(sys.argv[1])
    machine = "arm64" if file.cpu == CPU_ARM64 else hex(file.cpu)
    print(f"Mach-O 64-bit {machine} {file.file_type}, minimum macOS {file.minimum_os}")
    for library in [*file.libraries, None]:
        names = sorted(name for name, source in file.imports.items() if source == library)
        print(f"{library or 'looked up at run time'}: {len(names)} symbols")
        for name in names:
            print(f"  {name}")
    print("exports:", *sorted(file.exports))


if __name__ == "__main__":
    main()
