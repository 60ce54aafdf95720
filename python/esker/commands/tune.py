# SPDX-License-Identifier: MIT
"""esker tune: finds the tiles of the GPU kernels that are fastest on this device, and keeps them."""

from __future__ import annotations

import argparse
import sys

from .. import _core, tiles
from ..errors import UsageError, fault
from ..model import demo_path
from .common import print_json

_QUICK_BYTES, _BYTES = 64 << 20, 1 << 30


def run(args: argparse.Namespace) -> int:
    backend = args.load.backend
    if backend in ("auto", "cpu"):
        raise UsageError(
            fault(
                "tune",
                "the backend has no tiles",
                got=backend,
                want="a GPU",
                hint="give --backend; the cpu kernels choose for themselves",
            )
        )
    info = _core.file_info(args.load.model or demo_path(), args.load.ngram_table)
    top_k = info["config"]["n_expert_used"]
    wanted = [
        p for p in tiles.products(info) if not args.only or args.only in ",".join(map(str, p))
    ]
    choices = {}
    for product in wanted:
        if not args.json:
            print(f"{_named(product)} ...", end="", file=sys.stderr, flush=True)
        choices[product] = tiles.sweep(
            backend,
            product,
            top_k,
            weight_bytes=_QUICK_BYTES if args.quick else _BYTES,
            launches=4 if args.quick else 16,
            repeats=3 if args.quick else 5,
        )
        if not args.json:
            print(f"\r{_line(product, choices[product])}", file=sys.stderr)
    if not args.quick:
        tiles.store(backend, choices)
    if args.json:
        print_json(
            {
                "backend": backend,
                "stored": None if args.quick else tiles.cache_path(),
                "choices": [{**p._asdict(), **c._asdict()} for p, c in choices.items()],
            }
        )
    else:
        print(f"{len(choices)} products", end="")
        print(", not kept" if args.quick else f", kept in {tiles.cache_path()}")
    return 0


def _named(product: tiles.Product) -> str:
    return f"{product.use} {product.type} {product.cols}x{product.rows}"


def _line(product: tiles.Product, choice: tiles.Choice) -> str:
    def shown(tile: tiles.Tile) -> str:
        staged = [name for name, there in zip(("table", "x"), tile[4:], strict=True) if there]
        where = f" with {' and '.join(staged)} in threadgroup memory" if staged else ""
        return ",".join(map(str, tile[:4])) + where

    rate = choice.bytes / choice.ns
    return (
        f"{_named(product)}: {shown(choice.table_tile)} {choice.table_ns / 1e3:.1f} us ->"
        f" {shown(choice.tile)} {choice.ns / 1e3:.1f} us, {rate:.1f} GB/s"
        f" (drift {choice.drift:.2f})"
    )
