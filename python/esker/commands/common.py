# SPDX-License-Identifier: MIT
"""What the commands share: opening the model, reading standard input, progress, results as JSON."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from ..model import Model
from ..options import SamplingOptions
from ..session import Completion, Progress

_PATIENCE_S = 0.5  # a prompt that is read faster than this gets no progress bar


@contextmanager
def open_model(args: argparse.Namespace) -> Iterator[Model]:
    """The model that the options ask for; a terminal sees that it is being opened."""
    with _spinner("opening the model"):
        given = dict(vars(args.load))
        model = Model(given.pop("model"), **given)
    with model:
        for part in model.wired:
            if part["error"]:
                from ..report import format_bytes  # loads rich

                print(
                    f"esker: only {format_bytes(part['bytes'])} of the {part['what']} could be"
                    f" wired: {part['error']} (see ulimit -l)",
                    file=sys.stderr,
                )
        yield model


def sampling(args: argparse.Namespace) -> dict[str, Any]:
    """The generation options as keywords of Model.generate."""
    options: SamplingOptions = args.sampling
    return {**asdict(options), "stop": args.stop}


def read_prompt(text: str) -> str:
    """The prompt, or standard input for "-".  Bytes that are not UTF-8 stay as escapes.

    One newline at the end is the shell's, not the text's.
    """
    if text != "-":
        return text
    text = sys.stdin.buffer.read().decode("utf-8", "surrogateescape")
    return text.removesuffix("\n").removesuffix("\r")


@contextmanager
def prompt_progress(what: str = "reading the prompt") -> Iterator[Progress | None]:
    """A callback that draws a bar on a terminal while a long prompt is read, and then wipes it."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    bar: Progress | None = None
    task: Any = None
    begin = time.monotonic()

    def show(done: int, total: int) -> None:
        nonlocal bar, task
        if bar is None and done < total and time.monotonic() - begin > _PATIENCE_S:
            bar = Progress(
                TextColumn(what),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("tokens"),
                console=Console(stderr=True),
                transient=True,
            )
            task = bar.add_task(what, total=total)
            bar.start()
        if bar is not None:
            bar.update(task, completed=done)
            if done >= total:
                bar.stop()

    try:
        yield show
    finally:
        if bar is not None:
            bar.stop()


def ignore_interrupts() -> None:
    """From here on the end is near: a second Ctrl-C must not tear it in two."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def result_json(result: Completion) -> dict[str, Any]:
    return asdict(result)


def print_json(value: object) -> None:
    """The one object that --json prints."""
    print(json.dumps(value), flush=True)


def write(text: str) -> None:
    """Shows text at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


@contextmanager
def _spinner(what: str) -> Iterator[None]:
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield
