# SPDX-License-Identifier: MIT
"""Judges result files: every figure is computed again from the raw runs, and the runs must be ones
that figures can be made of.

What refuses a file lies in the file.  What only needs to be known (a dirty tree, no guard) is a
note.  Nothing here measures, and the native module is not needed.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import FormatError
from .hashes import canonical_json, sha256_json, sha256_text, sha256_tokens
from .machine import git
from .records import CASES, FORMAT, VERSION, read_result
from .structure import faults
from .summary import summarize

Raw = Mapping[str, Any]

REPEATS_MIN = 3
LINES_MAX = 8  # of one kind that are shown
# Settings that must be the same on both sides of a ratio; `varies` in the file can name one.
AGREE = ("threads", "context", "model_sha256", "memory_cap_bytes")
# The first token's time is taken twice, on one clock, by whoever ran it: this far apart at most.
CLOCK_SLACK_S, CLOCK_SLACK_SHARE = 0.005, 0.01
# Options that change results: name -> values that do not.
LOSSY: dict[str, tuple[object, ...]] = {"cache_prior": (None, 0, 0.0, False)}
# What a case is there to measure; every side must have it.
MEASURES = {"load": "load_s", "prefill": "prompt_rate", "decode": "decode_rate"}


@dataclass
class Verdict:
    """refused: why, empty if the file is accepted.  notes: what a reader should know."""

    refused: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def accepted(self) -> bool:
        return not self.refused


def audit_file(path: str | os.PathLike[str]) -> tuple[Verdict, dict[str, Any] | None]:
    """The verdict on a result file, and the result if it could be read."""
    try:
        result = read_result(path)
    except FormatError as error:
        return Verdict([error.message]), None
    except OSError as error:
        return Verdict([f"it cannot be read: {error.strerror}"]), None
    return audit_result(result, Path(path).resolve().parent), result


def audit_result(result: Mapping[str, Any], folder: Path | None = None) -> Verdict:
    """The verdict on a result; `folder` lies in the repository whose history should have it."""
    verdict = Verdict()
    wrong = faults(result)
    if (result.get("format"), result.get("version")) != (FORMAT, VERSION):
        wrong.insert(0, f"want format {FORMAT}, version {VERSION}")
    if wrong:
        verdict.refused = _cut(wrong)
        return verdict
    raw = result["raw"]
    checks = (_hash, _summary, _prompts, _runs, _repeats, _sides, _pairs, _guard)
    for check in checks:
        verdict.refused += _cut(list(check(result)))
    verdict.notes += _cut(list(_software_notes(raw, folder)))
    verdict.notes += _cut(list(_run_notes(raw)))
    return verdict


def _cut(lines: list[str]) -> list[str]:
    more = len(lines) - LINES_MAX
    return [*lines[:LINES_MAX], f"and {more} more like these"] if more > 0 else lines


def _hash(result: Raw) -> Iterator[str]:
    if sha256_json(result["raw"]) != result["raw_sha256"]:
        yield "the raw part is not the one that was written: its hash is not raw_sha256"


def _summary(result: Raw) -> Iterator[str]:
    try:
        computed = summarize(result)
    except (TypeError, ValueError, KeyError, ArithmeticError) as error:
        yield f"no summary can be computed: {error.__class__.__name__}: {error}"
        return
    yield from _differences(result["summary"], computed, "summary")


def _differences(stands: Any, computed: Any, place: str) -> Iterator[str]:
    """Every place where the summary in the file is not the one computed."""
    if isinstance(stands, dict) and isinstance(computed, dict):
        for name in computed:
            if name in stands:
                yield from _differences(stands[name], computed[name], f"{place}.{name}")
            else:
                yield f"{place}.{name} is missing"
        for name in stands:
            if name not in computed:
                yield f"{place}.{name} does not follow from the raw runs"
    elif canonical_json(stands) != canonical_json(computed):
        yield f"{place}: {_short(stands)} stands there, the raw runs give {_short(computed)}"


def _short(value: Any) -> str:
    text = canonical_json(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _prompts(result: Raw) -> Iterator[str]:
    known = set()
    for index, prompt in enumerate(result["raw"]["prompts"]):
        known.add(prompt["tokens_sha256"])
        if sha256_tokens(prompt["tokens"]) != prompt["tokens_sha256"]:
            yield f"prompt {index}: its tokens do not have its hash"
        text = prompt["text"]
        if (None if text is None else sha256_text(text)) != prompt["text_sha256"]:
            yield f"prompt {index}: its text does not have its hash"
        if not prompt["tokens"]:
            yield f"prompt {index} has no tokens"
    for run in result["raw"]["runs"]:
        if run["tokens"] and run["prompt_sha256"] is None:
            yield f"{_name(run)} has tokens and no prompt"
        elif run["prompt_sha256"] is not None and run["prompt_sha256"] not in known:
            yield f"{_name(run)} names a prompt that is not in the file"


def _runs(result: Raw) -> Iterator[str]:
    """Each run by itself."""
    raw = result["raw"]
    if raw["case"] not in CASES:
        yield f"case: got {raw['case']!r}, want one of {', '.join(CASES)}"
    orders = [run["order"] for run in raw["runs"]]
    if orders != sorted(set(orders)):
        yield "the runs do not stand in the order in which they were made"
    for run in raw["runs"]:
        name = _name(run)
        if canonical_json(run["exit_status"]) != "0" and not _out_of_memory(run):
            yield f"{name} ended with exit status {run['exit_status']}"
        if run["settings"].get("quick"):
            yield f"{name} is a quick one, made to try things out"
        if (run["tokens"] or run["samples"]) and raw["model"] is None and raw["case"] in MEASURES:
            yield f"{name} ran a model and the file names none"
        yield from (f"{name}: {fault}" for fault in _token_faults(run))


def _out_of_memory(run: Raw) -> bool:
    """Whether a cap's out of memory killer ended it: that is an outcome, if of all its side."""
    cap = run["settings"].get("memory_cap")
    return run["exit_status"] == -9 and isinstance(cap, Mapping) and bool(cap.get("oom_kills"))


