# SPDX-License-Identifier: MIT
"""Tables for people: the stream report of a generation, what a model file is, its memory plan.

Every figure is computed from the counters or the file; nothing here measures.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from rich.box import SIMPLE
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from .session import Completion

_WIDTH_PIPED = 110  # columns where there is no terminal to ask


def format_bytes(count: float) -> str:
    """1234567 -> "1.23 MB", powers of 1000 as disks and sizes in options have them."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 999.5:
            return f"{count:.0f} B" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.4g} TB"


def print_stream_report(result: Completion) -> None:
    """The report of one generation, to standard error."""
    _print(sys.stderr, stream_table(result))


def print_profile(times: Sequence[Mapping[str, Any]]) -> None:
    """Time by op, largest first, to standard error."""
    _print(sys.stderr, profile_table(times))


def profile_table(times: Sequence[Mapping[str, Any]]) -> Table:
    """Op, calls, milliseconds, share of all that was computed."""
    table = Table("op", box=SIMPLE, title="profile")
    for name in ("calls", "ms", "share"):
        table.add_column(name, justify="right")
    total = sum(row["ns"] for row in times) or 1
    for row in sorted(times, key=lambda row: -row["ns"]):
        name = f"{row['op']} {row['role'].removesuffix('.weight')}".strip()
        table.add_row(
            name, f"{row['calls']}", f"{row['ns'] / 1e6:.1f}", f"{100 * row['ns'] / total:.1f} %"
        )
    return table


def stream_table(result: Completion) -> Table:
    """Prompt and decode apart, each in all and per token."""
    timings = result.timings
    # The prompt's last token gives the first new one; each later token is one decode step.
    parts = (
        (len(result.prompt_tokens), timings.prefill_s, result.prompt_counters),
        (max(len(result.tokens) - 1, 0), timings.decode_s, result.decode_counters),
    )
    table = Table(
        box=SIMPLE,
        title="stream report",
        caption=f"ended by {result.finish_reason}; seed {result.seed}; model opened in"
        f" {timings.load_s:.3f} s; first token after {timings.first_token_s:.3f} s;"
        f" memory planned {format_bytes(result.plan['total_bytes'])}",
    )
    table.add_column("")
    for name in ("prompt", "per token", "decode", "per token"):
        table.add_column(name, justify="right")

    def row(name: str, values: list[tuple[str, str]]) -> None:
        table.add_row(name, *(cell for pair in values for cell in pair))

    row("tokens", [(str(tokens), "") for tokens, _, _ in parts])
    row("seconds", [(f"{s:.3f}", _per(s, n, "{:.4f}")) for n, s, _ in parts])
    row("tokens/s", [(f"{n / s:.1f}" if s > 0 and n else "-", "") for n, s, _ in parts])
    for key in ("lookups", "hits"):
        row(key, [(str(c[key]), _per(c[key], n)) for n, _, c in parts])
    row("hit rate", [(_share(c["hits"], c["lookups"]), "") for _, _, c in parts])
    for key, name in (
        ("ahead_hits", "read ahead"),
        ("ahead_late", "  waited for"),
        ("demand_misses", "demand misses"),
        ("ahead_wasted", "read ahead in vain"),
        ("evictions", "evictions"),
    ):
        row(name, [(str(c[key]), _per(c[key], n)) for n, _, c in parts])
    for key, name in (("bytes_read", "bytes read"), ("bytes_wasted", "  in vain")):
        row(name, [_bytes_pair(c[key], n) for n, _, c in parts])
    row(
        "  while reading",
        [
            (f"{format_bytes(c['bytes_read'] / c['read_ns'] * 1e9)}/s" if c["read_ns"] else "-", "")
            for _, _, c in parts
        ],
    )
    for key, name in (("after_ns", "after-turn ms"), ("wait_ns", "waiting ms")):
        row(name, [(f"{c[key] / 1e6:.1f}", _per(c[key] / 1e6, n, "{:.2f}")) for n, _, c in parts])
    row(
        "  of the time",
        [(f"{100 * c['wait_ns'] / 1e9 / s:.1f} %" if s > 0 else "-", "") for _, s, c in parts],
    )
    row("n-gram rows", [(str(c["row_lookups"]), _per(c["row_lookups"], n)) for n, _, c in parts])
    row("  hit rate", [(_share(c["row_hits"], c["row_lookups"]), "") for _, _, c in parts])
    row("  bytes read", [_bytes_pair(c["row_bytes_read"], n) for n, _, c in parts])
    return table


def print_info(info: Mapping[str, Any]) -> None:
    """What a model file is, to standard output."""
    _print(
        sys.stdout,
        _facts_table(info),
        _roles_table(info),
        _files_table(info),
        *_list("missing", info["missing"]),
        *_list("unused tensors", info["unused"]),
    )


