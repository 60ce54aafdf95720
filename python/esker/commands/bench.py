# SPDX-License-Identifier: MIT
"""esker bench: measures a case, writes the result file, shows its summary.

Reads what the flags say; what is measured is bench/cases.py's.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from .. import _core, tiles
from ..bench import cases
from ..bench.arguments import DEFAULT_REPEATS, read_list
from ..bench.cases import Case, Setup
from ..bench.guard import limits_from
from ..bench.process import peer_facts
from ..bench.prompts import Stream, make_stream
from ..bench.records import read_result, write_result
from ..errors import UsageError, fault
from ..model import demo_path
from ..options import LOAD, parse_arena, parse_size
from .common import print_json
from .logits import read_tokens

FILLS = ("same", "other", "none")
CACHES = ("cold", "warm")
_SIZES = "64KiB,512KiB,4MiB"
_DEPTHS = "1,4,8"


def run(args: argparse.Namespace) -> int:
    if args.case == "report":
        return _report(args)
    setup = _setup(args)
    cases.check_repeats(setup.repeats, setup.quick)
    _check_out(args.out)
    case = _CASES[args.case](args, setup)
    try:
        result = write_result(args.out, cases.measure(setup, case, _progress))
    except KeyboardInterrupt:
        if args.json:
            print_json({"interrupted": True})
        print("\nesker: interrupted; no result was written", file=sys.stderr)
        return 130
    if args.json:
        print_json({"out": args.out, "quotable": not setup.quick, "summary": result["summary"]})
    else:
        from ..bench.tables import print_summary

        print_summary(result, args.out)
    return 0


def _report(args: argparse.Namespace) -> int:
    from ..bench.report import render

    page = render([(path, read_result(path)) for path in args.files])
    with open(args.out, "w", encoding="utf-8") as file:
        file.write(page)
    if args.json:
        print_json({"out": args.out, "bytes": len(page.encode())})
    else:
        print(f"{args.out}: {len(args.files)} results")
    return 0


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _setup(args: argparse.Namespace) -> Setup:
    options: dict[str, Any] = asdict(args.load)
    arena = args.load.arena
    options["arena"] = f"{100 * arena.fraction!r}%" if arena.fraction else arena.bytes
    model = options.pop("model") or demo_path()
    options["threads"] = options["threads"] or _core.cpu_info()["cores"]
    default = 1 if args.quick else DEFAULT_REPEATS
    cap = _size(args, "memory_cap", 0)
    # A capped group pays for pages of the file only where it brings them in itself.
    cold = _choice(args, "cache", CACHES, "cold" if cap else "warm") == "cold"
    if args.case == "load":
        cold = False  # its sides say
    elif cap and not cold:
        why = "pages that are in the cache already do not count under the cap"
        raise UsageError(fault("bench", "--cache", got="warm", want="cold", hint=why))
    return Setup(
        model=model,
        options=options,
        repeats=_count(args, "repeats", default),
        quick=args.quick,
        limits=limits_from(args),
        cap_bytes=cap,
        cold=cold,
        argv=args.argv,
    )


def _load(args: argparse.Namespace, setup: Setup) -> Case:
    how = _choice(args, "cache", (*CACHES, "both"), "both")
    return cases.load_case(setup, CACHES if how == "both" else (how,))


def _prefill(args: argparse.Namespace, setup: Setup) -> Case:
    lengths = _counts(args, "prefill", "128,512")
    stream = _stream(args, setup, 2 * (max(lengths) + 1))
    return cases.prefill_case(setup, stream, lengths, _fill(args, setup))


def _decode(args: argparse.Namespace, setup: Setup) -> Case:
    lengths, count = _counts(args, "prefill", "128"), _count(args, "decode", 32, low=2)
    stream = _stream(args, setup, 2 * (max(lengths) + count))
    return cases.decode_case(setup, stream, lengths, count, _fill(args, setup))


def _stream_case(args: argparse.Namespace, setup: Setup) -> Case:
    if (args.arenas is None) == (args.slot_counts is None):
        raise UsageError(fault("bench", "stream needs cache sizes", want="--arena or --slots"))
    if args.arenas is not None:
        sizes = _list(args, "arenas", "", lambda text: (text, parse_arena(text)))
        arenas = [(f"arena-{text}", {"arena": text, "slots": 0}) for text, _ in sizes]
    else:
        slots = _counts(args, "slot_counts", "")
        arenas = [(f"slots-{n}", {"slots": n, "arena": 0}) for n in slots]
    arenas = [
        (f"{arena}/{name}" if name else arena, {**size, **options})
        for arena, size in arenas
        for name, options in _variants(args.vary)
    ]
    if args.price:
        setup.options["price"] = True
    length, count = _count(args, "prefill", 128), _count(args, "decode", 32, low=2)
    stream = _stream(args, setup, 2 * (length + count))
    return cases.stream_case(setup, stream, arenas, length, count, _fill(args, setup, "other"))


def _variants(text: str | None) -> list[tuple[str, dict[str, object]]]:
    """Names, and the options that stand for them: "none: read_ahead=0; K4: read_ahead=4"."""
    if not text:
        return [("", {})]
    known = {option.name: option for option in LOAD}
    variants: list[tuple[str, dict[str, object]]] = []
    for item in filter(str.strip, text.split(";")):
        name, _, assignments = item.partition(":")
        options: dict[str, object] = {}
        for assignment in filter(str.strip, assignments.split(",")):
            key, _, value = (part.strip() for part in assignment.partition("="))
            if key not in known:
                raise UsageError(
                    fault("bench", "--vary: no such option", got=key, want=", ".join(known))
                )
            options[key] = known[key].read(value, f"--vary {name.strip()}")
        variants.append((name.strip(), options))
    return variants


def _peer(args: argparse.Namespace, setup: Setup) -> Case:
    # The one variable that is no option of loading a model.
    python = args.peer_python or os.environ.get("ESKER_PEER_PYTHON") or sys.executable
    facts = peer_facts(python)
    length, count = _count(args, "prefill", 128), _count(args, "decode", 32, low=2)
    stream = _stream(args, setup, 2 * (length + count))
    fill = _fill(args, setup)
    return cases.peer_case(setup, stream, length, count, fill, python, facts)


def _ops(args: argparse.Namespace, setup: Setup) -> Case:
    types = _list(args, "types", "", str)
    if args.shapes is None and setup.options["backend"] not in ("auto", "cpu"):
        products = tiles.products(_core.file_info(setup.model))
        shapes = [p._asdict() for p in products if not types or p.type in types]
    elif args.shapes is None:
        shapes = cases.model_shapes(setup.model, types)
    elif not types:
        raise UsageError(fault("bench", "--shapes without --types", want="both, or no shapes"))
    else:
        pairs = _list(args, "shapes", "", _shape)
        shapes = [{"type": name, "rows": r, "cols": c} for name in types for r, c in pairs]
    size = _size(args, "bytes", 4_000_000 if setup.quick else 256_000_000)
    return cases.ops_case(setup, shapes, _count(args, "vectors", 1), size)


def _disk(args: argparse.Namespace, setup: Setup) -> Case:
    file = args.file or setup.model
    sizes = set(_list(args, "sizes", _SIZES, parse_size))
    if args.sizes is None and args.file is None:
        sizes.add(cases.record_bytes(setup.model))
    try:
        longest = os.path.getsize(file)
    except OSError as error:
        raise UsageError(fault("bench", f"--file: {error.strerror}", where=file)) from None
    if args.sizes is None:
        sizes = {size for size in sizes if 0 < size <= longest} or {longest}
    total = _size(args, "total", 4_000_000 if setup.quick else 1_000_000_000)
    depths = _counts(args, "depths", _DEPTHS)
    return cases.disk_case(setup, file, sorted(sizes), depths, total)


def _handshake(args: argparse.Namespace, setup: Setup) -> Case:
    if setup.options["backend"] in ("auto", "cpu"):
        hint = "give --backend; the cpu backend has nobody to stop for"
        raise UsageError(fault("bench", "handshake", got="cpu", want="a GPU", hint=hint))
    return cases.handshake_case(setup, _count(args, "segments", 48), _size(args, "work", 8_000_000))


_CASES: dict[str, Callable[[argparse.Namespace, Setup], Case]] = {
    "load": _load,
    "prefill": _prefill,
    "decode": _decode,
    "ops": _ops,
    "disk": _disk,
    "handshake": _handshake,
    "stream": _stream_case,
    "peer": _peer,
}


def _stream(args: argparse.Namespace, setup: Setup, needed: int) -> Stream:
    """The tokens to read; `needed` is how many a seeded stream has to have."""
    given = [name for name in ("prompt_file", "tokens", "random_tokens") if getattr(args, name)]
    if len(given) > 1:
        flags = " and ".join("--" + name.replace("_", "-") for name in given)
        raise UsageError(fault("bench", f"{flags} at once", want="one of them"))
    tokens = read_tokens(args.tokens) if args.tokens else None
    seed = None if args.random_tokens is None else _count(args, "random_tokens", 0, low=0)
    return make_stream(
        setup.model,
        text_file=args.prompt_file,
        tokens=tokens,
        tokens_file=args.tokens or "",
        seed=seed,
        count=needed,
    )


def _fill(args: argparse.Namespace, setup: Setup, default: str | None = None) -> str:
    """Where all experts have room the same tokens bring in all that is needed; where not, the
    cache shall know the kind of text and not the text."""
    limits = (setup.options[name] for name in ("arena", "slots", "memory"))
    tight = bool(setup.cap_bytes) or any(limits)
    return _choice(args, "fill", FILLS, default or ("other" if tight else "same"))


def _check_out(path: str) -> None:
    """Before hours of measuring, not after."""
    folder = os.path.dirname(os.path.abspath(path))
    if os.path.isdir(path) or (os.path.isdir(folder) and not os.access(folder, os.W_OK)):
        raise UsageError(fault("bench", "--out cannot be written", got=path))


def _choice(args: argparse.Namespace, name: str, choices: tuple[str, ...], default: str) -> str:
    value = getattr(args, name, None)
    if value is None:
        return default
    if value not in choices and not (args.case == "load" and value == "both"):
        raise _bad(name, value, "one of " + ", ".join(choices))
    return str(value)


def _count(args: argparse.Namespace, name: str, default: int, low: int = 1) -> int:
    value = getattr(args, name, None)
    return default if value is None else _whole(name, value, low)


def _counts(args: argparse.Namespace, name: str, default: str) -> list[int]:
    return _list(args, name, default, lambda text: _whole(name, text, 1))


def _whole(name: str, value: str, low: int) -> int:
    want = f"a whole number from {low}"
    try:
        number = int(value)
    except ValueError:
        raise _bad(name, value, want) from None
    if number < low:
        raise _bad(name, value, want)
    return number


def _size(args: argparse.Namespace, name: str, default: int) -> int:
    value = getattr(args, name, None)
    if value is None:
        return default
    try:
        return parse_size(value)
    except ValueError as error:
        raise _bad(name, value, str(error)) from None


def _list(
    args: argparse.Namespace, name: str, default: str, parse: Callable[[str], Any]
) -> list[Any]:
    value = getattr(args, name, None)
    text = default if value is None else value
    try:
        items = read_list(text, parse)
    except UsageError:
        raise
    except ValueError as error:
        raise _bad(name, text, f"a list: {error}") from None
    if value is not None and not items:
        raise _bad(name, text, "a list, such as 1,2")
    return items


def _shape(text: str) -> tuple[int, int]:
    rows, times, cols = text.partition("x")
    if not (times and rows.isdigit() and cols.isdigit()):
        raise ValueError("shapes such as 640x2560")
    return int(rows), int(cols)


def _bad(name: str, value: str, want: str) -> UsageError:
    flags = {"arenas": "arena", "slot_counts": "slots"}
    flag = "--" + flags.get(name, name).replace("_", "-")
    return UsageError(fault("bench", flag, got=value, want=want))
