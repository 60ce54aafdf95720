# SPDX-License-Identifier: MIT
"""The numbers of a model, each also an option of `esker synth`, and what must hold among them."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from math import isqrt
from typing import Any

from ..errors import UsageError, fault


def _number(default: float, help_: str, low: int = 1, high: int = 2**31 - 1) -> Any:
    return field(default=default, metadata={"help": help_, "low": low, "high": high})


@dataclass(frozen=True)
class Shape:
    """The real model's numbers, unless told otherwise."""

    layers: int = _number(48, "layers", high=4096)
    hidden: int = _number(2560, "model width", low=64)
    vocab: int = _number(248320, "tokens of the vocabulary", low=288)
    context: int = _number(262144, "longest text")
    experts: int = _number(512, "experts of a layer", high=65536)
    experts_used: int = _number(10, "experts that a token uses")
    expert_width: int = _number(640, "inner width of an expert")
    shared_width: int = _number(640, "inner width of the shared expert")
    interval: int = _number(4, "every so many layers attention is full")
    heads: int = _number(24, "attention heads")
    kv_heads: int = _number(2, "key and value heads")
    head_width: int = _number(256, "width of a head")
    rotary: int = _number(64, "values of a head that turn", low=2)
    key_heads: int = _number(16, "key heads of the delta net")
    value_heads: int = _number(48, "value heads of the delta net")
    linear_width: int = _number(128, "width of a delta-net head")
    conv: int = _number(4, "taps of the delta net's convolution")
    streams: int = _number(4, "residual streams")
    low_rank: int = _number(320, "low rank of the mixers")
    index_heads: int = _number(4, "heads of the attention index")
    index_width: int = _number(128, "width of an index head")
    index_budget: int = _number(2048, "tokens that the index lets through")
    index_ratio: int = _number(4, "tokens of an index block, 0 = dense attention", low=0)
    ngram: int = _number(3, "longest n-gram of the table, 0 = no n-gram embedding", low=0, high=16)
    ngram_heads: int = _number(8, "table rows per n-gram of a token")
    ngram_base: int = _number(
        20_000_000, "rows of the table for each of the (ngram - 1) x ngram-heads heads", low=2
    )
    ngram_layer: int = _number(1, "layer (from 0) that takes the n-gram embedding", low=0)
    ngram_conv: int = _number(4, "taps of the n-gram layer's convolution")

    rope_base = 1e7
    rms_eps = 1e-6

    def but(self, **changes: int) -> Shape:
        return replace(self, **changes)

    def check(self) -> Shape:
        """Raises UsageError for numbers that make no model."""
        for number in fields(self):
            low, high = number.metadata["low"], number.metadata["high"]
            value = getattr(self, number.name)
            if not low <= value <= high:
                _refuse(number.name, value, f"{low} to {high}")
        self._expect("experts_used", self.experts_used <= self.experts, "at most --experts")
        self._divides("kv_heads", "heads")
        self._divides("key_heads", "value_heads")
        even = self.rotary % 2 == 0 and self.rotary <= self.head_width
        self._expect("rotary", even, "an even number up to --head-width")
        if self.index_ratio and any(map(self.is_full, range(self.layers))):
            self._divides("index_ratio", "index_budget")
            self._expect("rotary", self.rotary <= self.index_width, "at most --index-width")
        if self.has_table:
            self._expect("ngram", self.ngram >= 2, "0, or 2 and more")
            self._expect("ngram_layer", self.ngram_layer < self.layers, "less than --layers")
            n = self.n_table_head
            self._expect(
                "ngram_heads", self.hidden % n == 0, f"a number that makes {n} divide --hidden"
            )
        return self

    def _expect(self, name: str, ok: bool, want: str) -> None:
        if not ok:
            _refuse(name, getattr(self, name), want)

    def _divides(self, name: str, other: str) -> None:
        number = getattr(self, other)
        want = f"a divisor of {_flag(other)}, {number}"
        self._expect(name, number % getattr(self, name) == 0, want)

    # What follows from the numbers.

    def is_full(self, layer: int) -> bool:
        return (layer + 1) % self.interval == 0

    @property
    def has_table(self) -> bool:
        return self.ngram > 0

    @property
    def wide(self) -> int:
        """Values of all residual streams together."""
        return self.streams * self.hidden

    @property
    def value_width(self) -> int:
        return self.value_heads * self.linear_width

    @property
    def qkv_width(self) -> int:
        return 2 * self.key_heads * self.linear_width + self.value_width

    @property
    def n_table_head(self) -> int:
        return (self.ngram - 1) * self.ngram_heads

    @property
    def table_width(self) -> int:
        return self.hidden // self.n_table_head

    @cached_property
    def head_sizes(self) -> list[int]:
        """Rows of each head of the table: consecutive primes."""
        sizes: list[int] = []
        n = self.ngram_base
        while len(sizes) < self.n_table_head:
            if _is_prime(n):
                sizes.append(n)
            n += 1
        return sizes

    @property
    def table_rows(self) -> int:
        return -(-sum(self.head_sizes) // 128) * 128

    @property
    def rope_sections(self) -> list[int]:
        """Pairs of time, height and width: a third each, earlier ones first."""
        pairs = self.rotary // 2
        first = -(-pairs // 3)
        second = -(-(pairs - first) // 2)
        return [first, second, pairs - first - second, 0]

    @property
    def multipliers(self) -> list[int]:
        """Odd numbers of the n-gram hash; any token id times one stays below 2^63."""
        half = (2**63 - 1) // self.vocab // 2
        return [2 * (_splitmix64(1234 + _GOLDEN * (i + 1)) % half) + 1 for i in range(self.ngram)]


_GOLDEN, _MASK = 0x9E3779B97F4A7C15, 2**64 - 1


def _splitmix64(v: int) -> int:
    v = (v + _GOLDEN) & _MASK
    v = (v ^ v >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    v = (v ^ v >> 27) * 0x94D049BB133111EB & _MASK
    return v ^ v >> 31


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, isqrt(n) + 1))


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _refuse(name: str, got: object, want: str) -> None:
    raise UsageError(fault("synth", _flag(name), got=got, want=want))
