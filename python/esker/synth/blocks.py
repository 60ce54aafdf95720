# SPDX-License-Identifier: MIT
"""Random blocks of every weight type, all valid, with the standard deviation one asks for.

The integers of a block are random bits (where random bits would not be centred on zero, their
odds are set so that they are); only the scale fields are computed.  What a type's integers are
worth is measured with the library's own decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import numpy.typing as npt

from .. import _core
from ..gguf_writer import WEIGHT_TYPES, WeightType

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

# Where a block's scales lie (bytes of halves).  Minima (of Q4_1, the K types ..) come with a factor
# on d that makes x = d q - m centred, where `_prepare` has made each minimum equal its scale.
_SCALES: dict[str, tuple[tuple[int, float], ...]] = {
    "Q4_0": ((0, 1),), "Q4_1": ((0, 1), (2, -7.5)), "Q5_0": ((0, 1),),
    "Q5_1": ((0, 1), (2, -15.5)), "Q8_0": ((0, 1),), "Q2_0": ((0, 1),),
    "Q2_K": ((80, 1), (82, 1.5)), "Q3_K": ((108, 1),), "Q4_K": ((0, 1), (2, 7.5)),
    "Q5_K": ((0, 1), (2, 15.5)), "Q6_K": ((208, 1),), "IQ2_XXS": ((0, 1),), "IQ2_XS": ((0, 1),),
    "IQ2_S": ((0, 1),), "IQ3_XXS": ((0, 1),), "IQ3_S": ((0, 1),), "IQ4_NL": ((0, 1),),
    "IQ4_XS": ((0, 1),), "IQ1_S": ((0, 1),), "TQ1_0": ((52, 1),), "TQ2_0": ((64, 1),),
}  # fmt: skip

_SPREAD = 0.25  # a block's scale lies within this part of the mean scale
_SAMPLE = 1024  # blocks from which a type's unit is measured


def generator(*seed: int) -> np.random.Generator:
    """The one kind of generator here: SFC64, 1.3 GB/s of random bits on a Zen 5 core."""
    return np.random.Generator(np.random.SFC64(list(seed)))


def random_bytes(rng: np.random.Generator, n: int) -> Bytes:
    return rng.integers(0, 2**64, -(-n // 8), np.uint64).view(np.uint8)[:n]


def random_blocks(kind: WeightType, n: int, std: float, rng: np.random.Generator) -> Bytes:
    """n blocks as uint8 [n, block bytes], whose weights have mean 0 and that deviation."""
    if kind.block_elements == 1:
        return encode_plain(kind, np.float32(std) * rng.standard_normal(n, np.float32))
    blocks = random_bytes(rng, n * kind.block_bytes).reshape(n, kind.block_bytes)
    prepare = _PREPARE.get(kind.name)
    if prepare is not None:
        prepare(blocks, rng)
    if kind.name == "MXFP4":
        blocks[:, 0] = _mixed_codes(_MXFP4_SCALES, std / _unit("MXFP4"), n, rng)
    elif kind.name == "NVFP4":
        codes = _mixed_codes(_NVFP4_SCALES, std / _unit("NVFP4"), 4 * n, rng)
        blocks[:, :4] = codes.reshape(n, 4)
    else:
        spread = 1 + _SPREAD * (2 * rng.random(n, np.float32) - 1)
        mean = std / _unit(kind.name) / np.sqrt(1 + _SPREAD**2 / 3)
        _set_scales(kind.name, blocks, mean * spread)
    return blocks


def encode_plain(kind: WeightType, values: Floats) -> Bytes:
    """float32 values as blocks of F32, F16 or BF16: uint8 [n, 2 or 4]."""
    if kind.name == "F16":
        return values.astype("<f2").view(np.uint8).reshape(-1, 2)
    if kind.name == "BF16":
        bits = values.view(np.uint32)
        rounded = bits + 0x7FFF + (bits >> 16 & 1)
        return (rounded >> 16).astype("<u2").view(np.uint8).reshape(-1, 2)
    return np.ascontiguousarray(values, "<f4").view(np.uint8).reshape(-1, 4)


@cache
def _unit(name: str) -> float:
    """Root mean square of a type's weights where every scale is 1."""
    kind = WEIGHT_TYPES[name]
    rng = generator(1, kind.id)
    blocks = random_bytes(rng, _SAMPLE * kind.block_bytes).reshape(_SAMPLE, kind.block_bytes)
    prepare = _PREPARE.get(name)
    if prepare is not None:
        prepare(blocks, rng)
    if name == "MXFP4":
        blocks[:, 0] = _MXFP4_ONE
    elif name == "NVFP4":
        blocks[:, :4] = _NVFP4_ONE
    else:
        _set_scales(name, blocks, np.ones(_SAMPLE, np.float32))
    n = _SAMPLE * kind.block_elements
    weights = _core.decode_weights(kind.id, blocks.tobytes(), n)
    return float(np.sqrt(np.mean(weights.astype(np.float64) ** 2)))


