# SPDX-License-Identifier: MIT
"""Figures of a result by name, such as summary.sides.esker.decode_rate.median, and what they are.

Owns: which words in a text contradict a figure: its side, phase, statistic, prompt, temperature.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

STATISTICS = ("median", "min", "max", "mad", "n")
# Unit of a figure -> dimension and scale of what may be printed.
_DIMENSIONS = {
    "tokens/s": ("tokens/s", 1.0),
    "s": ("time", 1.0),
    "ms": ("time", 1e-3),
    "ns": ("time", 1e-9),
    "B": ("B", 1.0),
    "B/s": ("B/s", 1.0),
    "x": ("x", 1.0),
    "share": ("%", 100.0),
    "count": ("count", 1.0),
}
_PHASES = {
    "decode": r"decod\w*|generat\w*",
    "prompt": r"prompt|prefill\w*",
    "load": r"load(?:s|ed|ing)?|open(?:s|ed|ing)?|start-?up",
    "first token": r"first token",
    "fill": r"fill(?:s|ed|ing)?",
}
_STATISTIC_WORDS = {
    "median": r"median|typical(?:ly)?",
    "min": r"min(?:imum)?|lowest|at least",
    "max": r"max(?:imum)?|highest|at most|up to",
    "mad": r"spread|deviation|MAD|±",
    "mean": r"mean|average|on average",
    "best": r"best",
    "worst": r"worst",
}
_PROMPT_LENGTH = re.compile(
    r"(\d[\d,]*)(K?)[- ]tokens?[- ]prompt|(\d[\d,]*)(K) prompt|prompt of (\d[\d,]*)()(?=[ ,.;)])",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Figure:
    """One number of a result.  side, metric, statistic are None where it has none."""

    name: str
    value: float
    dimension: str
    scale: float
    side: str | None = None
    metric: str | None = None
    statistic: str | None = None
    pair: tuple[str, str] | None = None
    better: str | None = None


class NoFigure(LookupError):
    """The result has no such figure; the argument says why."""


def find_figure(result: Mapping[str, Any], name: str) -> Figure:
    """A figure by its name.  Keys may have dots.  Raises NoFigure."""
    keys, value = _walk(result, name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise NoFigure(f"{name} is no number")
    if keys[0] == "raw" and keys[1] not in ("machine", "model"):
        raise NoFigure(f"{name} is a raw record of one run, and no figure; quote the summary")
    if len(keys) >= 4 and keys[:2] == ["summary", "sides"]:
        side, metric, statistic = keys[2:5]
        nature = result["summary"]["sides"][side][metric]
        return _figure(name, value, nature, statistic, side=side, metric=metric)
    if len(keys) == 4 and keys[:2] == ["summary", "pairs"]:
        metric, statistic = keys[2:]
        nature = result["summary"]["pairs"][metric]
        first, _, second = nature["of"].partition("/")
        return _figure(name, value, nature, statistic, metric=metric, pair=(first, second))
    unit = "B" if "bytes" in keys[-1] else "count"
    return Figure(name, value, *_DIMENSIONS[unit])


def _figure(
    name: str, value: float, nature: Mapping[str, Any], statistic: str, **what: Any
) -> Figure:
    unit = "count" if statistic == "n" else nature["unit"]
    better = nature["better"]
    return Figure(name, value, *_DIMENSIONS[unit], statistic=statistic, better=better, **what)


def _walk(result: Mapping[str, Any], name: str) -> tuple[list[str], Any]:
    at: Any = result
    parts = name.split(".")
    keys: list[str] = []
    while parts:
        if isinstance(at, list) and parts[0].isdigit() and int(parts[0]) < len(at):
            keys.append(parts[0])
            at, parts = at[int(parts[0])], parts[1:]
            continue
        for count in range(len(parts), 0, -1):
            key = ".".join(parts[:count])
            if isinstance(at, Mapping) and key in at:
                keys.append(key)
                at, parts = at[key], parts[count:]
                break
        else:
            raise NoFigure(f"there is no {'.'.join([*keys, parts[0]])}")
    return keys, at


def all_figures(result: Mapping[str, Any]) -> Iterator[Figure]:
    """Every figure of the summary but the counts n."""
    for group in ("sides", "pairs"):
        for first, inner in result["summary"][group].items():
            metrics = {f".{name}": figure for name, figure in inner.items()}
            for middle, nature in metrics.items() if group == "sides" else [("", inner)]:
                for statistic in STATISTICS[:-1]:
                    if statistic in nature:
                        yield find_figure(result, f"summary.{group}.{first}{middle}.{statistic}")


def contradiction(figure: Figure, result: Mapping[str, Any], contexts: Iterable[str]) -> str | None:
    """What the words around a number say that its figure is not.

    contexts: texts that may say it, the most telling first; the first that says anything of a
    kind decides.
    """
    contexts = list(contexts)
    return (
        _phase_contradicts(figure, contexts)
        or _statistic_contradicts(figure, contexts)
        or _side_contradicts(figure, result, contexts)
        or _runs_contradict(figure, result, contexts)
    )


def _said(classes: Mapping[str, str], contexts: Iterable[str]) -> set[str]:
    for context in contexts:
        found = {
            name
            for name, pattern in classes.items()
            if re.search(rf"(?<!\w)(?:{pattern})(?!\w)", context, re.IGNORECASE)
        }
        if found:
            return found
    return set()


def _phase(metric: str) -> str | None:
    base = metric.rpartition(":")[2]
    for start, phase in (
        ("decode", "decode"),
        ("step", "decode"),
        ("prompt", "prompt"),
        ("load", "load"),
        ("first_token", "first token"),
        ("arena_fill", "fill"),
    ):
        if base.startswith(start):
            return phase
    return None


def _phase_contradicts(figure: Figure, contexts: list[str]) -> str | None:
    phase = _phase(figure.metric or "")
    said = _said(_PHASES, contexts)
    if phase is None or not said or phase in said:
        return None
    return f"{figure.name} is of {phase}, the text says {' and '.join(sorted(said))}"


def _statistic_contradicts(figure: Figure, contexts: list[str]) -> str | None:
    is_ = figure.statistic
    if is_ is None or is_ == "n":
        return None
    said = _said(_STATISTIC_WORDS, contexts)
    fits = {is_}
    if figure.better and is_ in ("min", "max"):
        fits.add("best" if (is_ == "min") == (figure.better == "lower") else "worst")
    if is_ == "median" and not said:
        return None
    if said & fits:
        return None
    said_words = (
        f"the text says {' and '.join(sorted(said))}" if said else "the text does not say so"
    )
    return f"{figure.name} is the {is_}, {said_words}"


def _side_contradicts(figure: Figure, result: Mapping[str, Any], contexts: list[str]) -> str | None:
    if figure.side is None:
        return None
    names = {side: re.escape(side) for side in result["summary"]["sides"]}
    peer = result["raw"]["peer"]
    if "peer" in names and peer:
        aliases = [peer["name"], str(peer.get("package") or peer["name"])]
        names["peer"] += "|" + "|".join(map(re.escape, aliases))
    names = {side: f"(?:{pattern})(?:'s)?" for side, pattern in names.items()}
    said = _said(names, contexts)
    if not said or figure.side in said:
        return None
    return f"{figure.name} is of {figure.side}, the text says {' and '.join(sorted(said))}"


def _runs_contradict(figure: Figure, result: Mapping[str, Any], contexts: list[str]) -> str | None:
    """Cold or warm, and how long the prompt was."""
    sides = figure.pair or ((figure.side,) if figure.side else ())
    runs = [r for r in result["raw"]["runs"] if r["side"] in sides and not r["warmup"]]
    if not runs:
        return None
    said = _said({"cold": "cold", "warm": "warm"}, contexts)
    are = {"cold" if run["cold"] else "warm" for run in runs}
    if said and not said & are:
        return f"the runs were {' and '.join(sorted(are))}, the text says {said.pop()}"
    hashes = {run["prompt_sha256"] for run in runs}
    lengths = {len(p["tokens"]) for p in result["raw"]["prompts"] if p["tokens_sha256"] in hashes}
    for context in contexts:
        match = _PROMPT_LENGTH.search(context)
        if match and lengths:
            number, kilo = next((match[i], match[i + 1]) for i in (1, 3, 5) if match[i] is not None)
            count = int(number.replace(",", ""))
            if (count if not kilo else count * 1024) in lengths:
                return None
            have = " and ".join(map(str, sorted(lengths)))
            return f"the prompt has {have} tokens, the text says {match[0]!r}"
    return None
