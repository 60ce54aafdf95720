# SPDX-License-Identifier: MIT
"""The bytes of every tensor, piece by piece in constant memory.

A tensor's content depends on the seed, its name, dims and type, and on nothing else.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Iterator
from math import log, prod, sqrt

import numpy as np
import numpy.typing as npt

from .. import _core
from ..errors import UsageError, fault
from ..gguf_writer import Piece, Tensor, WeightType
from . import routing
from .blocks import Bytes, Floats, Pool, encode_plain, generator, random_blocks
from .shape import Shape
from .tensors import GROWTH, MIXED, Fill

QUANTISED = ("F32", "F16", "BF16", "Q8_0", "Q2_0", "Q4_K", "Q6_K", "IQ4_NL", "IQ4_XS")

_PIECE_BYTES = 4 << 20  # about what is made at a time
_POOLS = 4  # kept: the types of one layer's experts
# Added to the logits of the tokens of the text's topic: a text that is drawn from the model at
# temperature 1 stays about as long as token_stream does.
_TOPIC_BONUS = log((routing.TOPICS - 1) * routing.STAY)
_X_STD = 0.52  # of the values a router reads, without the reserved ones


class Content:
    """Makes the bytes of a plan's tensors."""

    def __init__(
        self, shape: Shape, fills: list[Fill], seed: int, zipf: float, sticky: float
    ) -> None:
        self._shape, self._seed, self._sticky = shape, seed, sticky
        self._fills = {fill.tensor.name: fill for fill in fills}
        self._reserved = routing.reserved_channels(shape.hidden)
        self._codes = routing.topic_codes(self._reserved - 1, self._generator("topic codes"))
        picked = routing.popularity(shape.experts, shape.experts_used, zipf)
        self._bias = -routing.SIGMA * routing.thresholds(picked)
        self._bias -= self._bias.mean()
        self._rho = routing.correlation(picked, sticky)
        self._pools: OrderedDict[tuple[str, float], Pool] = OrderedDict()
        for fill in fills:
            self._check_type(fill, zipf, sticky)

    def _check_type(self, fill: Fill, zipf: float, sticky: float) -> None:
        kind = fill.tensor.type.name
        routed = fill.kind == "embedding" and (zipf > 0 or sticky > 0)
        if kind in QUANTISED or not (fill.kind in ("gamma", "decay", "dt", "router") or routed):
            return
        raise UsageError(
            fault("synth", f"type of {fill.tensor.name}", got=kind,
                  want=f"one that can be quantised here: {', '.join(QUANTISED)}",
                  hint="--zipf 0 --sticky 0 need no such embedding" if routed else "")
        )  # fmt: skip

    def pieces(self, tensor: Tensor) -> Iterator[Piece]:
        fill = self._fills[tensor.name]
        if fill.kind == "pool":
            yield from self._from_pool(fill)
        elif fill.kind in ("random", "embedding", "output"):
            yield from self._random_rows(fill)
        elif fill.kind == "router":
            yield from self._router(fill)
        else:
            values = getattr(self, "_" + fill.kind)(fill)
            yield _encode(tensor.type, values)

    def _generator(self, name: str) -> np.random.Generator:
        return generator(self._seed, zlib.crc32(name.encode()))

    # ---- small tensors -------------------------------------------------------------------------

    def _gamma(self, fill: Fill) -> Floats:
        """Near 1; exactly 1 for reserved channels."""
        n = prod(fill.tensor.dims)
        gamma = 1 + fill.std * self._generator(fill.tensor.name).standard_normal(n, np.float32)
        if n == self._shape.wide:
            gamma.reshape(self._shape.streams, -1)[:, : self._reserved] = 1
        return gamma.astype(np.float32)

    def _decay(self, fill: Fill) -> Floats:
        """ssm_a: negative, from a memory of a few hundred tokens to none."""
        rng = self._generator(fill.tensor.name)
        return -np.exp(rng.uniform(np.log(0.05), np.log(4), fill.tensor.dims)).astype(np.float32)

    def _dt(self, fill: Fill) -> Floats:
        rng = self._generator(fill.tensor.name)
        return -1.5 + fill.std * rng.standard_normal(fill.tensor.dims[0], np.float32)

    def _router(self, fill: Fill) -> Iterator[Piece]:
        s, layer = self._shape, fill.layer
        assert layer is not None
        rng = self._generator(fill.tensor.name)
        # Reserved channels are 1 in the residual; the norm divides by the residual's size here.
        size = sqrt(1 + GROWTH * (2 * layer + 1) / (2 * s.layers))
        weights = rng.standard_normal((s.experts, s.hidden), np.float32)
        rest = s.hidden - self._reserved
        weights[:, self._reserved :] *= routing.SIGMA * sqrt(1 - self._rho) / (_X_STD * sqrt(rest))
        topic = routing.SIGMA * sqrt(self._rho) / sqrt(self._reserved - 1)
        weights[:, 1 : self._reserved] *= topic * size / MIXED
        weights[:, 0] = rng.permutation(self._bias) * size / MIXED
        yield _encode(fill.tensor.type, weights.reshape(-1))

    # ---- matrices ------------------------------------------------------------------------------

    def _random_rows(self, fill: Fill) -> Iterator[Piece]:
        """Fresh random blocks for every row, but for zero rows and the first blocks of special
        ones."""
        kind, n_row = fill.tensor.type, prod(fill.tensor.dims[1:])
        blocks = fill.tensor.dims[0] // kind.block_elements
        row_bytes = blocks * kind.block_bytes
        rng = self._generator(fill.tensor.name)
        step = max(1, _PIECE_BYTES // max(row_bytes, 4 * fill.tensor.dims[0]))
        for begin in range(0, n_row, step):
            n = min(step, n_row - begin)
            rows = random_blocks(kind, n * blocks, fill.std, rng).reshape(n, row_bytes)
            if fill.zero_rows:
                at = np.arange(begin, begin + n) % fill.period
                rows[at < fill.zero_rows] = 0
            if fill.kind != "random" and kind.name in QUANTISED:
                self._write_heads(fill, rows, begin, rng)
            yield rows

    def _write_heads(self, fill: Fill, rows: Bytes, begin: int, rng: np.random.Generator) -> None:
        """The first blocks of rows of token_embd and output, which hold the reserved channels."""
        kind, reserved = fill.tensor.type, self._reserved
        n_block = -(-reserved // kind.block_elements)
        width = min(n_block * kind.block_elements, self._shape.hidden)
        heads = np.float32(fill.std) * rng.standard_normal((len(rows), width), np.float32)
        codes = self._codes[routing.topic_of(np.arange(begin, begin + len(rows)))]
        if fill.kind == "embedding":
            heads[:, 0] = 1
            heads[:, 1:reserved] = codes
        else:
            heads[:, 0] = 0
            # The final mixer leaves MIXED / size of a reserved channel.
            gain = _TOPIC_BONUS * sqrt(1 + GROWTH) / MIXED / (reserved - 1)
            heads[:, 1:reserved] = codes * np.float32(gain if self._sticky > 0 else 0)
        head_bytes = _encode(kind, heads.reshape(-1)).reshape(len(rows), -1)
        rows[:, : head_bytes.shape[1]] = head_bytes

    def _from_pool(self, fill: Fill) -> Iterator[Piece]:
        kind, dims = fill.tensor.type, fill.tensor.dims
        key = (kind.name, fill.std)
        if key not in self._pools:
            if len(self._pools) >= _POOLS:
                self._pools.popitem(last=False)
            self._pools[key] = Pool(kind, fill.std, self._seed)
        self._pools.move_to_end(key)
        pool = self._pools[key]
        blocks = dims[0] // kind.block_elements
        if len(dims) == 2:
            yield from pool.pieces(blocks * dims[1], self._generator(fill.tensor.name))
            return
        rng = self._generator(fill.tensor.name)
        zeros = bytes(fill.zero_rows * blocks * kind.block_bytes)
        for _ in range(dims[2]):
            yield zeros
            yield from pool.pieces(blocks * (dims[1] - fill.zero_rows), rng)


def _encode(kind: WeightType, values: npt.NDArray[np.float32]) -> Bytes:
    values = np.ascontiguousarray(values, np.float32)
    if kind.block_elements == 1:
        return encode_plain(kind, values)
    return np.frombuffer(_core.quantize_weights(kind.id, values), np.uint8)
