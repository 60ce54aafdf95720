# SPDX-License-Identifier: MIT
"""esker chat: several turns in one session.

On a terminal Ctrl-C stops an answer, and at the prompt ends the chat; without a terminal each line
of standard input is a message, and Ctrl-C ends the chat.
"""

from __future__ import annotations

import argparse
import contextlib
import sys

from ..errors import EskerError
from ..session import Completion, Session
from .common import (
    ignore_interrupts,
    open_model,
    print_json,
    prompt_progress,
    result_json,
    sampling,
)
from .run import show

_HELP = "/exit or Ctrl-D ends, /reset starts over, Ctrl-C stops an answer"


def run(args: argparse.Namespace) -> int:
    terminal = sys.stdin.isatty()
    results: list[Completion] = []
    interrupted = False
    with open_model(args) as model:
        model.chat_template  # noqa: B018 - a model that has none says so before the first message
        session = model.session()
        if terminal:
            print(_HELP, file=sys.stderr)
        try:
            while (message := _ask(terminal, args.json)) is not None:
                word = message.strip()
                if word in ("/exit", "/quit"):
                    break
                if word == "/reset":
                    session.reset()
                elif word:
                    result = _turn(session, message, args, terminal)
                    results += [result] if result else []
                    if result and result.finish_reason == "interrupted" and not terminal:
                        raise KeyboardInterrupt
        except KeyboardInterrupt:
            interrupted = True
    if interrupted:
        ignore_interrupts()
    if args.json:
        turns = [result_json(result) for result in results]
        reason = "interrupted" if interrupted else "end"
        print_json({"messages": session.messages, "turns": turns, "finish_reason": reason})
    if interrupted and terminal:
        print(file=sys.stderr)
    return 130 if interrupted else 0


def _ask(terminal: bool, json: bool) -> str | None:
    """The next message, or None at the end of input."""
    if not terminal:
        line = sys.stdin.buffer.readline().decode("utf-8", "surrogateescape")
        return line.rstrip("\r\n") if line else None
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - input() then edits lines and remembers them
    shown = sys.stdout.isatty() and not json
    if not shown:
        print("> ", end="", file=sys.stderr, flush=True)
    try:
        return input("> " if shown else "")
    except EOFError:
        print(file=sys.stderr)
        return None


def _turn(
    session: Session, message: str, args: argparse.Namespace, terminal: bool
) -> Completion | None:
    """Answers a message.  None: it failed, and the person at the terminal was told."""
    try:
        with prompt_progress() as progress:
            generation = session.generate(message, chat=True, progress=progress, **sampling(args))
            result = show(generation, args.json)
    except EskerError as error:
        if not terminal:
            raise
        print(f"esker: error: {error.message}\nhint: {error.hint}", file=sys.stderr)
        return None
    if args.stats:
        from ..report import print_stream_report

        print_stream_report(result)
    if args.profile:
        from ..report import print_profile

        print_profile(session.model.op_times)
    return result
