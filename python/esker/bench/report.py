# SPDX-License-Identifier: MIT
"""Result files as one HTML page that needs nothing else: no script, no font, no image from outside.

Every figure is computed again from the raw runs, by summary.py; what stands in a file as its
summary is only judged, by audit.py, and the verdict is shown.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from .audit import audit_result
from .summary import median, statistics, summarize
from .svg import Chart
from .tables import format_figure, format_ratio, main_metrics, remarks, same_tokens

Result = Mapping[str, Any]

_TEMPLATE = Path(__file__).parent / "data" / "report.html"
_SERIES = 6  # colours of the template
_RATIOS = {"decode_rate": "decode", "prompt_rate": "prompt"}


def render(results: Sequence[tuple[str, Result]]) -> str:
    """The page for result files: (name, result) each."""
    parts = ["<h1>Measurements</h1>"]
    parts.append(
        f'<p class="soft">{len(results)} result files. Points are single measurements; middles are'
        " medians, and the range shown is all of it, least to largest.</p>"
    )
    parts += _peers(results)
    for name, result in results:
        parts += _section(Path(name).name, result)
    page = _TEMPLATE.read_text(encoding="utf-8")
    return page.replace("{{title}}", "Measurements").replace("{{body}}", "\n".join(parts))


def _section(name: str, result: Result) -> Iterator[str]:
    raw, summary = result["raw"], summarize(result)
    yield f"<h2>{escape(raw['case'])} <span class='soft'>{escape(name)}</span></h2>"
    yield _verdict(result)
    yield from (f"<p class='bad'>{escape(line)}</p>" for line in remarks(result))
    if (same := same_tokens(result)) is not None:
        yield f"<p>{escape(same)}</p>"
    yield _facts(raw)
    for chart in _CHARTS.get(raw["case"], ()):
        yield from chart(raw, summary)
    yield _table(raw, summary)


def _verdict(result: Result) -> str:
    verdict = audit_result(result)
    if verdict.accepted:
        notes = f" <span class='soft'>{escape('; '.join(verdict.notes))}</span>"
        return f"<p><span class='verdict good'>audit: accepted</span>{notes}</p>"
    first, more = verdict.refused[0], len(verdict.refused) - 1
    others = f" (and {more} more)" if more else ""
    return (
        f"<p><span class='verdict bad'>audit: refused</span> <span class='soft'>"
        f"{escape(first)}{others}</span></p>"
    )


def _facts(raw: Mapping[str, Any]) -> str:
    machine, software, model, peer = (
        raw[name] or {} for name in ("machine", "software", "model", "peer")
    )
    source = software.get("source") or {}
    commit = (
        f"commit {str(source.get('commit'))[:12]}{', with changes' if source.get('dirty') else ''}"
    )
    version = software.get("version")
    settings = raw["runs"][0]["settings"] if raw["runs"] else {}
    threads = "" if raw["case"] == "disk" else f"{settings.get('threads', '?')} threads of "
    cap = settings.get("memory_cap_bytes")
    facts = {
        "machine": f"{machine.get('cpu') or 'unknown processor'}, {threads}"
        f"{machine.get('cores_usable') or machine.get('cores')} cores,"
        f" {_gigabytes(machine.get('memory_bytes'))}, {machine.get('system') or ''}"
        f" {machine.get('kernel') or ''}",
        "model": f"{model.get('name') or 'no name'}, {_gigabytes(model.get('bytes'))}, sha256"
        f" {str(model.get('sha256'))[:16]}"
        if model
        else None,
        "esker": ", ".join(part for part in (version, commit if source else None) if part),
        "peer": f"{peer['name']}, {peer.get('package')} {peer.get('version')}" if peer else None,
        "memory cap": None if not cap else _gigabytes(cap),
        "prompts": "; ".join(f"{len(p['tokens'])} tokens of {p['source']}" for p in raw["prompts"]),
        "command": "esker " + " ".join(raw["argv"]),
    }
    rows = (f"<dt>{k}</dt><dd>{escape(v)}</dd>" for k, v in facts.items() if v)
    return f"<dl>{''.join(rows)}</dl>"


def _gigabytes(count: float | None) -> str:
    return "?" if count is None else f"{count / 1e9:.4g} GB"


def _table(raw: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    sides, pairs = summary["sides"], summary["pairs"]
    heads = ["", *sides, *(["/".join(raw["compare"])] if pairs else [])]
    lines = ["<tr>" + "".join(f"<th>{escape(head)}</th>" for head in heads) + "</tr>"]
    for name in main_metrics(raw["case"], sides):
        cells = [
            name.replace("_", " "),
            *(format_figure(side.get(name)) for side in sides.values()),
        ]
        if pairs:
            cells.append(format_ratio(pairs.get(name)))
        lines.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    table = f"<div class='wide'><table>{''.join(lines)}</table></div>"
    note = (
        "<p class='soft'>median (median absolute deviation); ratios: median (least to largest)</p>"
    )
    if len(lines) > 20:
        return f"<details><summary>all figures</summary>{table}{note}</details>"
    return f"<h3>Figures</h3>{table}{note}"


def _figure(title: str, chart: Chart, caption: str, keys: Sequence[str] = ()) -> str:
    names = (
        f"<span class='key'><i class='s{index % _SERIES}'></i>{escape(key)}</span>"
        for index, key in enumerate(keys)
    )
    legend = f"<p class='soft'>{''.join(names)}</p>" if keys else ""
    return (
        f"<h3>{escape(title)}</h3>{legend}<figure>{chart.render()}"
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def _style(index: int) -> str:
    return f"s{index % _SERIES}"


# Charts


def _peers(results: Sequence[tuple[str, Result]]) -> Iterator[str]:
    """The ratios of all files that compare with a peer, pair by pair."""
    rows: list[tuple[str, Mapping[str, Any]]] = []
    for name, result in results:
        if result["raw"]["case"] != "peer":
            continue
        pairs = summarize(result)["pairs"]
        stem = Path(name).stem
        rows += [(f"{what}, {stem}", pairs[key]) for key, what in _RATIOS.items() if key in pairs]
    if not rows:
        return
    numbers = [ratio for _, figure in rows for ratio in figure["ratios"]]
    low, high = min(*numbers, 0.8) / 1.15, max(*numbers, 1.25) * 1.3
    chart = Chart(
        "speed by the peer's",
        (low, high),
        x_label="times as fast as the peer",
        log_x=True,
        rows=[name for name, _ in rows],
    )
    chart.segment((1, -0.5), (1, len(rows) - 0.5), "one")
    for row, (_, figure) in enumerate(rows):
        for ratio in figure["ratios"]:
            chart.dot(ratio, row, "s0 light", f"{ratio:.3g} x", 5)
        middle = figure["median"]
        chart.segment((middle, row - 0.32), (middle, row + 0.32), "mark")
        chart.text(middle, row, f"{middle:.2f} x", dx=8, dy=-6)
    yield _figure(
        "Speed against the peer",
        chart,
        "A point is a pair of runs that followed each other, a bar their median. Right of the"
        " dashed line esker is faster.",
    )


def _steps(raw: Mapping[str, Any], summary: Mapping[str, Any]) -> Iterator[str]:
    """Milliseconds of every decoded token: median of the runs, and all of their range."""
    by_side: dict[str, list[list[float]]] = {}
    for run in raw["runs"]:
        walls = [token["wall_ns"] for token in run["tokens"]]
        if run["warmup"] or len(walls) < 2:
            continue
        steps = [(b - a) / 1e6 for a, b in itertools.pairwise(walls)]
        by_side.setdefault(run["side"], []).append(steps)
    if not by_side:
        return
    count = max(len(steps) for runs in by_side.values() for steps in runs)
    top = max(step for runs in by_side.values() for steps in runs for step in steps)
    chart = Chart(
        "time of each token",
        (1, max(count, 2)),
        (0, top * 1.05),
        x_label="token after the first",
        y_label="ms",
    )
    for index, runs in enumerate(by_side.values()):
        columns = [[s[i] for s in runs if i < len(s)] for i in range(max(map(len, runs)))]
        figures = [(i + 1, statistics(column)) for i, column in enumerate(columns)]
        chart.band(
            [(i, figure["min"]) for i, figure in figures],
            [(i, figure["max"]) for i, figure in figures],
            _style(index),
        )
        chart.line([(i, figure["median"]) for i, figure in figures], _style(index))
        if len(figures) == 1:
            chart.dot(1, figures[0][1]["median"], _style(index))
    n = "; ".join(f"{side} n = {len(runs)}" for side, runs in by_side.items())
    yield _figure(
        "Decode, token by token",
        chart,
        f"Line: median of the runs. Band: least to largest. {n}.",
        list(by_side),
    )


def _shares(raw: Mapping[str, Any], summary: Mapping[str, Any]) -> Iterator[str]:
    """What each kernel reaches of a plain read of the same bytes, made in turns with it."""
    pairs = {
        name.removesuffix(":rate"): figure
        for name, figure in summary["pairs"].items()
        if name.endswith(":rate")
    }
    if not pairs:
        return
    kernels = summary["sides"][raw["compare"][0]]
    highest = max(1.0, *(figure["max"] for figure in pairs.values()))
    chart = Chart(
        "share of the read bandwidth",
        (0, highest * 108),
        x_label="% of the bandwidth of a plain read of the same bytes",
        rows=list(pairs),
    )
    for row, (name, figure) in enumerate(pairs.items()):
        share = 100 * figure["median"]
        chart.box(0, share, row - 0.32, row + 0.32, "s0", f"{share:.1f} %")
        chart.segment((100 * figure["min"], row), (100 * figure["max"], row), "whisker")
        rate = kernels[f"{name}:rate"]["median"] / 1e9
        chart.text(100 * figure["max"], row, f"{share:.0f} %, {rate:.3g} GB/s", dx=8)
    chart.segment((100, -0.5), (100, len(pairs) - 0.5), "one")
    yield _figure(
        "Kernels against the memory",
        chart,
        "Bar: median over the runs; line: least to largest. Every pass over the matrices is"
        " followed by a plain read of them with the same threads.",
    )


def _stalls(raw: Mapping[str, Any], summary: Mapping[str, Any]) -> Iterator[str]:
    """Time of a token, and how much of it is waiting for the disk, against the cache's size."""
    sizes: dict[str, float] = {}
    for run in raw["runs"]:
        if run["settings"].get("arena_bytes"):
            sizes.setdefault(run["side"], run["settings"]["arena_bytes"])
    sides = {
        side: summary["sides"][side]
        for side in sorted(sizes, key=lambda side: sizes[side])
        if {"decode_ms", "decode_wait_ms"} <= summary["sides"].get(side, {}).keys()
    }
    if not sides:
        return
    scale, unit = (1e9, "GB") if max(sizes.values()) >= 1e9 else (1e6, "MB")
    sizes = {side: size / scale for side, size in sizes.items()}
    widest = max(sizes[side] for side in sides)
    top = max(figures["decode_ms"]["max"] for figures in sides.values())
    chart = Chart(
        "stall against cache size",
        (0, widest * 1.12),
        (0, top * 1.12),
        x_label=f"memory for experts, {unit}",
        y_label="ms a token",
    )
    for index, name in enumerate(("decode_ms", "decode_wait_ms")):
        points = []
        for side, figures in sides.items():
            figure, x = figures[name], sizes[side]
            points.append((x, figure["median"]))
            chart.segment((x, figure["min"]), (x, figure["max"]), "whisker")
            chart.dot(x, figure["median"], _style(index), f"{side}: {figure['median']:.3g} ms", 4.5)
            if index == 0 and "decode_hit_rate" in figures:
                rate = 100 * figures["decode_hit_rate"]["median"]
                chart.text(x, figure["max"], f"{rate:.0f} % hits", anchor="middle", dy=-8)
        chart.line(points, _style(index))
    yield _figure(
        "Stall against cache size",
        chart,
        "Medians, with the range of the runs. What lies between the lines is computing.",
        ["a token in all", "of it waiting for the disk"],
    )


