# SPDX-License-Identifier: MIT
"""What a result is made of, as hashes: JSON, texts, tokens, the native library, model files.

A model is not read in full: its header says what it is, a stated sample says that the weights are
the same.  GGUF headers are walked here in Python, so that no native module is needed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
from collections.abc import Iterable
from typing import Any, BinaryIO

from ..errors import FormatError, fault

SAMPLE_BLOCKS = 64
SAMPLE_BLOCK_BYTES = 64 << 10
SAMPLE = f"{SAMPLE_BLOCKS} blocks of {SAMPLE_BLOCK_BYTES} bytes, spread evenly from first to last"
STRING_BYTES_MAX = 64 << 20
COUNT_MAX = 1 << 26

# Value types of GGUF metadata: size in bytes of those of fixed size.
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY = 8, 9
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


def sha256_bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sha256_text(text: str) -> str:
    return sha256_bytes(text.encode("utf-8", "surrogatepass"))


def canonical_json(value: Any) -> str:
    """One text for one value: sorted keys, no spaces, ASCII.  Raises ValueError for NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def sha256_json(value: Any) -> str:
    return sha256_text(canonical_json(value))


def sha256_tokens(tokens: Iterable[int]) -> str:
    """Of the ids in decimal, separated by commas."""
    return sha256_text(",".join(str(int(token)) for token in tokens))


def sha256_file(path: str | os.PathLike[str]) -> str:
    """Of a whole file."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def model_facts(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Which model this is: name, and per shard base name, bytes, hash of header and of a sample.

    `sha256` stands for all of it.  Raises FormatError if a file is no GGUF.
    """
    files = [_file_facts(shard) for shard in shard_paths(os.fspath(path))]
    name = files[0].pop("name")
    for file in files[1:]:
        file.pop("name")
    return {
        "name": name,
        "files": files,
        "bytes": sum(file["bytes"] for file in files),
        "sample": SAMPLE,
        "sha256": sha256_json([{**file, "file": None} for file in files]),  # names may change
    }


def shard_paths(path: str) -> list[str]:
    """The file, or all shards where it is the first of several."""
    match = _SHARD.search(path)
    if not match:
        return [path]
    stem = path[: match.start()]
    count = int(match[2])
    return [f"{stem}-{index:05d}-of-{count:05d}.gguf" for index in range(1, count + 1)]


def _file_facts(path: str) -> dict[str, Any]:
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        name, header_bytes = _walk_header(file, size, path)
        file.seek(0)
        header = sha256_bytes(file.read(header_bytes))
        sample = hashlib.sha256()
        last = max(size - SAMPLE_BLOCK_BYTES, 0)
        for index in range(SAMPLE_BLOCKS):
            file.seek(last * index // (SAMPLE_BLOCKS - 1))
            sample.update(file.read(SAMPLE_BLOCK_BYTES))
    return {
        "name": name,
        "file": os.path.basename(path),
        "bytes": size,
        "header_bytes": header_bytes,
        "header_sha256": header,
        "sample_sha256": sample.hexdigest(),
    }


def _walk_header(file: BinaryIO, size: int, path: str) -> tuple[str | None, int]:
    """general.name, and where the tensor table ends."""
    walker = _Walker(file, size)
    try:
        return walker.walk()
    except (struct.error, ValueError) as error:
        raise FormatError(fault("bench", f"no GGUF header: {error}", where=path)) from None


class _Walker:
    """Reads a GGUF header (version 2 or 3, little-endian) and skips what it need not know."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._size = file, size

    def walk(self) -> tuple[str | None, int]:
        if self._file.read(4) != b"GGUF":
            raise ValueError("other magic")
        version = self._u32()
        if version not in (2, 3):
            raise ValueError(f"version {version}")
        n_tensors, n_keys = self._count(), self._count()
        name = None
        for _ in range(n_keys):
            key, kind = self._string(), self._u32()
            if key == b"general.name" and kind == _STRING:
                name = self._string().decode("utf-8", "replace")
            else:
                self._skip_value(kind)
        for _ in range(n_tensors):
            self._skip_string()
            self._skip(8 * self._u32() + 4 + 8)  # dimensions, type, offset
        return name, self._file.tell()

    def _u32(self) -> int:
        return int(struct.unpack("<I", self._file.read(4))[0])

    def _count(self) -> int:
        count = int(struct.unpack("<Q", self._file.read(8))[0])
        if count > COUNT_MAX:
            raise ValueError(f"a count of {count}")
        return count

    def _string(self) -> bytes:
        length = self._count()
        text = self._file.read(length)
        if len(text) != length:
            raise ValueError("it is cut short")
        return text

    def _skip_string(self) -> None:
        self._skip(self._count())

    def _skip(self, count: int) -> None:
        self._file.seek(count, os.SEEK_CUR)
        if self._file.tell() > self._size:
            raise ValueError("it is cut short")

    def _skip_value(self, kind: int) -> None:
        if kind == _STRING:
            self._skip_string()
        elif kind == _ARRAY:
            inner, count = self._u32(), self._count()
            if inner in _SIZES:
                self._skip(_SIZES[inner] * count)
            elif inner == _STRING:
                for _ in range(count):
                    self._skip_string()
            else:
                raise ValueError(f"an array of type {inner}")
        elif kind in _SIZES:
            self._skip(_SIZES[kind])
        else:
            raise ValueError(f"a value of type {kind}")
