# SPDX-License-Identifier: MIT
"""esker synth: a random model that runs, of any shape and any mix of weight types."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from ..gguf_writer import Progress
from ..synth import synthesize
from ..synth.arguments import Job
from .common import print_json


def run(args: argparse.Namespace) -> int:
    job: Job = args.synth
    with _progress() as progress:
        result = synthesize(
            job.out,
            job.shape,
            types=job.rules,
            seed=job.seed,
            zipf=job.zipf,
            sticky=job.sticky,
            name=job.name,
            shard_bytes=job.shard_bytes,
            header_only=args.header_only,
            force=args.force,
            command=["esker", *args.argv],
            progress=progress,
        )
    for note in result.notes:
        print(f"note: {note}", file=sys.stderr)
    if args.json:
        print_json(asdict(result))
        return 0
    from ..report import format_bytes

    for path in result.paths:
        print(path)
    rate = format_bytes(result.bytes_per_second)
    print(f"{format_bytes(result.bytes)} in {result.seconds:.1f} s, {rate}/s", file=sys.stderr)
    return 0


@contextmanager
def _progress() -> Iterator[Progress | None]:
    """A bar of bytes on a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

    columns: Any = (BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("writing", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
