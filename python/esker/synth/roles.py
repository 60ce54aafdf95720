# SPDX-License-Identifier: MIT
"""Which weight type a tensor gets: roles, rules such as "gate,up@0-1=IQ3_S", and what stands in
where a type's blocks do not divide a row."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from ..errors import UsageError, fault
from ..gguf_writer import WEIGHT_TYPES, WeightType, weight_type

# Role -> tensors (without "blk.N." and ".weight"), or other roles.  Tensors' names are roles too.
ROLES: dict[str, tuple[str, ...]] = {
    "gate": ("ffn_gate_exps",),
    "up": ("ffn_up_exps",),
    "down": ("ffn_down_exps",),
    "experts": ("gate", "up", "down"),
    "shared": ("ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"),
    "attention": ("attn_q", "attn_k", "attn_v", "attn_output"),
    "indexer": ("indexer.q_proj", "indexer.k_proj"),
    "linear": ("attn_qkv", "attn_gate", "ssm_out", "ssm_alpha", "ssm_beta"),
    "ngram": ("ple_key", "ple_value", "ple_conv1d"),
    "embedding": ("token_embd",),
    "output": ("output",),
    "dense": ("attention", "indexer", "linear", "shared", "ngram", "embedding", "output"),
    "mixers": (
        "hc_attn_down", "hc_attn_up", "hc_attn_inject", "hc_ffn_down", "hc_ffn_up",
        "hc_ffn_inject", "output_hc_down", "output_hc_up",
    ),
    "router": ("ffn_gate_inp",),
    "table": ("per_layer_token_embd",),
}  # fmt: skip

# Applied before any other rule.  What no rule names is F32: norms, ssm_a, ssm_dt, ssm_conv1d,
# ffn_gate_inp_shexp.
DEFAULT_RULES = (
    "experts=IQ2_S", "down=Q2_0", "dense=IQ4_XS", "indexer,ssm_alpha,ssm_beta,ngram=BF16",
    "mixers=Q8_0", "router=F32", "table=IQ4_NL",
)  # fmt: skip

NAMES = (
    *dict.fromkeys(t for tensors in ROLES.values() for t in tensors if t not in ROLES),
    "hc_attn_norm", "hc_ffn_norm", "output_hc_norm", "ssm_a", "ssm_dt", "ssm_conv1d", "ssm_norm",
    "attn_q_norm", "attn_k_norm", "indexer.q_norm", "indexer.k_norm", "ffn_gate_inp_shexp",
    "ple_norm_key", "ple_norm_query", "ple_norm_conv",
)  # fmt: skip

# As llama-quantize does; the rest becomes F16.
_STAND_INS = {
    **dict.fromkeys(
        ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_XS"), "IQ4_NL"
    ),
    **dict.fromkeys(("Q2_0", "Q2_K", "Q3_K", "TQ1_0", "TQ2_0"), "Q4_0"),
    "Q4_K": "Q5_0",
    "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
}


class Rule(NamedTuple):
    """A type for some tensors of some layers (None = everywhere)."""

    tensors: frozenset[str]
    layers: frozenset[int] | None
    type: WeightType


def parse_rule(text: str) -> Rule:
    """ROLE[,ROLE..][@LAYERS]=TYPE; LAYERS is 3, 0-1 or several of these joined by +.

    Raises UsageError.
    """
    match = re.fullmatch(r"([^@=]+)(?:@([^@=]+))?=([^@=]+)", text.replace(" ", ""))
    if match is None:
        raise UsageError(
            fault("synth", "--type", got=text, want="ROLE[,ROLE][@LAYERS]=TYPE",
                  hint="for instance experts=IQ2_S, gate,up@0-1=IQ3_S")
        )  # fmt: skip
    tensors = frozenset(name for role in match[1].split(",") for name in _tensors_of(role, text))
    layers = None if match[2] is None else frozenset(_layers_of(match[2], text))
    return Rule(tensors, layers, weight_type(match[3]))


def _tensors_of(role: str, text: str) -> list[str]:
    if role in ROLES:
        return [
            name
            for part in ROLES[role]
            for name in ([part] if part == role else _tensors_of(part, text))
        ]
    name = role.removesuffix(".weight")
    if name not in NAMES:
        raise UsageError(
            fault("synth", "role of --type", got=role, want=f"one of {', '.join(ROLES)}",
                  where=text, hint="or a tensor's name, such as attn_qkv")
        )  # fmt: skip
    return [name]


def _layers_of(text: str, rule: str) -> list[int]:
    layers: list[int] = []
    for part in text.split("+"):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if match is None:
            raise UsageError(
                fault("synth", "layers of --type", got=part, want="3, 0-1 or 0-1+5", where=rule)
            )
        layers += range(int(match[1]), int(match[2] or match[1]) + 1)
    return layers


class TypeRules:
    """Rules in order; of those that fit a tensor the last counts."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._rules = [parse_rule(text) for text in (*DEFAULT_RULES, *texts)]
        self._replaced: dict[tuple[str, str, str, int], int] = {}

    def choose(self, short: str, layer: int | None, dims: Sequence[int]) -> WeightType:
        """The type for a tensor of these dims (fastest first); layer None for global ones."""
        chosen = WEIGHT_TYPES["F32"]
        for rule in self._rules:
            if short in rule.tensors and (rule.layers is None or layer in rule.layers):
                chosen = rule.type
        fitting = chosen
        while dims[0] % fitting.block_elements:
            fitting = WEIGHT_TYPES[_STAND_INS.get(fitting.name, "F16")]
        if fitting is not chosen:
            key = (short, chosen.name, fitting.name, dims[0])
            self._replaced[key] = self._replaced.get(key, 0) + 1
        return fitting

    @property
    def notes(self) -> list[str]:
        """What was replaced, as lines of text."""
        return [
            f"{short}: {to} instead of {type_}, whose blocks do not divide rows of {row}"
            + (f" ({count} tensors)" if count > 1 else "")
            for (short, type_, to, row), count in self._replaced.items()
        ]