def _disk(raw: Mapping[str, Any], summary: Mapping[str, Any]) -> Iterator[str]:
    """Bandwidth by size of a read, a line for each depth."""
    lines: dict[str, list[tuple[float, Mapping[str, Any]]]] = {}
    for side in summary["sides"].values():
        for name, figure in side.items():
            what, _, metric = name.rpartition(":")
            parts = what.split("/")
            if metric == "rate" and len(parts) == 3 and parts[0] == "read":
                size = float(parts[1].removesuffix("B"))
                lines.setdefault(parts[2].replace("depth", "depth "), []).append((size, figure))
    if not lines:
        return
    sizes = [size / 1e3 for line in lines.values() for size, _ in line]
    top = max(figure["max"] for line in lines.values() for _, figure in line) / 1e6
    chart = Chart(
        "disk",
        (min(sizes) / 1.3, max(sizes) * 1.3),
        (0, top * 1.05),
        x_label="bytes of a read, kB",
        y_label="MB/s",
        log_x=True,
    )
    for index, line in enumerate(lines.values()):
        points = []
        for size, figure in sorted(line, key=lambda point: point[0]):
            x = size / 1e3
            points.append((x, figure["median"] / 1e6))
            chart.segment((x, figure["min"] / 1e6), (x, figure["max"] / 1e6), "whisker")
            chart.dot(x, points[-1][1], _style(index), f"{points[-1][1]:.0f} MB/s")
        chart.line(points, _style(index))
    yield _figure("Direct reads", chart, "Medians, with the range of the runs.", list(lines))


