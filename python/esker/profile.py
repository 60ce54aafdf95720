# SPDX-License-Identifier: MIT
"""Expert profiles: which experts were picked, the most picked first, to fill an arena from.

A file is little-endian: the magic "STRP", then version, layers, experts and the number of entries as
u32, as many (layer, expert) pairs of u32, and 32 bytes: the SHA-256 of the text that they come from,
zeros where it is not known.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from typing import NamedTuple

from .errors import FormatError, ReadError, UsageError, fault
from .files import replace_file

_MAGIC = b"STRP"
_VERSION = 1
_HEAD = struct.Struct("<4s4I")
_HASH_BYTES = 32
_COMPONENT = "profile"


class Profile(NamedTuple):
    """ranked: (layer, expert), the most picked first; text_sha256: "" where it is not known."""

    ranked: list[tuple[int, int]]
    text_sha256: str


def read(path: str | os.PathLike[str], n_layer: int, n_expert: int) -> Profile:
    """The profile of a model of this shape.

    Raises ReadError when the file cannot be read, FormatError when it is none, or another model's.
    """
    where = os.fspath(path)
    try:
        with open(where, "rb") as file:
            data = file.read()
    except OSError as error:
        raise ReadError(
            fault(_COMPONENT, "cannot read the profile", got=error.strerror, where=where)
        ) from None

    def refuse(what: str, got: object, want: object) -> FormatError:
        hint = "make it again with Model.save_profile"
        return FormatError(fault(_COMPONENT, what, got=got, want=str(want), where=where, hint=hint))

    if len(data) < _HEAD.size or data[:4] != _MAGIC:
        raise refuse("not an expert profile", data[:4], _MAGIC)
    _, version, layers, experts, entries = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise refuse("the profile has another version", version, _VERSION)
    if (layers, experts) != (n_layer, n_expert):
        raise refuse(
            "the profile is of another model",
            f"{layers} layers of {experts} experts",
            f"{n_layer} layers of {n_expert}",
        )
    size = _HEAD.size + 8 * entries + _HASH_BYTES
    if len(data) != size:
        raise refuse("the profile has the wrong size", f"{len(data)} bytes", size)
    values = struct.unpack_from(f"<{2 * entries}I", data, _HEAD.size)
    ranked = list(zip(values[::2], values[1::2], strict=True))
    for layer, expert in ranked:
        if layer >= n_layer or expert >= n_expert:
            raise refuse(
                "the profile names an expert that does not exist",
                f"layer {layer}, expert {expert}",
                f"below {n_layer} and {n_expert}",
            )
    digest = data[-_HASH_BYTES:]
    return Profile(ranked, digest.hex() if any(digest) else "")


def write(
    path: str | os.PathLike[str],
    counts: Sequence[int],
    n_layer: int,
    n_expert: int,
    text_sha256: str = "",
) -> int:
    """Writes counts [n_layer * n_expert], ranked; those of 0 are left out.  Returns the entries.

    The path holds the old file or the whole new one.  Raises UsageError, ReadError.
    """
    where = os.fspath(path)
    picked = [i for i, count in enumerate(counts) if count > 0]
    if not picked:
        raise UsageError(
            fault(_COMPONENT, "no expert was picked yet", hint="generate some text first")
        )
    try:
        digest = bytes.fromhex(text_sha256) if text_sha256 else bytes(_HASH_BYTES)
    except ValueError:
        digest = b""
    if len(digest) != _HASH_BYTES:
        raise UsageError(
            fault(_COMPONENT, "text_sha256", got=text_sha256, want="64 hexadecimal digits")
        )
    picked.sort(key=lambda i: (-counts[i], i))
    pairs = [value for i in picked for value in divmod(i, n_expert)]
    data = (
        _HEAD.pack(_MAGIC, _VERSION, n_layer, n_expert, len(picked))
        + struct.pack(f"<{len(pairs)}I", *pairs)
        + digest
    )
    try:
        replace_file(where, data)
    except OSError as error:
        what, hint = "cannot write the profile", "is the disk full?"
        raise ReadError(
            fault(_COMPONENT, what, got=error.strerror, where=where, hint=hint)
        ) from None
    return len(picked)