def _facts_table(info: Mapping[str, Any]) -> Table:
    config = info["config"]
    linear = sum(config["is_linear"])
    tokenizer = info["tokenizer"]
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    by_type: dict[str, int] = {}
    for tensor in info["tensors"]:
        by_type[tensor["type"]] = by_type.get(tensor["type"], 0) + tensor["bytes"]
    largest_first = sorted(by_type.items(), key=lambda item: -item[1])
    facts = {
        "model": f"{info['name'] or '(no name)'}, {info['architecture']}",
        "parameters": f"{info['n_parameters']:,}",
        "layers": f"{config['n_layer']}: {config['n_layer'] - linear} of full attention, {linear}"
        " gated delta nets",
        "width": f"{config['d_model']}, {config['n_stream']} streams of low rank"
        f" {config['low_rank']}",
        "experts": f"{config['n_expert']} a layer, {config['n_expert_used']} a token, width"
        f" {config['d_expert']}; shared expert {config['d_shared']}",
        "attention": f"{config['n_head']} heads of {config['d_head']} on {config['n_kv_head']};"
        f" rotary {config['n_rope']}, base {config['rope_base']:g}; indexer"
        f" {config['n_index_head']} of {config['d_index']}, budget {config['index_budget']}",
        "delta net": f"{config['n_key_head']} key and {config['n_value_head']} value heads of"
        f" {config['d_linear_head']}, convolution {config['conv_kernel']}",
        "n-gram table": f"{config['ple_table_rows']:,} rows of {config['d_ple_row']}, in"
        f" {os.path.basename(info['table_path'])}"
        if any(config["is_ple"])
        else "none",
        "context": f"{config['context_length']:,} tokens",
        "tokenizer": f"{tokenizer['kind']}, cut as {tokenizer['pre']}, {tokenizer['n_vocab']:,}"
        f" tokens, ends at {', '.join(map(str, tokenizer['stop_tokens']))}; chat template:"
        f" {tokenizer['chat_template'] or 'none'}"
        if tokenizer
        else "not usable",
        "bytes": f"{format_bytes(info['dense_bytes'])} dense, {format_bytes(info['expert_bytes'])}"
        f" experts, {format_bytes(info['table_bytes'])} n-gram table",
        "weight types": ", ".join(f"{name} {format_bytes(size)}" for name, size in largest_first),
    }
    for name, fact in facts.items():
        table.add_row(name, fact)
    return table


def _roles_table(info: Mapping[str, Any]) -> Table:
    table = Table(box=SIMPLE)
    for name in ("role", "tensors", "shape", "types", "bytes"):
        table.add_column(name, justify="right" if name in ("tensors", "bytes") else "left")
    by_role: dict[str, list[Mapping[str, Any]]] = {}
    for tensor in info["tensors"]:
        by_role.setdefault(tensor["role"], []).append(tensor)
    for role, tensors in by_role.items():
        shapes = dict.fromkeys(" x ".join(map(str, tensor["shape"])) for tensor in tensors)
        types: dict[str, int] = {}
        for tensor in tensors:
            types[tensor["type"]] = types.get(tensor["type"], 0) + tensor["bytes"]
        shown = [
            name if len(types) == 1 else f"{name} {format_bytes(size)}"
            for name, size in types.items()
        ]
        table.add_row(
            role,
            str(len(tensors)),
            ", ".join(shapes),
            ", ".join(shown),
            format_bytes(sum(types.values())),
        )
    return table


def _files_table(info: Mapping[str, Any]) -> Table:
    table = Table(box=SIMPLE)
    table.add_column("file", overflow="fold")
    table.add_column("tensors", justify="right")
    table.add_column("bytes", justify="right")
    for index, file in enumerate(info["files"]):
        count = sum(tensor["file"] == index for tensor in info["tensors"])
        table.add_row(file["path"], str(count), format_bytes(file["bytes"]))
    return table


def _list(name: str, items: list[str]) -> list[Text]:
    head = Text.assemble((f"{name}:", "bold"), "" if items else " none")
    return [head, *(Text(f"  {item}") for item in items)]


def print_plan(plan: Mapping[str, Any]) -> None:
    """Memory plan and weight traffic, to standard output."""
    _print(sys.stdout, _memory_table(plan), _classes_table(plan), _traffic_table(plan["traffic"]))


