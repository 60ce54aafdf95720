# SPDX-License-Identifier: MIT
"""Puts a random model together: metadata, tensors and their content, written to files."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UsageError, fault
from ..gguf_writer import Metadata, Progress, plan_files, write_files
from .content import Content
from .presets import SEED_MAX, ZIPF_MAX
from .roles import TypeRules
from .routing import TOPICS, reserved_channels
from .shape import Shape
from .tensors import Plan
from .vocabulary import end_of_text, vocabulary

_ARCHITECTURE = "qwen4exp"


@dataclass(frozen=True)
class SynthResult:
    """What was written."""

    paths: list[str]
    bytes: int
    seconds: float
    bytes_per_second: float
    notes: list[str]


def synthesize(
    out: str | os.PathLike[str],
    shape: Shape,
    *,
    types: Sequence[str] = (),
    seed: int = 1,
    zipf: float = 0.0,
    sticky: float = 0.0,
    name: str = "synthetic",
    shard_bytes: int = 0,
    header_only: bool = False,
    force: bool = False,
    command: Sequence[str] = (),
    progress: Progress | None = None,
) -> SynthResult:
    """Writes a model.

    Args:
        types: rules such as "experts=IQ2_S" or "gate,up@0-1=IQ3_S"; the last that fits counts.
        zipf: experts are picked as rank^-zipf; 0 = all alike.
        sticky: part of its experts that a token shares with another of its topic.
        shard_bytes: largest shard, 0 = one file.
        header_only: all but the tensor data.
        command: what asked for it, kept in the file.

    Raises UsageError (numbers that make no model, a file that exists) or ReadError (the disk).
    """
    shape.check()
    if not 0 <= zipf <= ZIPF_MAX:
        raise UsageError(
            fault("synth", "--zipf", got=zipf, want=f"a number from 0 to {ZIPF_MAX:g}")
        )
    if not 0 <= seed <= SEED_MAX:
        raise UsageError(fault("synth", "--seed", got=seed, want=f"0 to {SEED_MAX}"))
    rules = TypeRules(types)
    fills = list(Plan(shape, rules, reserved_channels(shape.hidden)))
    content = Content(shape, fills, seed, zipf, sticky)
    metadata = _metadata(shape, name, header_only)
    for kind, key, value in (
        ("u64", "seed", seed),
        ("f32", "zipf", zipf),
        ("f32", "sticky", sticky),
        ("u32", "topics", TOPICS),
        ("u32", "plain_tokens", end_of_text(shape.vocab)),
        ("text", "command", shlex.join(command)),
    ):
        metadata.add(kind, "esker.synth." + key, value)
    plans = plan_files(Path(out), metadata, [fill.tensor for fill in fills], shard_bytes)
    begin = time.perf_counter()
    done = write_files(
        plans, content.pieces, header_only=header_only, force=force, progress=progress
    )
    seconds = time.perf_counter() - begin
    paths = [str(plan.path) for plan in plans]
    return SynthResult(paths, done, seconds, done / max(seconds, 1e-9), rules.notes)


def _metadata(s: Shape, name: str, header_only: bool) -> Metadata:
    """The converter's keys, in its order."""
    m = Metadata()
    m.add("text", "general.architecture", _ARCHITECTURE)
    m.add("text", "general.type", "model")
    m.add("text", "general.name", name)
    m.add("u32", "general.quantization_version", 2)
    if header_only:
        m.add("flag", "esker.header_only", True)

    def add(kind: str, key: str, value: Any) -> None:
        m.add(kind, f"{_ARCHITECTURE}.{key}", value)

    def add_array(kind: str, key: str, values: Sequence[Any]) -> None:
        m.add_array(kind, f"{_ARCHITECTURE}.{key}", values)

    for key, value in (
        ("block_count", s.layers), ("context_length", s.context), ("embedding_length", s.hidden),
        ("attention.head_count", s.heads), ("attention.head_count_kv", s.kv_heads),
        ("attention.key_length", s.head_width), ("attention.value_length", s.head_width),
        ("rope.dimension_count", s.rotary), ("expert_count", s.experts),
        ("expert_used_count", s.experts_used), ("expert_feed_forward_length", s.expert_width),
        ("expert_shared_feed_forward_length", s.shared_width), ("ssm.conv_kernel", s.conv),
        ("ssm.state_size", s.linear_width), ("ssm.group_count", s.key_heads),
        ("ssm.time_step_rank", s.value_heads), ("ssm.inner_size", s.value_width),
        ("full_attention_interval", s.interval), ("hyper_connection.count", s.streams),
        ("hyper_connection.low_rank", s.low_rank),
        ("attention.indexer.head_count", s.index_heads),
        ("attention.indexer.key_length", s.index_width),
        ("attention.indexer.top_k", s.index_budget),
    ):  # fmt: skip
        add("u32", key, value)
    add("f32", "rope.freq_base", s.rope_base)
    add("f32", "attention.layer_norm_rms_epsilon", s.rms_eps)
    add_array("i32", "rope.dimension_sections", s.rope_sections)
    full = [s.is_full(layer) for layer in range(s.layers)]
    add_array("flag", "attention.recurrent_layers", [not f for f in full])
    add_array("i32", "attention.compress_ratios", [s.index_ratio if f else 0 for f in full])
    if s.has_table:
        add_array("i32", "ple.layers", [s.ngram_layer])
        add("u32", "ple.ngram_size", s.ngram)
        add("u32", "ple.heads_per_ngram", s.ngram_heads)
        add("u32", "ple.conv_kernel", s.ngram_conv)
        add("u32", "ple.eos_token_id", end_of_text(s.vocab))
        add("u32", "embedding_length_per_layer_input", s.table_width)
        sizes = s.head_sizes
        add_array("u64", "ple.layer_multipliers", s.multipliers)
        add_array("u64", "ple.head_offsets", [sum(sizes[:i]) for i in range(len(sizes))])
        add_array("u64", "ple.head_vocab_sizes", sizes)
    _add_tokenizer(m, s.vocab)
    return m


def _add_tokenizer(m: Metadata, vocab: int) -> None:
    tokens, types, merges = vocabulary(vocab)
    end = end_of_text(vocab)
    m.add("text", "tokenizer.ggml.model", "gpt2")
    m.add("text", "tokenizer.ggml.pre", "qwen35")
    m.add_array("text", "tokenizer.ggml.tokens", tokens)
    m.add_array("i32", "tokenizer.ggml.token_type", types)
    m.add_array("text", "tokenizer.ggml.merges", merges)
    m.add("u32", "tokenizer.ggml.bos_token_id", end)
    m.add("u32", "tokenizer.ggml.eos_token_id", end + 2)
    m.add("u32", "tokenizer.ggml.padding_token_id", end)
    m.add("flag", "tokenizer.ggml.add_bos_token", False)
