# SPDX-License-Identifier: MIT
"""Result files: what a measurement leaves behind, raw records first.

A result is a dict that goes to JSON as it is:

    {"format": "esker-result", "version": 1,
     "raw": {...},            # what was measured, and all that it depends on
     "raw_sha256": "...",     # of the raw part
     "summary": {...}}        # summarize(result), never typed

docs/results.md describes every field.  A bench case makes one with new_result(), appends to
result["raw"]["runs"] what new_run() gave and it filled in, and hands it to write_result().
Times are integers in ns (`_ns`) or seconds (`_s`), sizes bytes; what is not known is None.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..errors import FormatError, UsageError, fault
from ..files import replace_file
from .hashes import sha256_json, sha256_text, sha256_tokens
from .machine import esker_variables, machine_facts, scrub, software_facts
from .summary import summarize

__all__ = [
    "new_prompt",
    "new_result",
    "new_run",
    "read_result",
    "seal",
    "summarize",
    "write_result",
]

Result = dict[str, Any]
Run = dict[str, Any]

FORMAT = "esker-result"
VERSION = 1  # also of summarize(): whoever changes what it computes raises this
CASES = ("load", "prefill", "decode", "ops", "disk", "handshake", "stream", "peer")
TAIL_CHARS = 4000  # of a child's standard output and error that are kept
RESULT_BYTES_MAX = 256 << 20


def new_result(
    case: str,
    *,
    argv: Sequence[str],
    model: Mapping[str, Any] | None = None,
    prompts: Iterable[Mapping[str, Any]] = (),
    compare: tuple[str, str] | None = None,
    varies: Sequence[str] = (),
    peer: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Result:
    """A result without runs: where and with what they are made is filled in.

    Args:
        case: one of CASES.
        argv: the command line as given.
        model: hashes.model_facts(path); None where none is used (disk).
        prompts: of new_prompt(); runs name theirs by its hash.
        compare: (side, other side) of the ratios, such as ("esker", "peer").
        varies: names of settings in which the two are meant to differ.
        peer: {"name": "llama.cpp", "package": ..., "version": ...}.
        environ: where the ESKER_ variables are taken from; default the process's.
    """
    if case not in CASES:
        raise UsageError(fault("bench", "case", got=case, want=f"one of {', '.join(CASES)}"))
    raw: dict[str, Any] = {
        "case": case,
        "argv": [scrub(word) for word in argv],
        "environ": esker_variables(environ),
        "software": software_facts(),
        "machine": machine_facts(),
        "model": None if model is None else dict(model),
        "peer": None if peer is None else dict(peer),
        "prompts": [dict(prompt) for prompt in prompts],
        "compare": None if compare is None else list(compare),
        "varies": list(varies),
        "quality": None,  # where an option changes results: what it costs, and where that stands
        "guard": None,  # Guard.report() of the whole, where runs have none of their own
        "memory": {"before": None, "during": [], "after": None},
        "runs": [],
    }
    return {"format": FORMAT, "version": VERSION, "raw": raw}


def new_prompt(tokens: Iterable[int], *, source: str, text: str | None = None) -> dict[str, Any]:
    """A prompt in full.  `source` says where it comes from: a file, "random, seed 7"."""
    ids = [int(token) for token in tokens]
    return {
        "source": scrub(source),
        "text": text,
        "text_sha256": None if text is None else sha256_text(text),
        "tokens": ids,
        "tokens_sha256": sha256_tokens(ids),
    }


def new_run(
    side: str,
    *,
    order: int,
    pair: int | None = None,
    cold: bool = False,
    warmup: bool = False,
    prompt: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Run:
    """One raw run, to be filled in by whoever makes it.

    Args:
        side: "esker", "peer" or a label of your own.
        order: which run of the file this is, from 0, in the order of time.
        pair: runs of two sides with one number are compared with each other.
        cold: the page cache was emptied, or could not help.
        warmup: recorded, and in no figure; only before the other runs of its side.
        prompt: the one that it reads, of new_prompt().
        settings: as applied, not as asked: threads, context, chunk, arena_bytes, slots,
            classes; memory_cap_bytes under a cgroup cap; model_sha256.

    To fill in:
        phases: seconds.  load_s opening; arena_fill_s where it is a phase of its own;
            prompt_s from handing over the prompt until its logits are there; first_token_s
            from the same beginning until the first new token is drawn.
        tokens: one record a new token.  wall_ns: when it was there, in ns since the prompt was
            handed over (a point in time, so the first is first_token_s); the other keys are
            what counters rose by since the token before: host_ns, wait_ns, after_ns, lookups,
            hits, demand_misses, bytes_read, row_bytes_read ...
        output: token ids generated.  samples: for ops, disk, stream, instead of tokens:
            [{"name", "type", "shape", "bytes", "ns"}], any of type, shape and bytes None.
        exit_status: 0, or what the child ended with; None is a run that did not finish.
        memory, guard: Guard.memory() and Guard.report().
    """
    return {
        "side": side,
        "pair": pair,
        "order": order,
        "cold": cold,
        "warmup": warmup,
        "prompt_sha256": None if prompt is None else prompt["tokens_sha256"],
        "settings": dict(settings or {}),
        "phases": {"load_s": None, "arena_fill_s": None, "prompt_s": None, "first_token_s": None},
        "tokens": [],
        "output": [],
        "samples": [],
        "exit_status": None,
        "stdout_tail": "",
        "stderr_tail": "",
        "memory": {"before": None, "during": [], "after": None},
        "guard": None,
    }


def tail(text: str) -> str:
    """The end of an output, as a run keeps it."""
    return scrub(text[-TAIL_CHARS:])


def seal(result: Mapping[str, Any]) -> Result:
    """The result with hash and summary computed from its raw part."""
    raw = json.loads(json.dumps(result["raw"], allow_nan=False))  # as whoever reads it sees it
    sealed: Result = {"format": FORMAT, "version": VERSION, "raw": raw}
    sealed["raw_sha256"] = sha256_json(raw)
    sealed["summary"] = summarize(sealed)
    return sealed


def write_result(path: str | os.PathLike[str], result: Mapping[str, Any]) -> Result:
    """Seals a result and writes it, all or nothing.  Returns what was written.

    Raises FormatError for NaN, infinity or what is no JSON.
    """
    try:
        sealed = seal(result)
        text = json.dumps(sealed, indent=1, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise FormatError(fault("bench", f"the result is no JSON: {error}")) from None
    path = os.fspath(path)
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    replace_file(path, f"{text}\n".encode())
    return sealed


def read_result(path: str | os.PathLike[str]) -> Result:
    """A result file as it stands, of this format and version.  Raises FormatError.

    Whether its figures are right is audit.audit_result()'s to say.
    """
    path = os.fspath(path)
    try:
        if os.path.getsize(path) > RESULT_BYTES_MAX:
            raise FormatError(fault("bench", "the result file is too large", where=path))
        with open(path, encoding="utf-8") as file:
            result = json.load(
                file, parse_constant=_no_constant, object_pairs_hook=_no_duplicate_keys
            )
    except (ValueError, RecursionError) as error:
        raise FormatError(fault("bench", f"no result file: {error}", where=path)) from None
    if not isinstance(result, dict) or result.get("format") != FORMAT:
        raise FormatError(fault("bench", f"no result file: want format {FORMAT}", where=path))
    if result.get("version") != VERSION:
        got = result.get("version")
        raise FormatError(
            fault("bench", "version of the result file", got=got, want=str(VERSION), where=path)
        )
    return result


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} in the file")


def _no_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("an object names a key twice")
    return made