def _memory_table(plan: Mapping[str, Any]) -> Table:
    machine, disk = plan["machine"], plan["disk"]
    kind = "an idle machine" if plan["what_if"] else "this machine"
    reserve = f", {format_bytes(plan['reserve_bytes'])} kept free" if plan["reserve_bytes"] else ""
    verdict = "" if plan["fits"] else " - DOES NOT FIT"
    table = Table(
        box=SIMPLE,
        title=f"memory plan of {os.path.basename(plan['path'])}",
        caption=f"{kind} of {format_bytes(machine['total_bytes'])},"
        f" {format_bytes(machine['available_bytes'])} available{reserve}{verdict}",
        caption_style="bold" if verdict else None,
    )
    _columns(table, "in memory", "bytes", "size", "share")
    for row in plan["rows"]:
        table.add_row(*_sized(row["what"], row["bytes"]), f"{100 * row['share']:.1f} %")
    table.add_section()
    for what, count in (
        ("total", plan["total_bytes"]),
        ("limit", plan["limit_bytes"]),
        ("least total, with the least arena", plan["least_total_bytes"]),
        ("least arena", plan["least_arena_bytes"]),
    ):
        table.add_row(*_sized(what, count))
    table.add_section()
    table.add_row(*_sized("on disk: experts", disk["expert_bytes"]))
    table.add_row(*_sized("on disk: n-gram table", disk["ngram_table_bytes"]))
    table.add_section()
    table.add_row("context, tokens", f"{plan['context']:,}")
    table.add_row("prompt chunk, tokens", f"{plan['chunk']:,}")
    return table


def _classes_table(plan: Mapping[str, Any]) -> Table:
    table = Table(box=SIMPLE, title="slot classes of the arena")
    _columns(table, "layers", "records", "pages", "slots", "per layer", "of the experts", "size")
    for slots in plan["classes"]:
        records = [
            f"{record['bytes']:,} B, {record['pages']} pages"
            + (f" ({record['layers']} layers)" if len(slots["records"]) > 1 else "")
            for record in slots["records"]
        ]
        table.add_row(
            _ranges(slots["layers"]),
            "\n".join(records),
            str(slots["pages"]),
            f"{slots['slots']:,}",
            f"{slots['slots_per_layer']:.1f}",
            f"{100 * slots['share_of_experts']:.1f} %",
            format_bytes(slots["bytes"]),
        )
    table.add_section()
    table.add_row(
        "all",
        f"{plan['experts']:,} experts",
        "",
        f"{plan['slots']:,}",
        "",
        f"{100 * plan['share_of_experts']:.1f} %",
        format_bytes(plan["arena_bytes"]),
    )
    return table


def _traffic_table(traffic: Mapping[str, Any]) -> Table:
    table = Table(
        box=SIMPLE,
        title="weights read per decoded token",
        caption="read-ahead is done, and counts, only where the arena does not hold all experts;"
        " for two layers here",
    )
    _columns(table, "role", "calls", "types", "n_in x n_out", "MB", "share", left=(0, 2, 3))
    table.columns[0].no_wrap = True

    def row(row: Mapping[str, Any], share: str) -> None:
        table.add_row(
            row["role"],
            str(row["calls"]),
            ", ".join(f"{count} {name}" for name, count in row["types"].items()),
            "" if row["kind"] == "small" and len(row["shapes"]) > 1 else _shapes(row["shapes"]),
            _megabytes(row["bytes"]),
            share,
        )

    small = [r for r in traffic["rows"] if r["kind"] == "small"]
    for r in traffic["rows"]:
        if r["kind"] != "small":
            row(r, f"{100 * r['share']:.2f} %")
    table.add_section()
    for name, key in (
        ("total", "total_bytes_without_read_ahead"),
        ("total with read-ahead", "total_bytes"),
    ):
        share = traffic[key] / traffic["total_bytes"]
        table.add_row(name, "", "", "", _megabytes(traffic[key]), f"{100 * share:.2f} %")
    table.add_section()
    table.add_row("besides, in no total:")
    for r in small:
        row(r, "")
    return table


def _columns(table: Table, *names: str, left: tuple[int, ...] = (0,)) -> None:
    for index, name in enumerate(names):
        table.add_column(name, justify="left" if index in left else "right")


def _sized(what: str, count: int) -> tuple[str, str, str]:
    return what, f"{count:,}", format_bytes(count)


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.2f}" if count >= 5_000 else f"{count / 1e6:.6f}"


def _shapes(shapes: list[list[int]]) -> str:
    """[[2560, 512], [2560, 128]] -> "2560 x 512, 128"."""
    by_input: dict[int, list[str]] = {}
    for n_in, n_out in shapes:
        by_input.setdefault(n_in, []).append(str(n_out))
    return "; ".join(f"{n_in} x {', '.join(outs)}" for n_in, outs in by_input.items())


def _ranges(numbers: list[int]) -> str:
    """[0, 1, 2, 5] -> "0-2, 5"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] + 1 == number:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _print(stream: TextIO, *parts: RenderableType) -> None:
    width = None if stream.isatty() else _WIDTH_PIPED
    console = Console(file=stream, width=width, highlight=False, markup=False, emoji=False)
    with console.capture() as captured:  # rich would end the process when the reader is gone
        for part in parts:
            console.print(part)
    stream.write(captured.get())
    stream.flush()


def _per(value: float, tokens: int, form: str = "{:.1f}") -> str:
    return form.format(value / tokens) if tokens else "-"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def _bytes_pair(count: int, tokens: int) -> tuple[str, str]:
    return format_bytes(count), format_bytes(count / tokens) if tokens else "-"
