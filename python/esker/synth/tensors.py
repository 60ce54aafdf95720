# SPDX-License-Identifier: MIT
"""Every tensor of a model: name, dims, and the rule by which it is filled.

Gains are chosen so that activations neither die nor explode, whatever the depth: all sub-layers
together triple the mean square of the residual that the embedding began with 1, and logits have a
standard deviation near 2.5.  The measured constants say where they are from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt

from ..gguf_writer import Tensor
from .roles import TypeRules
from .shape import Shape

GROWTH = 3.0  # mean square that the sub-layers add to the residual in all
# Root mean square of a sub-layer's output where its output matrix has gain 1.
_RMS_LINEAR, _RMS_FULL, _RMS_EXPERTS, _RMS_SHARED = 0.50, 0.25, 0.7, 0.7
_INJECT = 1.1  # mean square of the weight with which a residual stream takes an output
_LOGIT_GAIN = 5.0
MIXED = 0.5  # what mixing leaves of a residual's value: the mean of a gate


@dataclass(frozen=True)
class Fill:
    """A tensor to fill.

    kind: random (blocks), pool (likewise, from a pool), gamma, decay, dt, router, embedding,
        output.
    std: of the weights (random, pool, output) or of what is added to the fixed part (gamma ..).
    zero_rows: the first rows of every `period` rows are zero: reserved channels are not written.
    """

    tensor: Tensor
    short: str
    layer: int | None
    kind: str
    std: float = 0.0
    zero_rows: int = 0
    period: int = 0


class Plan:
    """The tensors of a shape, in the converter's order, with their types."""

    def __init__(self, shape: Shape, rules: TypeRules, reserved: int) -> None:
        self._shape, self._rules, self._reserved = shape, rules, reserved
        # Root mean square of what one sub-layer puts out.
        writes = sqrt(GROWTH / (2 * shape.layers * _INJECT))
        self._linear_gain = writes / _RMS_LINEAR
        self._full_gain = writes / _RMS_FULL
        self._expert_gain = writes / _RMS_EXPERTS / sqrt(2)
        self._shared_gain = writes / _RMS_SHARED / sqrt(2)

    def __iter__(self) -> Iterator[Fill]:
        s = self._shape
        dims: tuple[int, ...] = (s.hidden, s.vocab)
        yield self._fill("output", None, dims, "output", _LOGIT_GAIN / sqrt(s.hidden))
        yield self._fill("token_embd", None, dims, "embedding", 1.0)
        yield from self._mixer("output_hc", None, inject=False)
        if s.has_table:
            dims = (s.table_width, s.table_rows)
            yield self._fill("per_layer_token_embd", None, dims, "pool", 1.0)
        for layer in range(s.layers):
            yield from self._mixer("hc_attn", layer)
            yield from self._full(layer) if s.is_full(layer) else self._linear(layer)
            if s.has_table and layer == s.ngram_layer:
                yield from self._ngram(layer)
            yield from self._mixer("hc_ffn", layer)
            yield from self._experts(layer)

    def _fill(
        self, short: str, layer: int | None, dims: tuple[int, ...], kind: str, std: float,
        zero_rows: int = 0, period: int = 0, suffix: str = ".weight",
    ) -> Fill:  # fmt: skip
        name = ("" if layer is None else f"blk.{layer}.") + short + suffix
        tensor = Tensor(name, dims, self._rules.choose(short, layer, dims))
        return Fill(tensor, short, layer, kind, std, zero_rows, period)

    def _matrix(self, short: str, layer: int | None, n_in: int, n_out: int, gain: float) -> Fill:
        return self._fill(short, layer, (n_in, n_out), "random", gain / sqrt(n_in))

    def _writer(self, short: str, layer: int, n_in: int, gain: float) -> Fill:
        """A matrix whose output is added to the residual: all but the reserved channels."""
        dims = (n_in, self._shape.hidden)
        return self._fill(
            short, layer, dims, "random", gain / sqrt(n_in), self._reserved, self._shape.hidden
        )

    def _gamma(self, short: str, layer: int | None, n: int, std: float = 0.3) -> Fill:
        return self._fill(short, layer, (n,), "gamma", std)

    def _mixer(self, prefix: str, layer: int | None, inject: bool = True) -> Iterator[Fill]:
        s = self._shape
        if inject:
            yield self._matrix(prefix + "_inject", layer, s.wide, s.streams, 3.0)
        yield self._gamma(prefix + "_norm", layer, s.wide)
        yield self._matrix(prefix + "_down", layer, s.wide, s.low_rank, 4.0)
        # Rows of reserved channels are zero in every stream: their gate is a half.
        yield self._fill(
            prefix + "_up", layer, (s.low_rank, s.wide), "random", 2.0 / sqrt(s.low_rank),
            self._reserved, s.hidden,
        )  # fmt: skip

    def _linear(self, layer: int) -> Iterator[Fill]:
        s = self._shape
        yield self._fill("ssm_a", layer, (s.value_heads,), "decay", 0, suffix="")
        yield self._fill("ssm_conv1d", layer, (s.conv, s.qkv_width), "random", 0.25)
        yield self._fill("ssm_dt", layer, (s.value_heads,), "dt", 1.0, suffix=".bias")
        for name in ("ssm_alpha", "ssm_beta"):
            yield self._matrix(name, layer, s.hidden, s.value_heads, 2.0)
        yield self._matrix("attn_qkv", layer, s.hidden, s.qkv_width, 2.0)
        yield self._matrix("attn_gate", layer, s.hidden, s.value_width, 2.0)
        yield self._gamma("ssm_norm", layer, s.linear_width)
        yield self._writer("ssm_out", layer, s.value_width, self._linear_gain)

    def _full(self, layer: int) -> Iterator[Fill]:
        s = self._shape
        yield self._matrix("attn_q", layer, s.hidden, 2 * s.heads * s.head_width, 2.0)
        yield self._matrix("attn_k", layer, s.hidden, s.kv_heads * s.head_width, 2.0)
        yield self._matrix("attn_v", layer, s.hidden, s.kv_heads * s.head_width, 2.0)
        yield self._writer("attn_output", layer, s.heads * s.head_width, self._full_gain)
        yield self._gamma("attn_q_norm", layer, s.head_width)
        yield self._gamma("attn_k_norm", layer, s.head_width)
        if s.index_ratio:
            rows = s.index_heads * s.index_width
            yield self._matrix("indexer.q_proj", layer, s.hidden, rows, 2.0)
            yield self._matrix("indexer.k_proj", layer, s.hidden, s.index_width, 2.0)
            yield self._gamma("indexer.q_norm", layer, s.index_width)
            yield self._gamma("indexer.k_norm", layer, s.index_width)

    def _ngram(self, layer: int) -> Iterator[Fill]:
        s = self._shape
        yield self._matrix("ple_key", layer, s.hidden, s.wide, 1.2)
        yield self._writer("ple_value", layer, s.hidden, 0.5)
        for name in ("key", "query", "conv"):
            yield self._gamma(f"ple_norm_{name}", layer, s.wide)
        yield self._fill("ple_conv1d", layer, (s.ngram_conv, s.wide), "random", 0.3)

    def _experts(self, layer: int) -> Iterator[Fill]:
        s = self._shape
        n, width = s.experts, s.expert_width
        yield self._fill(
            "ffn_down_exps", layer, (width, s.hidden, n), "pool", self._expert_gain / sqrt(width),
            self._reserved, s.hidden,
        )  # fmt: skip
        for name in ("ffn_gate_exps", "ffn_up_exps"):
            yield self._fill(name, layer, (s.hidden, width, n), "pool", 3.0 / sqrt(s.hidden))
        yield self._fill("ffn_gate_inp", layer, (s.hidden, n), "router", 0)
        yield self._fill("ffn_gate_inp_shexp", layer, (s.hidden,), "random", 2.0 / sqrt(s.hidden))
        yield self._writer("ffn_down_shexp", layer, s.shared_width, self._shared_gain)
        for name in ("ffn_gate_shexp", "ffn_up_shexp"):
            yield self._matrix(name, layer, s.hidden, s.shared_width, 3.0)