def _phase_dots(name: str, title: str, unit: str) -> Callable[..., Iterator[str]]:
    """A chart of one figure of each run, a row for each side."""

    def draw(raw: Mapping[str, Any], summary: Mapping[str, Any]) -> Iterator[str]:
        sides = {side: f[name] for side, f in summary["sides"].items() if name in f}
        if not sides:
            return
        values: dict[str, list[float]] = {side: [] for side in sides}
        prompts = {prompt["tokens_sha256"]: len(prompt["tokens"]) for prompt in raw["prompts"]}
        for run in raw["runs"]:
            value = run["phases"].get("prompt_s" if name == "prompt_rate" else name)
            if run["warmup"] or run["exit_status"] or value is None or run["side"] not in values:
                continue
            n_prompt = prompts.get(run["prompt_sha256"], 0)
            values[run["side"]].append(n_prompt / value if name == "prompt_rate" else value)
        top = max(figure["max"] for figure in sides.values())
        chart = Chart(title, (0, top * 1.15), x_label=unit, rows=list(sides))
        for row, (side, figure) in enumerate(sides.items()):
            for value in values[side]:
                chart.dot(value, row, "s0 light", f"{value:.4g} {unit}", 5)
            middle = median(values[side])
            chart.segment((middle, row - 0.32), (middle, row + 0.32), "mark")
            chart.text(figure["max"], row, f"median {middle:.4g}", dx=10)
        yield _figure(title, chart, "A point is a run, a bar the median of its side.")

    return draw


_CHARTS: dict[str, tuple[Callable[..., Iterator[str]], ...]] = {
    "load": (_phase_dots("load_s", "Opening the model", "s"),),
    "prefill": (_phase_dots("prompt_rate", "Reading prompts", "tokens/s"),),
    "decode": (_steps,),
    "ops": (_shares,),
    "disk": (_disk,),
    "stream": (_stalls, _steps),
    "peer": (_steps, _phase_dots("prompt_rate", "Reading the prompt", "tokens/s")),
}
