# SPDX-License-Identifier: MIT
"""Whole models by name: a shape, rules for types, and how skewed and sticky routing is."""

from __future__ import annotations

from dataclasses import dataclass

from .shape import Shape

# Routing as real models have it, more or less: an LRU with room for 18 % of the experts finds 89 %
# of the picks (routing.py has the table).
ZIPF, STICKY = 0.7, 0.3
ZIPF_MAX = 4.0  # the last of 512 experts is then picked once in 10^10 tokens
SEED_MAX = 2**63 - 1


@dataclass(frozen=True)
class Preset:
    what: str
    shape: Shape
    rules: tuple[str, ...] = ()
    zipf: float = ZIPF
    sticky: float = STICKY


def spread(layers: list[int], counts: dict[str, int]) -> dict[str, list[int]]:
    """Deals layers out to types, each type's layers as evenly spread as the counts allow."""
    assert sum(counts.values()) == len(layers)
    dealt: dict[str, list[int]] = {name: [] for name in counts}
    for i, layer in enumerate(layers):
        # The type that lags furthest behind its share.
        name = max(counts, key=lambda n: counts[n] * (i + 1) / len(layers) - len(dealt[n]))
        dealt[name].append(layer)
    return dealt


def mix(roles: str, layers: list[int], counts: dict[str, int]) -> list[str]:
    """Rules that give `roles` each type in that many of the layers."""
    return [
        f"{roles}@{'+'.join(map(str, where))}={name}"
        for name, where in spread(layers, counts).items()
        if where
    ]


_FULL = [i for i in range(48) if (i + 1) % 4 == 0]
_LINEAR = [i for i in range(48) if (i + 1) % 4]
_ALL = list(range(48))


def _published_dense() -> list[str]:
    """The dense tensors of the published 512-expert IQ2_XS file, tensor counts as it has them.

    Where only the sum of a group's bytes is known, counts are chosen that give that sum: shared
    experts 134.98 MB; index, keys, values, alpha and beta together 76.63 MB a token.
    """
    return [
        *mix("attn_qkv", _LINEAR, {"IQ4_XS": 35, "IQ3_S": 1}),
        *mix("attn_gate", _LINEAR, {"IQ4_XS": 22, "IQ3_S": 11, "Q6_K": 3}),
        *mix("ssm_out", _LINEAR, {"IQ4_XS": 29, "IQ3_S": 6, "Q6_K": 1}),
        *mix("attn_q", _FULL, {"IQ4_XS": 11, "IQ3_S": 1}),
        *mix("attn_output", _FULL, {"IQ4_XS": 10, "IQ3_S": 1, "Q6_K": 1}),
        # 57 IQ4_XS, 23 IQ3_S and 16 Q6_K matrices of gate and up together.
        *mix("ffn_gate_shexp", _ALL, {"IQ4_XS": 29, "IQ3_S": 11, "Q6_K": 8}),
        *mix("ffn_up_shexp", _ALL, {"IQ4_XS": 28, "IQ3_S": 12, "Q6_K": 8}),
        *mix("ffn_down_shexp", _ALL, {"IQ4_NL": 36, "Q8_0": 7, "Q2_0": 5}),
        *mix("attn_k", _FULL, {"IQ4_XS": 7, "Q6_K": 4, "IQ3_S": 1}),
        *mix("attn_v", _FULL, {"IQ4_XS": 8, "Q6_K": 4}),
        "indexer,ssm_alpha,ssm_beta,ngram,router=BF16",
        "embedding,output=IQ4_XS",
        "mixers=Q8_0",
        "table=IQ4_NL",
    ]


_TINY = Shape(
    layers=4, hidden=256, vocab=512, context=4096, experts=16, experts_used=4, expert_width=64,
    shared_width=64, heads=4, kv_heads=2, head_width=64, rotary=32, key_heads=2, value_heads=6,
    linear_width=64, low_rank=32, index_heads=4, index_width=64, index_budget=64, ngram_heads=4,
    ngram_base=500,
)  # fmt: skip

PRESETS = {
    "tiny": Preset("a few MB", _TINY),
    "real-12": Preset(
        "12 layers of the real shapes, 10.5 GB",
        Shape(layers=12, vocab=32768, context=32768, ngram_base=100_000),
        ("experts@0-1=IQ3_S", "experts@2-11=IQ2_S", "down=Q2_0", "dense=IQ4_XS"),
    ),
    "k512-iq2_xs": Preset(
        "the real model, experts of 2 to 3 bits, 68 GB",
        Shape(),
        (
            *_published_dense(),
            *mix("gate,up", _ALL[2:], {"IQ2_S": 34, "IQ2_XXS": 12}),
            "gate,up@0-1=IQ3_S",
            "down=Q2_0",
        ),
    ),
    "k256-q2_0": Preset(
        "the real model cut to 256 experts a layer, all Q2_0, 49 GB",
        Shape(experts=256),
        (*_published_dense(), "experts=Q2_0"),
    ),
}
