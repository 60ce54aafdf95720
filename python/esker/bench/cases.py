# SPDX-License-Identifier: MIT
"""The bench cases: which runs are made, in which order, and how their records become a result.

A case is a list of turns, each a run (or two) in a process of its own.  The sides of a case take
turns, and who goes first changes from round to round.  What runs inside a turn is child.py's and
peer.py's; what follows from the records is summary.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import _core
from ..errors import UsageError, fault
from . import hashes
from .cache import cached_bytes, prepare
from .guard import GuardLimits
from .process import Outcome, esker_command, fill_common, fill_run, peer_command, run_child
from .prompts import Stream
from .records import Result, new_result, new_run

Progress = Callable[[str], None]

REPEATS_MIN = 3
CONTEXT_STEP = 256  # llama.cpp rounds contexts up to this, so ours is asked for that way
OPS_PASSES = 3  # of each matrix shape in one process
HANDSHAKES = ("none", "bare", "covered")
HANDSHAKE_WINDOWS = 20  # of each kind in one process
DISK_READS_MAX = 256  # of one size and depth in one process
DISK_DEPTHS = (1, 4, 8)
ROW_LOOKUPS = ("token_embd", "per_layer_token_embd")  # tables of which single rows are read
MATRIX_WEIGHTS_MIN = 1024  # smaller ones are decoded when the model is opened


@dataclass(frozen=True)
class Setup:
    """What all cases are told."""

    model: str
    options: dict[str, Any]  # keywords of Model, threads as a number
    repeats: int
    quick: bool
    limits: GuardLimits
    cap_bytes: int
    cold: bool
    argv: Sequence[str]

    @property
    def threads(self) -> int:
        return int(self.options["threads"])


@dataclass(frozen=True)
class Side:
    """One of the things that are measured: its name, how it is started, what it is told."""

    name: str
    command: list[str]
    job: dict[str, Any]
    cold: bool
    prompt: dict[str, Any] | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    splits: tuple[str, ...] = ()  # a run of ops becomes one record for each of these


@dataclass(frozen=True)
class Case:
    name: str
    sides: list[Side]
    prompts: list[dict[str, Any]] = field(default_factory=list)
    compare: tuple[str, str] | None = None
    varies: tuple[str, ...] = ()
    peer: dict[str, Any] | None = None
    uses_model: bool = True


def check_repeats(repeats: int, quick: bool) -> None:
    """Fewer than three give no spread; quick runs are so few that no audit accepts them."""
    if not quick and repeats < REPEATS_MIN:
        hint = "--quick makes a single run, whose result cannot be quoted"
        want = f"at least {REPEATS_MIN}"
        raise UsageError(fault("bench", "repeats", got=repeats, want=want, hint=hint))
    if quick and not 1 <= repeats < REPEATS_MIN:
        want = f"1 to {REPEATS_MIN - 1} with --quick"
        raise UsageError(fault("bench", "repeats", got=repeats, want=want))


def measure(setup: Setup, case: Case, progress: Progress) -> Result:
    """Makes all runs of a case.  Nothing is kept of a bench that does not come to its end."""
    check_repeats(setup.repeats, setup.quick)
    model = hashes.model_facts(setup.model) if case.uses_model else None
    result = new_result(
        case.name,
        argv=setup.argv,
        model=model,
        prompts=case.prompts,
        compare=case.compare,
        varies=case.varies,
        peer=case.peer,
    )
    runs = result["raw"]["runs"]
    files = hashes.shard_paths(setup.model)
    total = setup.repeats * len(case.sides)
    turns = enumerate(_turns(case.sides, setup.repeats), start=1)
    for number, (pair, side) in turns:
        title = f"[{number}/{total}] {side.name}"
        progress(f"{title} ...")
        base: dict[str, Any] = {"quick": True} if setup.quick else {}
        if side.job["kind"] == "text":
            prepare(files, side.cold)
            base["file_cached_bytes"] = cached_bytes(files)
        outcome = run_child(
            side.command,
            side.job,
            setup.limits,
            setup.cap_bytes,
            lambda text, title=title: progress(f"{title}: {text}"),  # type: ignore[misc]
        )
        base |= {"threads": setup.threads, "memory_cap_bytes": None, **side.settings}
        if model:
            base["model_sha256"] = model["sha256"]
        runs.extend(_records(side, pair, len(runs), base, outcome))
        progress(f"{title}: {_in_short(runs[-1])}")
    return result


def _turns(sides: list[Side], repeats: int) -> Iterator[tuple[int, Side]]:
    for pair in range(repeats):
        for side in sides if pair % 2 == 0 else reversed(sides):
            yield pair, side


def _records(
    side: Side, pair: int, order: int, settings: dict[str, Any], outcome: Outcome
) -> Iterator[dict[str, Any]]:
    for name in side.splits or (side.name,):
        run = new_run(
            name, order=order, pair=pair, cold=side.cold, prompt=side.prompt, settings=settings
        )
        if side.job["kind"] == "text":
            fill_run(run, outcome)
        else:
            fill_common(run, outcome)
            samples = outcome.done.get("samples", [])
            run["samples"] = samples[name] if side.splits else samples
        yield run
        order += 1


def _in_short(run: dict[str, Any]) -> str:
    """One line of progress; a person is watching, no claim is made."""
    if "ended" in run["settings"]:
        return str(run["settings"]["ended"])
    parts = [f"{name[:-2]} {s:.3f} s" for name, s in run["phases"].items() if s is not None]
    tokens = run["tokens"]
    if len(tokens) > 1:
        span_ns = tokens[-1]["wall_ns"] - tokens[0]["wall_ns"]
        parts.append(f"{span_ns / 1e6 / (len(tokens) - 1):.1f} ms/token")
    return ", ".join(parts) or f"{len(run['samples'])} samples"


# Cases


def load_case(setup: Setup, caches: Sequence[str]) -> Case:
    """From open to ready, with the file's pages dropped before (cold) or read before (warm)."""
    job = _text_job(setup, [], [], [], 0)
    sides = [Side(name, esker_command(), job, name == "cold") for name in caches]
    if len(sides) < 2:
        return Case("load", sides)
    return Case("load", sides, compare=(caches[0], caches[1]), varies=("cold",))


