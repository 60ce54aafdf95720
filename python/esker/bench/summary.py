# SPDX-License-Identifier: MIT
"""The one function that makes figures from raw runs; bench writes with it, audit checks with it.

What it must not do: measure, round, or leave out a run, but warm-ups and runs that did not end
well, which it counts.  Only sums, products and quotients of raw numbers in the order of the file,
so that any machine computes the same bits.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Raw = Mapping[str, Any]
Values = dict[str, list[float]]

_PHASES = ("load_s", "arena_fill_s", "prompt_s", "first_token_s")
# Figures of memory: name -> (key of the readings, how the readings of a run become one figure).
_MEMORY_PEAK = {"rss_peak_bytes": ("rss_peak_bytes", "rss_bytes")}
_MEMORY_RISE = {
    "process_major_faults": "process_major_faults",
    "major_faults": "major_faults",
    "swap_in_pages": "swap_in_pages",
    "swap_out_pages": "swap_out_pages",
}
_RATES = {
    "decode_rate": "tokens/s",
    "prompt_rate": "tokens/s",
    "decode_read_rate": "B/s",
    "decode_disk_rate": "B/s",
}
_TIMES_MS = ("decode_ms", "step_ms_median", "step_ms_max")


def summarize(result: Mapping[str, Any]) -> dict[str, Any]:
    """Every figure of a result, from its raw part alone.

    {"sides": {side: {metric: {"unit", "better", "n", "median", "mad", "min", "max"}}},
     "pairs": {metric: {"of": "a/b", "unit": "x", "better", "ratios", "n", "median", ...}},
     "failed": {side: runs that did not end well},
     "guard": {"stopped", "available_min_bytes", "samples"}}

    mad is the median of the deviations from the median.  A metric that a side has no numbers for
    is left out.  A pair's ratio is side a's figure by side b's, pair by pair.
    """
    raw = result["raw"]
    prompts = {prompt["tokens_sha256"]: len(prompt["tokens"]) for prompt in raw["prompts"]}
    counted = [run for run in raw["runs"] if not run["warmup"]]
    runs = [
        (run, run_values(run, prompts.get(run["prompt_sha256"])))
        for run in counted
        if not run["exit_status"]
    ]
    failed = [run["side"] for run in counted if run["exit_status"]]
    sides: dict[str, Values] = {}
    for run, values in runs:
        side = sides.setdefault(run["side"], {})
        for name, numbers in values.items():
            side.setdefault(name, []).extend(numbers)
    return {
        "sides": {
            side: {
                name: {**_nature(name), **statistics(numbers)} for name, numbers in values.items()
            }
            for side, values in sides.items()
        },
        "pairs": _pairs(raw, runs),
        "failed": {side: failed.count(side) for side in dict.fromkeys(failed)},
        "guard": _guard(raw),
    }


def statistics(numbers: Sequence[float]) -> dict[str, Any]:
    """n, median, spread (median absolute deviation, extremes) of one number or more."""
    middle = median(numbers)
    return {
        "n": len(numbers),
        "median": middle,
        "mad": median([abs(number - middle) for number in numbers]),
        "min": min(numbers),
        "max": max(numbers),
    }


def median(numbers: Sequence[float]) -> float:
    ordered = sorted(numbers)
    half = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[half]
    return (ordered[half - 1] + ordered[half]) / 2


def run_values(run: Raw, n_prompt: int | None) -> Values:
    """The figures of one run: one number each, of samples as many as there are."""
    values: Values = {}
    for name in _PHASES:
        if run["phases"].get(name) is not None:
            values[name] = [run["phases"][name]]
    prompt_s = run["phases"].get("prompt_s")
    if n_prompt and prompt_s:
        values["prompt_rate"] = [n_prompt / prompt_s]
    values.update(_decode_values(run["tokens"]))
    for sample in run["samples"]:
        key = sample_key(sample)
        values.setdefault(f"{key}:ns", []).append(sample["ns"])
        if sample.get("bytes") and sample["ns"]:
            values.setdefault(f"{key}:rate", []).append(sample["bytes"] / (sample["ns"] / 1e9))
    values.update(_memory_values(run["memory"]))
    return values


def sample_key(sample: Raw) -> str:
    """What a sample is of, in one word: name, type and shape, such as gemv/Q4_K/2560x640."""
    shape = sample.get("shape")
    parts = [sample["name"], sample.get("type"), "x".join(map(str, shape)) if shape else None]
    return "_".join("/".join(str(part) for part in parts if part is not None).split())


def _decode_values(tokens: Sequence[Raw]) -> Values:
    """Of the steps between tokens.  The first token is the prompt's: its step is in no figure."""
    steps = len(tokens) - 1
    if steps < 1:
        return {}
    span_ns = tokens[-1]["wall_ns"] - tokens[0]["wall_ns"]
    if span_ns <= 0:
        return {}
    each = [b["wall_ns"] - a["wall_ns"] for a, b in itertools.pairwise(tokens)]
    values: Values = {
        "decode_rate": [steps / (span_ns / 1e9)],
        "decode_ms": [span_ns / steps / 1e6],
        "step_ms_median": [median(each) / 1e6],
        "step_ms_max": [max(each) / 1e6],
    }
    sums: dict[str, int] = {}
    for token in tokens[1:]:
        for name, count in token.items():
            if name != "wall_ns":
                sums[name] = sums.get(name, 0) + count
    for name, total in sums.items():
        if name.endswith("_ns"):
            values[f"decode_{name[:-3]}_ms"] = [total / steps / 1e6]
        else:
            values[f"decode_{name}"] = [total / steps]
    if sums.get("lookups"):
        values["decode_hit_rate"] = [sums.get("hits", 0) / sums["lookups"]]
    if "bytes_read" in sums:
        values["decode_read_rate"] = [sums["bytes_read"] / (span_ns / 1e9)]
    if sums.get("read_ns"):
        values["decode_disk_rate"] = [sums["bytes_read"] / (sums["read_ns"] / 1e9)]
    return values