def _set_scales(name: str, blocks: Bytes, scales: Floats) -> None:
    if name == "IQ1_M":
        _set_iq1_m_scale(blocks, scales)
        return
    for at, factor in _SCALES[name]:
        halves = (scales * np.float32(factor)).astype("<f2")
        blocks[:, at : at + 2] = halves.view(np.uint8).reshape(-1, 2)


def _set_iq1_m_scale(blocks: Bytes, scales: Floats) -> None:
    """The half's four nibbles stand in the upper nibbles of bytes 49, 51, 53, 55."""
    halves = scales.astype("<f2").view("<u2")
    for i in range(4):
        nibble = (halves >> 4 * i & 15).astype(np.uint8)
        blocks[:, 49 + 2 * i] = blocks[:, 49 + 2 * i] & 15 | nibble << 4


# ---- types whose scales are not halves: two neighbouring codes, mixed, give the mean square ---

_MXFP4_SCALES = np.exp2(np.arange(255.0) - 128)  # by code; the last is no number
_MXFP4_ONE = 128


def _nvfp4_scales() -> npt.NDArray[np.float64]:
    codes = np.arange(127)
    exponent, mantissa = codes >> 3, codes & 7
    return np.where(exponent == 0, mantissa * 2.0**-10, (8 + mantissa) * 2.0 ** (exponent - 11))


_NVFP4_SCALES = _nvfp4_scales()
_NVFP4_ONE = 64  # (8 + 0) * 2^(8 - 11)


def _mixed_codes(
    scales: npt.NDArray[np.float64], scale: float, n: int, rng: np.random.Generator
) -> Bytes:
    low = int(np.clip(np.searchsorted(scales, scale) - 1, 0, len(scales) - 2))
    a, b = scales[low] ** 2, scales[low + 1] ** 2
    odds = float(np.clip((scale**2 - a) / (b - a), 0, 1))
    return (low + (rng.random(n, np.float32) < odds)).astype(np.uint8)


# ---- integers that random bits would not centre on zero -----------------------------------------


@cache
def _two_bit_bytes(counts: tuple[int, int, int, int]) -> Bytes:
    """A byte of four codes for each 16 bits; code c has counts[c] of 16 chances."""
    codes = np.repeat(np.arange(4, dtype=np.uint8), counts)
    words = np.arange(65536)
    table = np.zeros(65536, np.uint8)
    for i in range(4):
        table |= codes[words >> 4 * i & 15] << 2 * i
    return table


def _draw_two_bits(
    blocks: Bytes, rng: np.random.Generator, begin: int, counts: tuple[int, int, int, int]
) -> None:
    n, width = len(blocks), blocks.shape[1] - 2
    words = random_bytes(rng, 2 * n * width).view(np.uint16)
    table = _two_bit_bytes(counts)
    blocks[:, begin : begin + width] = table[words].reshape(n, width)


def _prepare_q2_0(blocks: Bytes, rng: np.random.Generator) -> None:
    _draw_two_bits(blocks, rng, 2, (6, 5, 4, 1))  # -1, 0, 1, 2: mean 0


def _prepare_tq2_0(blocks: Bytes, rng: np.random.Generator) -> None:
    _draw_two_bits(blocks, rng, 0, (5, 6, 5, 0))  # -1, 0, 1


def _prepare_q2_k(blocks: Bytes, rng: np.random.Generator) -> None:
    scales = blocks[:, :16] & 15
    blocks[:, :16] = scales | scales << 4


def _prepare_k_scales(blocks: Bytes, rng: np.random.Generator) -> None:
    """Q4_K, Q5_K: minimum = scale in all eight 6-bit pairs."""
    s = blocks[:, 4:16]
    s[:, 4:8] = s[:, 0:4]
    low = s[:, 8:12] & 15
    s[:, 8:12] = low | low << 4


_PREPARE: dict[str, Callable[[Bytes, np.random.Generator], None]] = {
    "Q2_0": _prepare_q2_0,
    "TQ2_0": _prepare_tq2_0,
    "Q2_K": _prepare_q2_k,
    "Q4_K": _prepare_k_scales,
    "Q5_K": _prepare_k_scales,
}


class Pool:
    """A few MB of random blocks that stand for any number: slices of it from random places.

    A row of weights may then occur twice in a tensor, as a rule with its blocks in other columns;
    for experts and the n-gram table that is random enough, and memory copies are all it costs.
    """

    BYTES = 16 << 20

    def __init__(self, kind: WeightType, std: float, seed: int) -> None:
        rng = generator(seed, kind.id, int(std * 1e9))
        n = max(2, self.BYTES // kind.block_bytes)
        self._blocks = random_blocks(kind, n, std, rng)

    def pieces(self, n_blocks: int, rng: np.random.Generator) -> Iterator[Bytes]:
        """n blocks in a row."""
        longest = len(self._blocks) // 2
        while n_blocks > 0:
            count = min(n_blocks, longest)
            begin = int(rng.integers(0, len(self._blocks) - count + 1))
            yield self._blocks[begin : begin + count]
            n_blocks -= count
