# SPDX-License-Identifier: MIT
"""What may be written after `esker synth`: flags, help, and what the values must be."""

from __future__ import annotations

import argparse
import math
import textwrap
from dataclasses import dataclass, fields

from ..errors import UsageError, fault
from ..options import Option, parse_size
from .presets import PRESETS, SEED_MAX, STICKY, ZIPF, ZIPF_MAX
from .roles import DEFAULT_RULES, ROLES, parse_rule
from .shape import Shape

_SHARD_SIZE = Option("shard_size", parse_size, 0, "SIZE", "largest shard, such as 4GB")

_HELP_COLUMNS = 79  # as argparse itself where there is no terminal
_TYPES_HELP = f"""\
RULE is ROLE[,ROLE][@LAYERS]=TYPE, and LAYERS is 3, 0-1 or 0-1+5; for instance
--type experts=IQ2_S --type gate,up@0-1=IQ3_S.  Of the rules that fit a tensor
the last counts.  A type whose blocks do not divide a row is replaced as
llama-quantize does, with a note.

Roles (a tensor's own name, such as attn_qkv, is one too):
%s

Defaults: {" ".join(DEFAULT_RULES[:4])}
{" ".join(DEFAULT_RULES[4:])}; what no rule names is F32.
"""


@dataclass(frozen=True)
class Job:
    """A command line, read."""

    out: str
    name: str
    shape: Shape
    rules: tuple[str, ...]
    zipf: float
    sticky: float
    seed: int
    shard_bytes: int


def add_synth(parser: argparse.ArgumentParser) -> None:
    """Adds all arguments of `esker synth` but --json."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = textwrap.fill(parser.description or "", _HELP_COLUMNS)
    roles = (_hanging(role, ", ".join(tensors)) for role, tensors in ROLES.items())
    parser.epilog = _TYPES_HELP % "\n".join(roles)
    parser.add_argument("out", metavar="OUT", help="the file to write; shards share its stem")
    presets = "; ".join(f"{name}: {preset.what}" for name, preset in PRESETS.items())
    parser.add_argument(
        "--preset", metavar="NAME", help=f"shape, types and routing by name.  {presets}"
    )
    parser.add_argument(
        "--type", metavar="RULE", dest="rules", action="append", default=[], help="see below"
    )
    parser.add_argument(
        "--zipf",
        metavar="S",
        help=f"experts are picked as rank^-S, 0 = all alike, up to {ZIPF_MAX:g} (default {ZIPF})",
    )
    parser.add_argument(
        "--sticky",
        metavar="P",
        help="part of its experts, 0 to 1, that a token shares with another of its topic"
        f" (default {STICKY})",
    )
    parser.add_argument("--seed", metavar="N", help="another seed, another model (default 1)")
    parser.add_argument("--name", metavar="TEXT", help="general.name (default: the preset's)")
    parser.add_argument("--shard-size", metavar="SIZE", help=_SHARD_SIZE.help)
    parser.add_argument(
        "--header-only",
        action="store_true",
        help="no tensor data, only where it would lie: for esker plan --header",
    )
    parser.add_argument("--force", action="store_true", help="replace files that exist")
    shape = parser.add_argument_group("shape")
    for number in fields(Shape):
        shape.add_argument(
            _flag(number.name),
            metavar="N",
            help=f"{number.metadata['help']} (default {number.default})",
        )


def read_job(args: argparse.Namespace) -> Job:
    """The checked values.  Raises UsageError."""
    preset = None
    if args.preset is not None:
        preset = PRESETS.get(args.preset)
        if preset is None:
            _refuse("--preset", args.preset, f"one of {', '.join(PRESETS)}")
    given = {
        number.name: _integer(_flag(number.name), getattr(args, number.name))
        for number in fields(Shape)
        if getattr(args, number.name) is not None
    }
    shape = (preset.shape if preset else Shape()).but(**given).check()
    rules = (*(preset.rules if preset else ()), *args.rules)
    for rule in args.rules:
        parse_rule(rule)
    seed = 1 if args.seed is None else _integer("--seed", args.seed)
    if not 0 <= seed <= SEED_MAX:
        _refuse("--seed", args.seed, f"0 to {SEED_MAX}")
    shard_size = args.shard_size
    return Job(
        out=args.out,
        name=args.name or args.preset or "synthetic",
        shape=shape,
        rules=rules,
        zipf=_number("--zipf", args.zipf, preset.zipf if preset else ZIPF, ZIPF_MAX),
        sticky=_number("--sticky", args.sticky, preset.sticky if preset else STICKY, 1),
        seed=seed,
        shard_bytes=0 if shard_size is None else int(str(_SHARD_SIZE.read(shard_size))),
    )


def _hanging(word: str, text: str) -> str:
    indent = 13 * " "
    return textwrap.fill(
        f"  {word:10} {text}", _HELP_COLUMNS, subsequent_indent=indent, break_on_hyphens=False
    )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _integer(flag: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        _refuse(flag, text, "a whole number")
        raise


def _number(flag: str, text: str | None, default: float, most: float) -> float:
    if text is None:
        return default
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number <= most:
        _refuse(flag, text, f"a number from 0 to {most:g}")
    return number


def _refuse(flag: str, got: object, want: str) -> None:
    raise UsageError(fault("synth", flag, got=got, want=want))
