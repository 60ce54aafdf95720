# SPDX-License-Identifier: MIT
"""How a disk is read best: readers and size of a read, from a short measurement that is kept.

Measured once for every disk (device and file system), where much is to be streamed; kept in the
user's cache folder.  A cache that cannot be read or written costs a new measurement, nothing else.
"""

from __future__ import annotations

import json
import os
import platform
from typing import NamedTuple

from . import _core
from .files import cache_folder, replace_file

WORTH_BYTES = 1 << 28  # less than this left on the disk is not worth a measurement
_VERSION = 1
_READERS = (2, 4, 8, 16)
_SIZES = (256 << 10, 512 << 10, 1 << 20)
_SAMPLE_BYTES = 24 << 20  # of each combination: 12 of them are 300 MB, a fraction of a second
# Fewer readers and smaller reads leave less to wait for behind a demand read: the first that is
# nearly as fast as the fastest.
_NEARLY = 0.95


class DiskChoice(NamedTuple):
    """Reader threads, the most that one reads at a time, and what that gave when it was measured."""

    readers: int
    chunk_bytes: int
    bytes_per_s: float


def cache_path() -> str:
    """The file in the user's cache folder."""
    return os.path.join(cache_folder(), "disks.json")


def choose(model_path: str) -> DiskChoice:
    """The choice for the disk that holds this file, measured if it is not known.

    Raises ReadError when the file cannot be read.
    """
    key = _key(model_path)
    known = _load()
    if key in known:
        return known[key]
    best = measure(model_path)
    known[key] = best
    _store(known)
    return best


def measure(path: str) -> DiskChoice:
    """Direct reads in random places of the file, by readers and size."""
    rates: dict[tuple[int, int], float] = {}
    total = min(_SAMPLE_BYTES, max(os.path.getsize(path), 1))
    for size in _SIZES:
        for readers in _READERS:
            times = _core.probe_disk(path, min(size, total), readers, total, readers=readers)
            rates[readers, size] = times["bytes"] / max(times["ns"], 1) * 1e9
    fastest = max(rates.values())
    for (readers, size), rate in sorted(rates.items()):
        if rate >= _NEARLY * fastest:
            return DiskChoice(readers, size, rate)
    raise AssertionError("the fastest is nearly as fast as the fastest")


def _key(path: str) -> str:
    status = os.stat(path)
    return f"{platform.node()}:{os.major(status.st_dev)}:{os.minor(status.st_dev)}"


def _load() -> dict[str, DiskChoice]:
    try:
        with open(cache_path(), encoding="utf-8") as file:
            stored = json.load(file)
        if stored["version"] != _VERSION:
            return {}
        choices = {
            key: DiskChoice(int(d["readers"]), int(d["chunk_bytes"]), float(d["bytes_per_s"]))
            for key, d in stored["disks"].items()
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}
    return {
        key: choice
        for key, choice in choices.items()
        if choice.readers in _READERS and choice.chunk_bytes in _SIZES
    }


def _store(choices: dict[str, DiskChoice]) -> None:
    disks = {key: choice._asdict() for key, choice in choices.items()}
    data = json.dumps({"version": _VERSION, "disks": disks}, indent=1).encode()
    try:
        os.makedirs(os.path.dirname(cache_path()), exist_ok=True)
        replace_file(cache_path(), data)
    except OSError:
        pass