def prefill_case(setup: Setup, stream: Stream, lengths: Sequence[int], fill: str) -> Case:
    sides, prompts = [], []
    for length in lengths:
        side, records = _text_side(setup, stream, f"prompt-{length}", length, 1, fill)
        sides.append(side)
        prompts += records
    return Case("prefill", sides, _unique(prompts))


def decode_case(
    setup: Setup, stream: Stream, lengths: Sequence[int], count: int, fill: str
) -> Case:
    """After prompts of those lengths."""
    sides, prompts = [], []
    for length in lengths:
        side, records = _text_side(setup, stream, f"after-{length}", length, count, fill)
        sides.append(side)
        prompts += records
    return Case("decode", sides, _unique(prompts))


def stream_case(
    setup: Setup,
    stream: Stream,
    arenas: Sequence[tuple[str, dict[str, Any]]],
    length: int,
    count: int,
    fill: str,
) -> Case:
    """`arenas`: names, and the keywords of Model that stand for them."""
    sides, prompts = [], []
    for name, options in arenas:
        side, records = _text_side(setup, stream, name, length, count, fill, options)
        sides.append(side)
        prompts += records
    return Case("stream", sides, _unique(prompts))


def peer_case(
    setup: Setup,
    stream: Stream,
    length: int,
    count: int,
    fill: str,
    python: str,
    facts: dict[str, Any],
) -> Case:
    """The same tokens through llama.cpp, which `python` has."""
    ours, prompts = _text_side(setup, stream, "esker", length, count, fill)
    job = {**ours.job, "threads": setup.threads, "context": ours.job["options"]["context"]}
    theirs = Side("peer", peer_command(python), job, ours.cold, ours.prompt, ours.settings)
    return Case("peer", [ours, theirs], prompts, compare=("esker", "peer"), peer=facts)


def ops_case(setup: Setup, shapes: Sequence[dict[str, Any]], tokens: int, size: int) -> Case:
    """`shapes`: type, rows, cols; copies of each fill `size` bytes, more than the caches."""
    job = {
        "kind": "ops",
        "shapes": list(shapes),
        "copies_bytes": size,
        "tokens": tokens,
        "passes": 1 if setup.quick else OPS_PASSES,
        "threads": setup.threads,
        "activations": setup.options["activations"],
    }
    backend = setup.options["backend"]
    if backend not in ("auto", "cpu"):
        job |= {"kind": "gpu_ops", "backend": backend}
    settings = {"copies_bytes": size, "tokens_at_once": tokens}
    side = Side("ops", esker_command(), job, False, None, settings, ("kernel", "read"))
    return Case("ops", [side], compare=("kernel", "read"))


