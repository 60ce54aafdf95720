# SPDX-License-Identifier: MIT
"""The summary of a result as tables for people.  Every figure is the summary's; nothing here
computes one but the formats do."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE
from rich.console import Console, RenderableType
from rich.table import Table

Figure = Mapping[str, Any]

# What a person looks at first, in this order; the file has all of it.
_MAIN = (
    "load_s",
    "arena_fill_s",
    "prompt_s",
    "prompt_rate",
    "first_token_s",
    "decode_ms",
    "decode_rate",
    "step_ms_max",
    "decode_hit_rate",
    "decode_demand_misses",
    "decode_bytes_read",
    "decode_wait_ms",
    "decode_read_rate",
    "decode_disk_rate",
    "decode_kl_nano",
    "decode_same_top1",
    "rss_peak_bytes",
)
_WIDTH_PIPED = 110
_COLD_SHARE = 0.01  # of a file that may be cached and still count as cold


def print_summary(result: Mapping[str, Any], out: str) -> None:
    """To standard output."""
    width = None if sys.stdout.isatty() else _WIDTH_PIPED
    console = Console(file=sys.stdout, width=width, highlight=False, markup=False, emoji=False)
    with console.capture() as captured:  # rich would end the process when the reader is gone
        console.print(_table(result))
        for line in (same_tokens(result), *stops(result), *kernels(result), *remarks(result)):
            if line:
                console.print(line)
        console.print(f"written to {out}")
    sys.stdout.write(captured.get())
    sys.stdout.flush()


def remarks(result: Mapping[str, Any]) -> list[str]:
    """What has to be known beside the figures."""
    lines = []
    runs = result["raw"]["runs"]
    for side in dict.fromkeys(run["side"] for run in runs):
        own = [run for run in runs if run["side"] == side]
        ended = [run for run in own if "ended" in run["settings"]]
        if ended:
            how = ended[0]["settings"]["ended"]
            lines.append(f"{side}: {len(ended)} of {len(own)} runs ended early: {how}")
    size = (result["raw"]["model"] or {}).get("bytes") or 0
    held = [run["settings"].get("file_cached_bytes") or 0 for run in runs if run["cold"] and size]
    if any(count > _COLD_SHARE * size for count in held):
        most = 100 * max(held) / size
        lines.append(
            f"cold runs began with up to {most:.1f} % of the file in the page cache: another"
            " process holds it, or the file system keeps it"
        )
    if any(run["settings"].get("quick") for run in runs):
        lines.append("made with --quick: not to be quoted")
    return lines


def same_tokens(result: Mapping[str, Any]) -> str | None:
    """How often two sides found the same token likeliest: whether they did the same work."""
    raw = result["raw"]
    if raw["case"] != "peer" or not raw["compare"]:
        return None
    outputs: dict[Any, dict[str, list[int]]] = {}
    for run in raw["runs"]:
        outputs.setdefault(run["pair"], {})[run["side"]] = run["output"]
    first, second = raw["compare"]
    pairs = [
        pair
        for both in outputs.values()
        for pair in zip(both.get(first, ()), both.get(second, ()), strict=False)
    ]
    same = sum(ours == theirs for ours, theirs in pairs)
    return f"both sides found the same token likeliest at {same} of {len(pairs)} places"


def stops(result: Mapping[str, Any]) -> list[str]:
    """What a stop for the host adds to a window, by each clock."""
    raw, sides = result["raw"], result["summary"]["sides"]
    if raw["case"] != "handshake":
        return []
    segments = raw["runs"][0]["settings"]["segments"]
    lines = []
    for name, clock in (("window:ns", "for the host"), ("device:ns", "on the device's clock")):
        plain = sides["none"][name]["median"]
        if not plain:
            continue  # a device without a clock
        bare, covered = (
            (sides[side][name]["median"] - plain) / segments / 1e3 for side in ("bare", "covered")
        )
        lines.append(f"a stop adds {bare:.1f} us {clock}, {covered:.1f} us with work to cover it")
    return lines


def kernels(result: Mapping[str, Any]) -> list[str]:
    """Of a GPU's kernels: the tile, and what it takes of a multiprocessor where the device says."""
    settings = result["raw"]["runs"][0]["settings"]
    if result["raw"]["case"] != "ops" or "kernels" not in settings:
        return []
    lines = [f"a launch takes {settings['launch_ns'] / 1e3:.1f} us at least"]
    for k in settings["kernels"]:
        text = f"{k['name']} {k['type']} {k['shape'][0]}x{k['shape'][1]}: tile {k['tile']}"
        if k["registers"]:
            text += f", {k['registers']} registers, {k['spilled_bytes']} bytes spilled"
            text += f", {k['threadgroup_bytes']} bytes of threadgroup memory"
        lines.append(text)
    return lines


def _table(result: Mapping[str, Any]) -> RenderableType:
    raw, summary = result["raw"], result["summary"]
    sides, pairs = summary["sides"], summary["pairs"]
    count = max((figure["n"] for side in sides.values() for figure in side.values()), default=0)
    table = Table(
        box=SIMPLE,
        title=f"{raw['case']}, median and median deviation, n up to {count}",
        caption="ratios are medians of the pairs' ratios" if pairs else None,
    )
    table.add_column("")
    for side in sides:
        table.add_column(side, justify="right")
    if pairs:
        table.add_column("/".join(raw["compare"]), justify="right")
    for name in main_metrics(raw["case"], sides):
        cells = [format_figure(side.get(name)) for side in sides.values()]
        if pairs:
            cells.append(format_ratio(pairs.get(name)))
        table.add_row(name.replace("_", " ") if ":" not in name else name, *cells)
    return table


def main_metrics(case: str, sides: Mapping[str, Mapping[str, Figure]]) -> list[str]:
    present = list(dict.fromkeys(name for side in sides.values() for name in side))
    if case == "handshake":
        return [name for name in present if name.endswith(":ns")]
    if case == "ops":
        return [name for name in present if name.endswith(":rate")]
    if case == "disk":
        return [name for name in present if not name.startswith("read/") and ":" in name or
                name.endswith(":rate")]  # fmt: skip
    return [name for name in _MAIN if name in present]


def format_ratio(figure: Figure | None) -> str:
    if figure is None:
        return "-"
    return f"{figure['median']:.3g} x ({figure['min']:.3g} to {figure['max']:.3g})"


def format_figure(figure: Figure | None) -> str:
    """ "12.3 ms (0.4)": median and median deviation in the same unit."""
    if figure is None:
        return "-"
    scale, unit = _scale(figure["median"], figure["unit"])
    return f"{figure['median'] / scale:.4g} {unit} ({figure['mad'] / scale:.2g})".replace("  ", " ")


def _scale(value: float, unit: str) -> tuple[float, str]:
    steps = {
        "B": ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")),
        "B/s": ((1e9, "GB/s"), (1e6, "MB/s")),
        "ns": ((1e9, "s"), (1e6, "ms"), (1e3, "us")),
        "share": ((0.01, "%"),),
        "count": ((1, ""),),
    }
    for scale, name in steps.get(unit, ()):
        if value >= scale or unit in ("share", "count"):
            return scale, name
    return 1, unit
