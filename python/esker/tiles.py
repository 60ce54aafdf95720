# SPDX-License-Identifier: MIT
"""Tiles of the GPU kernels, tuned on this machine: the sweep, and the file that keeps what it found.

A tile is (L, R, S, K, table, stage): lanes that share a row, rows of a group of lanes, simdgroups of a
threadgroup, simdgroups that share a row, whether a codebook lies in threadgroup memory, and whether the
activations go through it.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

from . import _core
from .errors import UsageError
from .files import cache_folder, replace_file

_VERSION = 1
# A tile must be this much faster than the table's to take its place: less is the device's mood.
WORTH = 0.97
_LANES, _ROWS, _SIMDGROUPS, _SPLITS = (4, 8, 16, 32), (1, 2, 4), (2, 4, 8, 16), (1, 2, 4, 8, 16)

Tile: TypeAlias = tuple[int, int, int, int, int, int]


class Product(NamedTuple):
    """A matrix product that a tile is chosen for: rows of weights, columns, and its kernel."""

    use: str  # matvec, gate_up or down
    type: str
    rows: int
    cols: int


class Choice(NamedTuple):
    """The best tile, its time and that of the table's tile, in ns of a launch, and bytes it reads."""

    tile: Tile
    ns: float
    table_tile: Tile
    table_ns: float
    bytes: int
    drift: float  # slowest anchor by fastest


def products(info: dict[str, Any]) -> list[Product]:
    """The distinct products of a decoded token, as file_info describes the model."""
    uses = {"ffn_gate_exps": "gate_up", "ffn_up_exps": "gate_up", "ffn_gate_up_exps": "gate_up"}
    uses["ffn_down_exps"] = "down"
    skipped = {"token_embd", "per_layer_token_embd", "ssm_conv1d", "ple_conv1d"}
    found: dict[Product, None] = {}
    for tensor in info["tensors"]:
        shape, role = tensor["shape"], tensor["role"].removesuffix(".weight")
        if len(shape) < 2 or role in skipped or role.endswith("_up") and role.startswith("hc"):
            continue
        rows = shape[1] // (2 if role == "ffn_gate_up_exps" else 1)
        product = Product(uses.get(role, "matvec"), tensor["type"], rows, shape[0])
        found.setdefault(product, None)
    return list(found)


def sweep(
    backend: str,
    product: Product,
    top_k: int,
    weight_bytes: int = 1 << 30,
    launches: int = 16,
    repeats: int = 5,
    progress: Callable[[Tile, float], None] | None = None,
) -> Choice:
    """Times tiles on the device: lanes and rows first, then simdgroups and split, then what goes
    through threadgroup memory, and lanes and rows again, each from the best so far.  Raises DeviceError, UsageError."""
    family = _core.GpuDevice(backend).family
    lanes, rows, simds, split, table, stage = _core.gpu_tile(family, *product)
    table_tile: Tile = (lanes, rows, simds, split, table, stage)
    times: dict[Tile, float] = {}
    anchors: list[int] = []
    read = 0

    def measure(tiles: Iterable[Tile]) -> None:
        nonlocal read
        new = [t for t in dict.fromkeys(tiles) if t not in times and _fits(product, t)]
        if not new:
            return
        found = _core.gpu_tune(
            backend, *product, [table_tile, *new], weight_bytes, launches, repeats, top_k
        )
        read = found["bytes"]
        anchors.extend(found["anchor_ns"])
        anchor = statistics.median(found["anchor_ns"])
        times.setdefault(table_tile, anchor)
        for tile, ns in zip(new, found["tile_ns"][1:], strict=True):
            # Relative to the anchor of the same call, so that a drift between calls cancels.
            times[tile] = statistics.median(ns) / anchor * times[table_tile]
            if progress:
                progress(tile, times[tile])

    def best() -> Tile:
        return min(times, key=lambda tile: times[tile])

    measure((a, b, *table_tile[2:]) for a in _LANES for b in _ROWS)
    first = best()
    measure((*first[:2], a, b, *first[4:]) for a in _SIMDGROUPS for b in _SPLITS)
    second = best()
    measure((*second[:4], a, b) for a in (0, 1) for b in (0, 1))
    third = best()
    measure((a, b, *third[2:]) for a in _LANES for b in _ROWS)
    chosen = best() if times[best()] < WORTH * times[table_tile] else table_tile
    drift = max(anchors) / min(anchors)
    return Choice(chosen, times[chosen], table_tile, times[table_tile], read, drift)


def _fits(product: Product, tile: Tile) -> bool:
    return _core.gpu_tile_fits(product.use, product.type, tile)


def cache_path() -> str:
    """The file in the user's cache folder."""
    return os.path.join(cache_folder(), "tiles.json")


def load(backend: str) -> list[tuple[str, str, int, int, Tile]]:
    """What was found for a device: use, type, rows, columns, tile.  None where nothing was."""
    return [(*product, choice) for product, choice in _read().get(backend, {}).items()]


def store(backend: str, choices: dict[Product, Choice]) -> None:
    """Keeps choices, beside those of other devices and products.  Raises OSError."""
    known = _read()
    known.setdefault(backend, {}).update({p: c.tile for p, c in choices.items()})
    devices = {
        device: [{**product._asdict(), "tile": tile} for product, tile in of.items()]
        for device, of in known.items()
    }
    os.makedirs(cache_folder(), exist_ok=True)
    replace_file(
        cache_path(), json.dumps({"version": _VERSION, "devices": devices}, indent=1).encode()
    )


def _read() -> dict[str, dict[Product, Tile]]:
    """By device; a file that is not as store() writes it holds nothing."""
    try:
        with open(cache_path(), encoding="utf-8") as file:
            stored = json.load(file)
        if stored["version"] != _VERSION:
            return {}
        found: dict[str, dict[Product, Tile]] = {}
        for device, rows in stored["devices"].items():
            for row in rows:
                product = Product(
                    str(row["use"]), str(row["type"]), int(row["rows"]), int(row["cols"])
                )
                lanes, r, simds, split, table, stage = map(int, row["tile"])
                tile = (lanes, r, simds, split, table, stage)
                known = lanes in _LANES and r in _ROWS and simds in _SIMDGROUPS and split in _SPLITS
                if known and {table, stage} <= {0, 1} and _fits(product, tile):
                    found.setdefault(str(device), {})[product] = tile
    except (OSError, ValueError, TypeError, KeyError, AttributeError, UsageError):
        return {}
    return found