def handshake_case(setup: Setup, segments: int, work_bytes: int) -> Case:
    """Windows without stops, with bare ones, and with ones that work covers, in one process."""
    job = {
        "kind": "handshake",
        "backend": setup.options["backend"],
        "segments": segments,
        "work_bytes": work_bytes,
        "windows": 3 if setup.quick else HANDSHAKE_WINDOWS,
    }
    settings = {"segments": segments, "work_bytes": work_bytes}
    side = Side("handshake", esker_command(), job, False, None, settings, HANDSHAKES)
    return Case("handshake", [side], compare=("bare", "none"), uses_model=False)


def disk_case(
    setup: Setup, file: str, sizes: Sequence[int], depths: Sequence[int], total: int
) -> Case:
    parts = [
        {
            "read_bytes": size,
            "depth": depth,
            "total_bytes": min(total, size * DISK_READS_MAX),
        }
        for size in sizes
        for depth in depths
    ]
    job = {"kind": "disk", "file": file, "parts": parts, "seed": 1}
    return Case("disk", [Side("disk", esker_command(), job, True)], uses_model=False)


def _text_job(
    setup: Setup, prompt: list[int], fed: list[int], fill: list[int], context: int
) -> dict[str, Any]:
    options = {**setup.options, "context": setup.options["context"] or context}
    return {
        "kind": "text",
        "price": options.pop("price", False),
        "model": setup.model,
        "options": options,
        "prompt": prompt,
        "fed": fed,
        "fill": fill,
    }


def _text_side(
    setup: Setup,
    stream: Stream,
    name: str,
    length: int,
    count: int,
    fill: str,
    options: dict[str, Any] | None = None,
) -> tuple[Side, list[dict[str, Any]]]:
    """A side that reads stream[:length] and feeds the `count` tokens after it; and its prompts."""
    tokens = stream.cut(0, length + count)
    prompt, fed = tokens[:length], tokens[length:]
    record = stream.record(prompt)
    prompts = [record]
    filling: list[int] = []
    if fill == "same":
        filling = tokens[:-1]  # the last one is drawn and not computed
    elif fill == "other":
        filling = stream.cut(
            length + count, 2 * (length + count) - 1, " (twice, to fill with others)"
        )
        prompts.append(stream.record(filling, ", to fill the arena"))
    job = _text_job(setup, prompt, fed, filling, _context(setup.model, length + count))
    job["options"].update(options or {})
    settings = {
        "context": job["options"]["context"],
        "fed_tokens": fed,
        "fill": fill,
        "fill_tokens_sha256": hashes.sha256_tokens(filling) if filling else None,
    }
    return Side(name, esker_command(), job, setup.cold, record, settings), prompts


def _context(model: str, tokens: int) -> int:
    """Room for the tokens, as both sides round it."""
    longest = int(_core.file_info(model)["config"]["context_length"])
    return min(-(-tokens // CONTEXT_STEP) * CONTEXT_STEP, longest)


def _unique(prompts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return list({prompt["tokens_sha256"]: prompt for prompt in prompts}.values())


def model_shapes(model: str, types: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The weight types and matrix shapes of a model, each once, in the order of its file."""
    info = _core.file_info(model)
    tied = not any(tensor["role"] == "output" for tensor in info["tensors"])
    found: dict[tuple[str, int, int], dict[str, Any]] = {}
    for tensor in info["tensors"]:
        shape, role = tensor["shape"], tensor["role"]
        if len(shape) < 2 or "conv" in role or shape[0] * shape[1] < MATRIX_WEIGHTS_MIN:
            continue
        if role in ROW_LOOKUPS and not (tied and role == "token_embd"):
            continue
        if not types or tensor["type"] in types:
            key = (tensor["type"], shape[1], shape[0])
            found[key] = {"type": key[0], "rows": key[1], "cols": key[2]}
    if not found:
        have = sorted({tensor["type"] for tensor in info["tensors"]})
        raise UsageError(
            fault("bench", "no matrices of these types", got=list(types), want=", ".join(have))
        )
    return list(found.values())


def record_bytes(model: str) -> int:
    """Bytes of an average expert: what the stream reads at a time."""
    info = _core.file_info(model)
    config = info["config"]
    return int(info["expert_bytes"] // (config["n_layer"] * config["n_expert"]))
