# SPDX-License-Identifier: MIT
"""What may be written on the command line: parser, flags, help.

Values stay text until options.py reads them, as it reads the environment.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from ..bench.arguments import add_bench
from ..options import LOAD, SAMPLING, WHAT_IF, Option, load_options, sampling_options
from ..synth.arguments import add_synth, read_job

_NOT_PLANNED = ("backend", "threads")  # options that change nothing of the memory plan


class _Parser(argparse.ArgumentParser):
    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(2, f"esker: error: {message}\nhint: {self.prog} --help\n")


class _Version(argparse.Action):
    """--version, looked up only when asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from .. import __version__

        print(f"esker {__version__}")
        parser.exit(0)


def parse(argv: Sequence[str] | None, args: argparse.Namespace) -> None:
    """Fills `args` with what the command line and the environment say.

    Wrong usage ends the process with status 2, or raises UsageError (a value, a variable).
    """
    parser = _parser()
    args.argv = list(sys.argv[1:] if argv is None else argv)
    parser.parse_args(argv, args)
    _check(parser, args)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="esker",
        description="Runs mixture-of-experts language models that are larger than memory.",
        epilog="The options that load a model are also environment variables, such as"
        " ESKER_MEMORY for --memory.",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    run = commands.add_parser("run", help="continue a prompt", description="Continues a prompt.")
    run.add_argument("prompt", metavar="PROMPT", help="the text; - reads it from standard input")
    run.add_argument(
        "--chat", action="store_true", help="the prompt is a message, answered as in a chat"
    )
    _add_generation(run)
    run.add_argument(
        "--save-profile",
        metavar="FILE",
        help="write which experts were picked, for --expert-profile",
    )

    chat = commands.add_parser(
        "chat",
        help="talk, in several turns",
        description="Talks in several turns; the model keeps what was said. One message a line;"
        " /exit or end of input ends, /reset starts over.",
    )
    _add_generation(chat)

    info = commands.add_parser(
        "info", help="what a model file is", description="Shows what a model file is."
    )
    info.add_argument("file", metavar="MODEL", nargs="?", help="a GGUF file (as --model)")
    _add_options(info, [option for option in LOAD if option.name in ("model", "ngram_table")])
    _add_json(info)

    _add_plan(commands)

    logits = commands.add_parser(
        "logits",
        help="logits of every token of a text",
        description="Writes the logits after every token of a text: float32 [T, vocab], .npy.",
    )
    logits.add_argument(
        "prompt", metavar="PROMPT", nargs="?", help="the text; - reads it from standard input"
    )
    logits.add_argument(
        "--tokens", metavar="FILE", help="token ids instead: text, a JSON list or .npy"
    )
    logits.add_argument(
        "--out", metavar="FILE.npy", default="logits.npy", help="default logits.npy"
    )
    _add_options(logits, LOAD)
    _add_json(logits)

    synth = commands.add_parser(
        "synth",
        help="write a random model, for measuring",
        description="Writes a random model that runs: any shape (the real model's by default), any"
        " mix of weight types, any size, in constant memory.",
    )
    add_synth(synth)
    _add_json(synth)

    _add_audit(commands)
    _add_tune(commands)
    _add_selftest(commands)

    bench = commands.add_parser(
        "bench",
        help="measure, and compare with llama.cpp",
        description="Measures a case and writes a result file: raw runs, and the summary that"
        " follows from them.",
    )
    add_bench(bench, _add_options)
    return parser


def _add_audit(commands: Any) -> None:
    audit = commands.add_parser(
        "audit",
        help="check result files, and the claims of Markdown files",
        description="Computes every figure of result files again from their raw runs, and checks"
        " the numbers in Markdown files against the results that they name. Status 1 unless all"
        " are accepted.",
    )
    audit.add_argument("files", metavar="FILE", nargs="+", help="a result (.json) or a text (.md)")
    _add_json(audit)


def _add_tune(commands: Any) -> None:
    tune = commands.add_parser(
        "tune",
        help="fit the GPU kernels to this device",
        description="Times the tiles of the GPU kernels for every matrix product of a model, and"
        " keeps those that beat the built-in table by 3 % or more, for this user and device.",
    )
    tune.add_argument(
        "--only", metavar="TEXT", help="products that contain it: use, type, rows, columns"
    )
    tune.add_argument("--quick", action="store_true", help="to try things out: nothing is kept")
    _add_options(tune, [option for option in LOAD if option.name in ("model", "backend")])
    _add_json(tune)


def _add_selftest(commands: Any) -> None:
    selftest = commands.add_parser(
        "selftest",
        help="check this machine's devices",
        description="Compiles every kernel, runs every parity case and the demo model on each"
        " device, times the decode kernels, and prints one report to paste into an issue. A GPU"
        " that passed is used where no backend is asked for. Status 1 if anything failed.",
    )
    selftest.add_argument("--quick", action="store_true", help="a tenth of it; nothing is kept")
    _add_options(selftest, [option for option in LOAD if option.name == "backend"])
    _add_json(selftest)


def _add_plan(commands: Any) -> None:
    plan = commands.add_parser(
        "plan",
        help="what goes where in memory, and what a token reads",
        description="Shows the memory plan that a run would apply, and the bytes of weights that"
        " each decoded token reads, by tensor role. Nothing is loaded but the file's header.",
    )
    plan.add_argument("file", metavar="MODEL", nargs="?", help="a GGUF file (as --model)")
    plan.add_argument(
        "--header", action="store_true", help="the file may be cut off after its header"
    )
    _add_options(plan, (WHAT_IF,))
    _add_options(plan, [option for option in LOAD if option.name not in _NOT_PLANNED])
    _add_json(plan)


def _add_generation(parser: argparse.ArgumentParser) -> None:
    _add_options(parser, SAMPLING, {"max_tokens": "-n"})
    parser.add_argument(
        "--stop",
        metavar="TEXT",
        action="append",
        default=[],
        help="ends the text before TEXT; may be given several times",
    )
    parser.add_argument(
        "--stats", action="store_true", help="print times and what was streamed to stderr"
    )
    parser.add_argument(
        "--profile", action="store_true", help="print where the computing went, by op, to stderr"
    )
    _add_options(parser, LOAD)
    _add_json(parser)


def _add_options(
    parser: argparse.ArgumentParser, options: Iterable[Option], short: dict[str, str] | None = None
) -> None:
    for option in options:
        flags = [(short or {})[option.name]] if option.name in (short or {}) else []
        parser.add_argument(
            *flags, option.flag, dest=option.name, metavar=option.metavar, help=option.help
        )


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object to standard output"
    )


def _check(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Settles what argparse does not.  Raises UsageError."""
    if args.command == "logits" and (args.prompt is None) == (args.tokens is None):
        parser.error("logits: give a PROMPT or --tokens FILE, and not both")
    if args.command in ("info", "plan") and args.file is not None:
        if args.model is not None:
            parser.error(f"{args.command}: give MODEL or --model, and not both")
        args.model = args.file
    if args.command == "synth":
        args.synth = read_job(args)
        return
    given = vars(args)
    args.load = load_options(given)
    if args.command == "plan" and args.what_if is not None:
        args.what_if = WHAT_IF.read(args.what_if)
    if hasattr(args, "temperature"):
        present = {option.name: given[option.name] for option in SAMPLING}
        args.sampling = sampling_options(
            {name: value for name, value in present.items() if value is not None}
        )
    if "" in getattr(args, "stop", []):
        parser.error("--stop: got '', want a text of one character or more")