def _token_faults(run: Raw) -> Iterator[str]:
    tokens, phases = run["tokens"], run["phases"]
    walls = [token["wall_ns"] for token in tokens]
    if any(b <= a for a, b in itertools.pairwise(walls)):
        yield "its tokens do not follow each other in time"
    if tokens and run["output"] and len(run["output"]) != len(tokens):
        yield f"{len(tokens)} tokens were timed and {len(run['output'])} generated"
    if any(token.keys() != tokens[-1].keys() for token in tokens):
        yield "its tokens do not all have the same counters"
    for token in tokens:
        found = ("hits", "ahead_hits", "demand_misses")
        if sum(token.get(name, 0) for name in found) > token.get("lookups", 1 << 62):
            yield "more hits and misses than lookups"
            break
    prompt_s, first_s = phases["prompt_s"], phases["first_token_s"]
    if prompt_s is not None and first_s is not None and prompt_s > first_s + _slack(first_s):
        yield "the prompt took longer than the prompt and the first token"
    if tokens and first_s is not None and abs(walls[0] / 1e9 - first_s) > _slack(first_s):
        yield "first_token_s is not when the first token was there"


def _slack(seconds: float) -> float:
    return max(CLOCK_SLACK_S, CLOCK_SLACK_SHARE * seconds)


def _repeats(result: Raw) -> Iterator[str]:
    raw = result["raw"]
    counted = [run for run in raw["runs"] if not run["warmup"]]
    if not counted:
        yield "there are no runs"
    last_warmup = {run["side"]: run["order"] for run in raw["runs"] if run["warmup"]}
    for run in counted:
        if run["order"] < last_warmup.get(run["side"], -1):
            yield f"{_name(run)} was made before a warm-up of its side"
    try:
        sides = summarize(result)["sides"]
    except (TypeError, ValueError, KeyError, ArithmeticError):
        return  # _summary has said so
    for side in dict.fromkeys(run["side"] for run in counted):
        runs = sum(run["side"] == side for run in counted)
        killed = sum(run["side"] == side and _out_of_memory(run) for run in counted)
        if killed:
            if killed < max(runs, REPEATS_MIN):
                yield f"side {side}: {killed} of {runs} runs were out of memory"
            continue
        metrics = sides.get(side, {})
        needed = MEASURES.get(raw["case"])
        if needed and needed not in metrics:
            yield f"side {side} has no {needed}, which {raw['case']} measures"
        if not metrics:
            yield f"side {side} has no figures"
        for name, figure in metrics.items():
            if ":" not in name and figure["n"] != runs:
                yield f"{side}, {name}: only {figure['n']} of {runs} runs have it"
            elif figure["n"] < REPEATS_MIN:
                yield f"{side}, {name}: n = {figure['n']}, want at least {REPEATS_MIN} repeats"


def _sides(result: Raw) -> Iterator[str]:
    """Runs of one side must be repeats of one thing."""
    by_side: dict[str, list[Raw]] = {}
    for run in result["raw"]["runs"]:
        if not run["warmup"]:
            by_side.setdefault(run["side"], []).append(run)
    model = result["raw"]["model"]
    for side, runs in by_side.items():
        for what in ("prompt_sha256", "cold"):
            if len({run[what] for run in runs}) > 1:
                yield f"side {side} mixes {_WORDS[what]} in one figure"
        for name in AGREE:
            if len({canonical_json(_setting(run, name, model)) for run in runs}) > 1:
                yield f"side {side} mixes settings in one figure: {name}"
        for run in runs:
            own = run["settings"].get("model_sha256")
            if own is not None and model is not None and own != model["sha256"]:
                yield f"{_name(run)} ran another model than the file names"


_WORDS = {"prompt_sha256": "prompts", "cold": "cold and warm runs"}


def _setting(run: Raw, name: str, model: Raw | None) -> Any:
    value = run["settings"].get(name)
    if value is None and name == "model_sha256" and model is not None:
        return model["sha256"]
    return value


