# SPDX-License-Identifier: MIT
"""Takes a GGUF file apart and puts it together again byte by byte, so that a test can spoil it.

Values stay as they lie in the file: nothing is refused here, however wrong it is.
"""

import math
import struct
from dataclasses import dataclass, field
from pathlib import Path

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
FORMATS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?"}
FORMATS |= {U64: "Q", I64: "q", F64: "d"}
# Elements and bytes of a block, for the types that the tests edit.
BLOCKS = {0: (1, 4), 1: (1, 2), 8: (32, 34), 30: (1, 2)}


def encode_string(text):
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def encode(kind, value, element=None):
    """A value's bytes as they stand after its type."""
    if kind == STRING:
        return encode_string(value)
    if kind == ARRAY:
        head = struct.pack("<IQ", element, len(value))
        return head + b"".join(encode(element, item) for item in value)
    return struct.pack("<" + FORMATS[kind], value)


@dataclass
class Tensor:
    name: str
    dims: list  # fastest first
    type: int
    data: bytes
    offset: int | None = None  # None: the next free one


@dataclass
class GgufFile:
    keys: dict = field(default_factory=dict)  # key -> (type, bytes)
    tensors: list = field(default_factory=list)
    version: int = 3
    alignment: int = 32

    @classmethod
    def read(cls, path):
        """Parses a good file."""
        data = Path(path).read_bytes()
        magic, version, tensor_count, key_count = struct.unpack_from("<4sIQQ", data)
        assert magic == b"GGUF"
        at = 24
        file = cls(version=version)

        def take(fmt):
            nonlocal at
            values = struct.unpack_from("<" + fmt, data, at)
            at += struct.calcsize("<" + fmt)
            return values[0] if len(values) == 1 else values

        def take_string():
            nonlocal at
            length = take("Q")
            at += length
            return data[at - length : at].decode()

        def skip_value(kind):
            nonlocal at
            if kind == STRING:
                take_string()
            elif kind == ARRAY:
                element, count = take("IQ")
                for _ in range(count):
                    skip_value(element)
            else:
                at += struct.calcsize("<" + FORMATS[kind])

        for _ in range(key_count):
            key, kind = take_string(), take("I")
            begin = at
            skip_value(kind)
            file.keys[key] = (kind, data[begin:at])
        table = []
        for _ in range(tensor_count):
            name = take_string()
            dims = [take("Q") for _ in range(take("I"))]
            table.append((name, dims, take("I"), take("Q")))
        start = -(-at // file.alignment) * file.alignment
        for name, dims, kind, offset in table:
            elements, size = BLOCKS[kind]
            begin = start + offset
            end = begin + math.prod(dims) // elements * size
            file.tensors.append(Tensor(name, dims, kind, data[begin:end]))
        return file

    def set(self, key, kind, value, element=None):
        self.keys[key] = (kind, encode(kind, value, element))

    def tensor(self, name):
        return next(t for t in self.tensors if t.name == name)

    def set_alignment(self, alignment):
        self.alignment = alignment
        self.set("general.alignment", U32, alignment)

    def _up(self, n):
        return -(-n // self.alignment) * self.alignment

    def key_bytes(self):
        """Magic to the last key."""
        out = struct.pack("<4sIQQ", b"GGUF", self.version, len(self.tensors), len(self.keys))
        for key, (kind, value) in self.keys.items():
            out += encode_string(key) + struct.pack("<I", kind) + value
        return out

    def header_bytes(self):
        """Magic to the end of the tensor table."""
        out, next_offset = self.key_bytes(), 0
        for t in self.tensors:
            out += encode_string(t.name) + struct.pack(f"<I{len(t.dims)}Q", len(t.dims), *t.dims)
            offset = next_offset if t.offset is None else t.offset
            out += struct.pack("<IQ", t.type, offset)
            next_offset = self._up(next_offset + len(t.data))
        return out

    def to_bytes(self):
        out = bytearray(self.header_bytes())
        out += bytes(self._up(len(out)) - len(out))
        start = len(out)
        for t in self.tensors:
            size = len(out) - start
            out += bytes(self._up(size) - size) + t.data
        return bytes(out)

    def write(self, path):
        Path(path).write_bytes(self.to_bytes())
        return Path(path)


def split(file, count, rng):
    """The file as `count` shards, as llama-gguf-split names its keys, tensors dealt by `rng`."""
    order = list(file.tensors)
    rng.shuffle(order)
    shards = []
    for index in range(count):
        shard = GgufFile(alignment=file.alignment, version=file.version)
        if index == 0:
            shard.keys = dict(file.keys)
        shard.set("split.no", U16, index)
        shard.set("split.count", U16, count)
        shard.set("split.tensors.count", I32, len(order))
        if file.alignment != 32:
            shard.set_alignment(file.alignment)
        shard.tensors = order[index::count]
        shards.append(shard)
    return shards


def write_shards(folder, shards, stem="model"):
    """Writes shards under their proper names; returns the paths."""
    return [
        shard.write(folder / f"{stem}-{index:05d}-of-{len(shards):05d}.gguf")
        for index, shard in enumerate(shards, 1)
    ]
