# SPDX-License-Identifier: MIT
"""The page cache of model files: emptied or filled before a run, and looked at, so that "cold" and
"warm" are facts of a record and not hopes.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable
from typing import Any

from .machine import drop_page_cache

_READ_BYTES = 8 << 20
_WARM_SHARE = 0.999  # of a file: a few pages more change nothing


def prepare(files: Iterable[str], cold: bool) -> None:
    """Drops the files' pages, or reads them in where they are not there."""
    for path in files:
        if cold:
            drop_page_cache(path)
        elif (cached_bytes([path]) or 0) < _WARM_SHARE * os.path.getsize(path):
            with open(path, "rb", buffering=0) as file:
                while file.read(_READ_BYTES):
                    pass


def cached_bytes(files: Iterable[str]) -> int | None:
    """How much of the files the page cache holds; None where the system does not say."""
    total = 0
    for path in files:
        pages = _resident_pages(path)
        if pages is None:
            return None
        total += min(pages * mmap.PAGESIZE, os.path.getsize(path))
    return total


def _resident_pages(path: str) -> int | None:
    if not hasattr(mmap, "MAP_PRIVATE"):
        return None
    size = os.path.getsize(path)
    if size == 0:
        return 0
    try:
        mincore: Any = ctypes.CDLL(None, use_errno=True).mincore
    except (AttributeError, OSError):
        return None
    pages = -(-size // mmap.PAGESIZE)
    seen = (ctypes.c_ubyte * pages)()
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)  # never written
        first = ctypes.c_char.from_buffer(mapped)
        try:
            failed = mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(size), seen)
        finally:
            del first
            mapped.close()
    if failed:
        return None
    return sum(bytes(seen).translate(_LOWEST_BIT))


_LOWEST_BIT = bytes(value & 1 for value in range(256))  # the rest of mincore's bytes is reserved