def _pairs(result: Raw) -> Iterator[str]:
    raw = result["raw"]
    compare = raw["compare"]
    if compare is None:
        if raw["case"] == "peer":
            yield "the case is peer and no two sides are compared"
        return
    if len(compare) != 2 or compare[0] == compare[1]:
        yield f"compare: got {_short(compare)}, want two sides"
        return
    if "peer" in compare and raw["varies"]:
        yield f"esker and its peer must agree in all: {', '.join(raw['varies'])}"
    runs = [run for run in raw["runs"] if not run["warmup"] and run["side"] in compare]
    pairs: dict[Any, list[Raw]] = {}
    for run in runs:
        pairs.setdefault(run["pair"], []).append(run)
    if not pairs:
        yield "there are no pairs"
    for number, members in pairs.items():
        if number is None:
            yield from (f"{_name(run)} belongs to no pair" for run in members)
        elif sorted(run["side"] for run in members) != sorted(compare):
            sides = ", ".join(run["side"] for run in members)
            yield f"pair {number} is not one run of each side: it has {sides}"
        else:
            yield from (f"pair {number}: {why}" for why in _pair_faults(members, raw))
    places = {run["order"]: place for place, run in enumerate(runs)}
    for number, members in pairs.items():
        if len(members) == 2 and abs(places[members[0]["order"]] - places[members[1]["order"]]) > 1:
            yield f"pair {number}: the sides did not take turns, other runs lie between"


def _pair_faults(members: Sequence[Raw], raw: Raw) -> Iterator[str]:
    a, b = members
    varies = raw["varies"]
    if a["prompt_sha256"] != b["prompt_sha256"]:
        yield "the sides read different prompts"
    if a["cold"] != b["cold"] and "cold" not in varies:
        yield "one side is cold, the other warm"
    killed = _out_of_memory(a) or _out_of_memory(b)
    if len(a["tokens"]) != len(b["tokens"]) and not killed:
        yield f"the sides generated {len(a['tokens'])} and {len(b['tokens'])} tokens"
    for name in AGREE:
        ours, theirs = (_setting(run, name, raw["model"]) for run in members)
        if name not in varies and canonical_json(ours) != canonical_json(theirs):
            yield f"the sides differ in {name}: {_short(ours)} and {_short(theirs)}"
    if a["settings"].get("threads") is None and (a["tokens"] or a["samples"]):
        yield "how many threads ran is not recorded"


def _guard(result: Raw) -> Iterator[str]:
    raw = result["raw"]
    if raw["guard"] and raw["guard"]["stopped"]:
        yield f"the guard stopped it: {raw['guard']['reason']}"
    for run in raw["runs"]:
        if run["guard"] and run["guard"]["stopped"]:
            yield f"the guard stopped {_name(run)}: {run['guard']['reason']}"


def _software_notes(raw: Raw, folder: Path | None) -> Iterator[str]:
    software = raw["software"]
    source = software["source"]
    if software["native_sha256"] is None and raw["case"] != "disk":
        yield "no hash of the native library"
    if source is None:
        yield f"not made in a checkout: version {software['version']}"
        return
    commit = source["commit"]
    if source["dirty"]:
        yield f"the source tree had changes that are not in commit {commit[:12]}"
    if folder is None or git(folder, "rev-parse", "HEAD") is None:
        return
    if git(folder, "merge-base", "--is-ancestor", commit, "HEAD") is None:
        yield f"commit {commit[:12]} is not in the history of this repository"


def _run_notes(raw: Raw) -> Iterator[str]:
    runs = raw["runs"]
    for side in dict.fromkeys(run["side"] for run in runs if _out_of_memory(run)):
        yield f"side {side} has no figures: it was out of memory under its cap"
    if raw["quality"] is None:
        unpriced = [run for run in runs if not all("kl_nano" in t for t in run["tokens"])]
        for name, harmless in LOSSY.items():
            if any(run["settings"].get(name) not in harmless for run in unpriced):
                yield f"{name} changes results, and what it costs in quality is not measured"
    if raw["guard"] is None and any(run["guard"] is None for run in runs):
        yield "no guard watched the machine"
    texts = {prompt["text_sha256"] for prompt in raw["prompts"]} - {None}
    if any(run["settings"].get("profile_text_sha256") in texts for run in runs):
        yield "the expert profile was made from the prompt's own text: hit rates are in-sample"
    if raw["varies"]:
        yield f"the sides are meant to differ in {', '.join(raw['varies'])}"
    if raw["compare"]:
        firsts: dict[int, str] = {}
        for run in runs:
            if run["pair"] is not None and not run["warmup"]:
                firsts.setdefault(run["pair"], run["side"])
        if len(firsts) > 1 and len(set(firsts.values())) == 1:
            yield f"{next(iter(firsts.values()))} always went first"
    for run in runs:
        before, after = run["memory"]["before"] or {}, run["memory"]["after"] or {}
        if (after.get("swap_out_pages") or 0) > (before.get("swap_out_pages") or 0):
            yield f"the machine swapped during {_name(run)}"


def _name(run: Raw) -> str:
    return f"run {run['order']} ({run['side']})"