def _memory_values(memory: Raw) -> Values:
    readings = [memory.get("before"), *memory.get("during", ()), memory.get("after")]
    present: list[Raw] = [reading for reading in readings if reading]
    values: Values = {}
    for name, keys in _MEMORY_PEAK.items():
        seen = _seen(present, keys)
        if seen:
            values[name] = [max(seen)]
    low = _seen(present, ("available_bytes",))
    if low:
        values["available_min_bytes"] = [min(low)]
    if memory.get("before") and memory.get("after"):
        for name, key in _MEMORY_RISE.items():
            before, after = memory["before"].get(key), memory["after"].get(key)
            if before is not None and after is not None:
                values[name] = [after - before]
    return values


def _seen(readings: Iterable[Raw], keys: Iterable[str]) -> list[float]:
    keys = tuple(keys)
    return [r[key] for r in readings for key in keys if r.get(key) is not None]


def _nature(name: str) -> dict[str, str | None]:
    """Unit of a metric, and which way is better (None: neither)."""
    base = name.rpartition(":")[2]
    if base in _RATES or base == "rate":
        return {"unit": _RATES.get(base, "B/s"), "better": "higher"}
    if base == "ns":
        return {"unit": "ns", "better": "lower"}
    if base in _PHASES:
        return {"unit": "s", "better": "lower"}
    if base.endswith("_ms") or base in _TIMES_MS:
        return {"unit": "ms", "better": "lower"}
    if base == "decode_hit_rate":
        return {"unit": "share", "better": "higher"}
    if base == "rss_peak_bytes":
        return {"unit": "B", "better": "lower"}
    if "bytes" in base:
        return {"unit": "B", "better": None}
    return {"unit": "count", "better": None}


def _pairs(raw: Raw, runs: Sequence[tuple[Raw, Values]]) -> dict[str, Any]:
    if not raw["compare"]:
        return {}
    first, second = raw["compare"]
    by_pair: dict[int, dict[str, Values]] = {}
    for run, values in runs:
        if run["pair"] is not None and run["side"] in (first, second):
            by_pair.setdefault(run["pair"], {})[run["side"]] = values
    ratios: Values = {}
    for _, both in sorted(by_pair.items()):
        if len(both) < 2:
            continue
        for name, numbers in both[first].items():
            others = both[second].get(name)
            if others and _nature(name)["better"] and median(others) > 0:
                ratios.setdefault(name, []).append(median(numbers) / median(others))
    return {
        name: {
            "of": f"{first}/{second}",
            "unit": "x",
            "better": _nature(name)["better"],
            "ratios": numbers,
            **statistics(numbers),
        }
        for name, numbers in ratios.items()
    }


def _guard(raw: Raw) -> dict[str, Any]:
    reports = [raw["guard"], *(run["guard"] for run in raw["runs"])]
    present: list[Raw] = [report for report in reports if report]
    lows = [r["available_min_bytes"] for r in present if r["available_min_bytes"] is not None]
    return {
        "stopped": any(report["stopped"] for report in present),
        "available_min_bytes": min(lows, default=None),
        "samples": sum(report["samples"] for report in present),
    }
