# SPDX-License-Identifier: MIT
"""What may be written after `esker bench`: cases, their flags, help.

Values stay text until commands/bench.py reads them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from typing import Any

from ..options import LOAD, Option
from .guard import add_arguments as add_guard

AddOptions = Callable[[argparse.ArgumentParser, Iterable[Option]], None]

DEFAULT_REPEATS = 5
_CASES = {
    "load": "opening a model, from a cold and from a warm page cache",
    "prefill": "reading prompts",
    "decode": "generating, token by token",
    "ops": "matrix products of each weight type, against a plain read of memory",
    "disk": "direct reads, by size and depth",
    "handshake": "what it costs a GPU to stop for the host at each layer",
    "stream": "generating with less memory than the experts need",
    "peer": "the same file and tokens in llama.cpp, side by side",
}


def add_bench(parser: argparse.ArgumentParser, add_options: AddOptions) -> None:
    """Adds the cases and `report` to the parser of `esker bench`."""
    cases = parser.add_subparsers(dest="case", metavar="CASE", required=True)
    for name, text in _CASES.items():
        case = cases.add_parser(name, help=text, description=f"Measures {text}.")
        _add_case(case, name)
        _add_common(case, name)
        left_out = ("arena", "slots") if name == "stream" else ()
        add_options(case, [option for option in LOAD if option.name not in left_out])
        add_guard(case)
        _add_json(case)
    report = cases.add_parser(
        "report", help="result files as one HTML page", description="Draws result files."
    )
    report.add_argument("files", metavar="FILE", nargs="+", help="result files")
    report.add_argument("-o", "--out", metavar="FILE", default="report.html", help="report.html")
    _add_json(report)


def _add_common(case: argparse.ArgumentParser, name: str) -> None:
    case.add_argument(
        "--repeats", metavar="N", help=f"runs of each side (default {DEFAULT_REPEATS}, at least 3)"
    )
    case.add_argument(
        "--quick", action="store_true", help="one run, to try things out: not to be quoted"
    )
    case.add_argument(
        "--out", metavar="FILE", default=f"bench-{name}.json", help=f"default bench-{name}.json"
    )
    case.add_argument(
        "--memory-cap",
        metavar="SIZE",
        help="run in a memory cgroup of this size (Linux, needs the right to make one)",
    )


def _add_case(case: argparse.ArgumentParser, name: str) -> None:
    if name == "load":
        case.add_argument("--cache", metavar="HOW", help="cold, warm or both (default both)")
    elif name == "ops":
        case.add_argument("--types", metavar="LIST", help="weight types (default: the model's)")
        case.add_argument(
            "--shapes", metavar="LIST", help="rows x columns, as 640x2560 (default: the model's)"
        )
        case.add_argument("--vectors", metavar="N", help="multiplied at once (default 1)")
        case.add_argument("--bytes", metavar="SIZE", help="of all copies (default 256MB)")
    elif name == "handshake":
        case.add_argument("--segments", metavar="N", help="stops of a window (default 48)")
        case.add_argument("--work", metavar="SIZE", help="streamed in each segment (default 8MB)")
    elif name == "disk":
        case.add_argument("--file", metavar="FILE", help="to read (default: the model)")
        case.add_argument("--sizes", metavar="LIST", help="of a read (default: 64KiB, 512KiB, an"
                          " expert, 4MiB)")  # fmt: skip
        case.add_argument("--depths", metavar="LIST", help="reads at a time (default 1,4,8)")
        case.add_argument("--total", metavar="SIZE", help="at most, of each (default 1GB)")
    else:
        _add_text(case, name)


def _add_text(case: argparse.ArgumentParser, name: str) -> None:
    several = name in ("prefill", "decode")
    default = "128,512" if name == "prefill" else "128"
    case.add_argument(
        "--prefill",
        metavar="LIST" if several else "N",
        help=f"tokens of the prompt{', of several runs' if several else ''} (default {default})",
    )
    if name != "prefill":
        case.add_argument("--decode", metavar="N", help="tokens after it (default 32)")
    if name == "stream":
        case.add_argument(
            "--arena", dest="arenas", metavar="LIST", help="memory for experts, as 1GB,2GB or 25%%"
        )
        case.add_argument("--slots", dest="slot_counts", metavar="LIST", help="or slots per layer")
        case.add_argument(
            "--vary",
            metavar="LIST",
            help="sides that differ in options, as 'none: read_ahead=0; J1: cache_prior=0.85,"
            " protect=1'; each with each arena",
        )
        case.add_argument(
            "--price",
            action="store_true",
            help="compare every token's logits with those of cache_prior=0 (KL divergence, top-1)",
        )
    if name == "peer":
        case.add_argument(
            "--peer-python",
            metavar="FILE",
            help="interpreter that has llama_cpp (default: ESKER_PEER_PYTHON, else this one)",
        )
    case.add_argument("--prompt-file", metavar="FILE", help="a text to read (default: one of ours)")
    case.add_argument(
        "--tokens", metavar="FILE", help="token ids instead, as esker logits has them"
    )
    case.add_argument("--random-tokens", metavar="SEED", help="or seeded random ones")
    case.add_argument("--cache", metavar="HOW", help="the file in the page cache: warm or cold"
                      " (default warm, cold under a cap)")  # fmt: skip
    case.add_argument(
        "--fill",
        metavar="HOW",
        help="before the prompt: a pass over the same tokens, over other ones, or none (default"
        " same where all experts have room, else other)",
    )


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the summary as one JSON object")


def read_list(text: str, parse: Callable[[str], Any]) -> list[Any]:
    """The items of a comma-separated list, each read by `parse`, which may raise ValueError."""
    return [parse(item.strip()) for item in text.split(",") if item.strip()]
