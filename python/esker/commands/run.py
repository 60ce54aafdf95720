# SPDX-License-Identifier: MIT
"""esker run: continues a prompt and shows the text as it comes."""

from __future__ import annotations

import argparse
import sys

from ..session import Completion, Generation
from .common import (
    ignore_interrupts,
    open_model,
    print_json,
    prompt_progress,
    read_prompt,
    result_json,
    sampling,
    write,
)


def run(args: argparse.Namespace) -> int:
    prompt = read_prompt(args.prompt)
    with open_model(args) as model, prompt_progress() as progress:
        generation = model.generate(prompt, chat=args.chat, progress=progress, **sampling(args))
        result = show(generation, args.json)
        if result.finish_reason == "interrupted":
            ignore_interrupts()
        if args.save_profile:
            model.save_profile(args.save_profile)
        if args.stats:
            from ..report import print_stream_report

            print_stream_report(result)
        if args.profile:
            from ..report import print_profile

            print_profile(model.op_times)
    if args.json:
        print_json(result_json(result))
    return 130 if result.finish_reason == "interrupted" else 0


def show(generation: Generation, quiet: bool) -> Completion:
    """Generates, and writes the text piece by piece unless `quiet`.

    Ctrl-C ends it: the result is then what there is, with finish_reason "interrupted".
    """
    shown = 0
    try:
        for piece in generation:
            if piece.text and not quiet:
                write(piece.text)
                shown += len(piece.text)
    except KeyboardInterrupt:
        generation.close()
    result = generation.result()
    if not quiet:
        rest = result.text[shown:]
        if rest or not result.text.endswith("\n"):
            write(rest + "\n")
    if result.finish_reason == "context":
        limit = result.plan["context"]
        print(f"esker: the context of {limit} tokens is full (--context)", file=sys.stderr)
    return result
