# SPDX-License-Identifier: MIT
"""Writes GGUF files of any size in constant memory: one file, or shards under their standard names.

Owns: the weight types' sizes, the bytes of a header, where tensors lie.  Knows nothing of models.
Data comes as an iterator of pieces per tensor.  Files grow under `NAME.part` and get their names
when all of them are whole and on the disk; whatever fails or interrupts before, they go away.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any, NamedTuple

from .errors import ReadError, UsageError, fault

ALIGNMENT = 32  # of every tensor's offset
SHARDS_MAX = 4096  # what the reader takes
_VERSION = 3

Piece = Any  # bytes, a memoryview, a numpy array: whatever has a buffer
Progress = Callable[[int, int], None]


class WeightType(NamedTuple):
    """A type of csrc/abi/weight_types.h."""

    id: int
    name: str
    block_elements: int
    block_bytes: int


WEIGHT_TYPES = {
    row[1]: WeightType(*row)
    for row in (
        (0, "F32", 1, 4), (1, "F16", 1, 2), (30, "BF16", 1, 2), (2, "Q4_0", 32, 18),
        (3, "Q4_1", 32, 20), (6, "Q5_0", 32, 22), (7, "Q5_1", 32, 24), (8, "Q8_0", 32, 34),
        (42, "Q2_0", 64, 18), (10, "Q2_K", 256, 84), (11, "Q3_K", 256, 110),
        (12, "Q4_K", 256, 144), (13, "Q5_K", 256, 176), (14, "Q6_K", 256, 210),
        (16, "IQ2_XXS", 256, 66), (17, "IQ2_XS", 256, 74), (22, "IQ2_S", 256, 82),
        (18, "IQ3_XXS", 256, 98), (21, "IQ3_S", 256, 110), (20, "IQ4_NL", 32, 18),
        (23, "IQ4_XS", 256, 136), (19, "IQ1_S", 256, 50), (29, "IQ1_M", 256, 56),
        (34, "TQ1_0", 256, 54), (35, "TQ2_0", 256, 66), (39, "MXFP4", 32, 17),
        (40, "NVFP4", 64, 36),
    )
}  # fmt: skip


def weight_type(name: str) -> WeightType:
    """The type of that name.  Raises UsageError."""
    try:
        return WEIGHT_TYPES[name.upper()]
    except KeyError:
        raise UsageError(
            fault("gguf", "weight type", got=name, want=f"one of {', '.join(WEIGHT_TYPES)}")
        ) from None


@dataclass(frozen=True)
class Tensor:
    """What a header says of a tensor; dims fastest first."""

    name: str
    dims: tuple[int, ...]
    type: WeightType

    @property
    def elements(self) -> int:
        return prod(self.dims)

    @property
    def bytes(self) -> int:
        return self.elements // self.type.block_elements * self.type.block_bytes


# Kinds of metadata values: their number in the file and how one is packed.
_FORMATS = {
    "u16": (2, "<H"), "u32": (4, "<I"), "i32": (5, "<i"), "f32": (6, "<f"), "flag": (7, "<?"),
    "u64": (10, "<Q"),
}  # fmt: skip
_TEXT, _ARRAY = 8, 9


def _text(value: str) -> bytes:
    data = value.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(data)) + data


class Metadata:
    """Keys and values in the order they are added."""

    def __init__(self) -> None:
        self._items: list[tuple[str, bytes]] = []

    def add(self, kind: str, key: str, value: Any) -> None:
        """One value; kind is u16, u32, i32, f32, flag, u64 or text."""
        if kind == "text":
            self._items.append((key, struct.pack("<I", _TEXT) + _text(value)))
        else:
            number, packing = _FORMATS[kind]
            self._items.append((key, struct.pack("<I", number) + struct.pack(packing, value)))

    def add_array(self, kind: str, key: str, values: Sequence[Any]) -> None:
        """Values of one kind."""
        number, packing = (_TEXT, "") if kind == "text" else _FORMATS[kind]
        parts = [struct.pack("<IIQ", _ARRAY, number, len(values))]
        if kind == "text":
            parts += map(_text, values)
        else:
            parts += [struct.pack(packing, value) for value in values]
        self._items.append((key, b"".join(parts)))

    def __len__(self) -> int:
        return len(self._items)

    def encode(self) -> bytes:
        return b"".join(_text(key) + value for key, value in self._items)


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


@dataclass
class FilePlan:
    """One file: its header, and where its tensors will lie after it."""

    path: Path
    header: bytes  # padded to the alignment
    tensors: list[Tensor]
    bytes: int

    @property
    def part(self) -> Path:
        return self.path.with_name(self.path.name + ".part")


def _plan_file(path: Path, metadata: Metadata, tensors: list[Tensor]) -> FilePlan:
    infos, offset = [], 0
    for tensor in tensors:
        infos.append(
            _text(tensor.name)
            + struct.pack(
                f"<I{len(tensor.dims)}QIQ", len(tensor.dims), *tensor.dims, tensor.type.id, offset
            )
        )
        offset = _aligned(offset + tensor.bytes)
    head = b"GGUF" + struct.pack("<IQQ", _VERSION, len(tensors), len(metadata))
    header = head + metadata.encode() + b"".join(infos)
    header += bytes(_aligned(len(header)) - len(header))
    return FilePlan(path, header, tensors, len(header) + offset)


def _split(tensors: Sequence[Tensor], shard_bytes: int) -> list[list[Tensor]]:
    """Runs of tensors of at most shard_bytes each; a larger tensor is a shard of its own."""
    shards: list[list[Tensor]] = [[]]
    size = 0
    for tensor in tensors:
        if shards[-1] and size + tensor.bytes > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += _aligned(tensor.bytes)
    return shards


def plan_files(
    path: Path, metadata: Metadata, tensors: Sequence[Tensor], shard_bytes: int = 0
) -> list[FilePlan]:
    """The files of a model: one, or with shard_bytes as many as it takes.

    Shards lie beside each other as STEM-00001-of-00003.gguf; the first has the metadata.
    """
    shards = _split(tensors, shard_bytes) if shard_bytes else [list(tensors)]
    if len(shards) == 1:
        return [_plan_file(path, metadata, shards[0])]
    if len(shards) > SHARDS_MAX:
        raise UsageError(
            fault(
                "gguf",
                "number of shards",
                got=len(shards),
                want=f"at most {SHARDS_MAX}",
                hint="larger shards",
            )
        )
    plans = []
    stem = path.name.removesuffix(".gguf")
    for index, part in enumerate(shards):
        keys = metadata if index == 0 else Metadata()
        keys.add("u16", "split.no", index)
        keys.add("u16", "split.count", len(shards))
        keys.add("i32", "split.tensors.count", len(tensors))
        name = f"{stem}-{index + 1:05d}-of-{len(shards):05d}.gguf"
        plans.append(_plan_file(path.with_name(name), keys, part))
    return plans


def _check_room(plans: Sequence[FilePlan], total: int, force: bool) -> None:
    """Refuses to overwrite, and to begin what the disk cannot hold."""
    for plan in plans:
        if plan.path.is_dir() or (plan.path.exists() and not force):
            what = "is a folder" if plan.path.is_dir() else "the file exists"
            hint = "another name" if plan.path.is_dir() else "--force overwrites it"
            raise UsageError(fault("gguf", what, where=str(plan.path), hint=hint))
    folder = plans[0].path.parent
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise _write_error(error, folder, "make the folder first") from None
    if total > free:
        raise ReadError(
            fault(
                "gguf",
                "the disk is too small",
                got=f"{free:,} bytes free",
                want=f"{total:,}",
                where=str(folder),
                hint="make room, or write to another disk",
            )
        )


def _write_error(error: OSError, path: Path, hint: str = "") -> ReadError:
    text = f"cannot write: {error.strerror or error}"
    return ReadError(fault("gguf", text, where=str(path), hint=hint))


def write_files(
    plans: Sequence[FilePlan],
    pieces: Callable[[Tensor], Iterable[Piece]],
    *,
    header_only: bool = False,
    force: bool = False,
    progress: Progress | None = None,
) -> int:
    """Writes the files; returns the bytes written.

    Args:
        pieces: the data of a tensor, in order, as many bytes as the header says.
        header_only: no tensor data, but a header that says where they would lie.
        force: existing files are replaced (once all new ones are whole).
        progress: called as progress(bytes done, bytes in all).

    Raises UsageError (a file exists) or ReadError (the disk).
    """
    total = sum(len(plan.header) if header_only else plan.bytes for plan in plans)
    _check_room(plans, total, force)
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    with contextlib.ExitStack() as undo:
        for plan in plans:
            undo.callback(plan.part.unlink, missing_ok=True)
            try:
                with open(plan.part, "wb", buffering=0) as file:
                    for piece in _file_pieces(plan, pieces, header_only):
                        advance(_write_all(file, piece))
                    os.fsync(file.fileno())
            except OSError as error:
                raise _write_error(error, plan.part) from None
        try:
            for plan in plans:
                os.replace(plan.part, plan.path)
        except OSError as error:
            raise _write_error(error, plan.path) from None
    return done


def _file_pieces(
    plan: FilePlan, pieces: Callable[[Tensor], Iterable[Piece]], header_only: bool
) -> Iterator[Piece]:
    yield plan.header
    for tensor in [] if header_only else plan.tensors:
        count = 0
        for piece in pieces(tensor):
            count += memoryview(piece).nbytes
            yield piece
        assert count == tensor.bytes, f"{tensor.name}: {count} bytes, not {tensor.bytes}"
        yield bytes(_aligned(count) - count)


def _write_all(file: IO[bytes], piece: Piece) -> int:
    view = memoryview(piece).cast("B")
    at = 0
    while at < len(view):
        at += file.write(view[at:])
    return len(view)
