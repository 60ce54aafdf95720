# SPDX-License-Identifier: MIT
"""Matrices of every weight type, and what a product with them may differ by."""

import numpy as np

from .. import _core
from .abi import CONSTANTS, STRUCTS

# Name: type id, weights and bytes of a block (as abi/weight_types.h), offsets of its halves.
TYPES = {
    "F32": (0, 1, 4, ()),
    "F16": (1, 1, 2, (0,)),
    "Q4_0": (2, 32, 18, (0,)),
    "Q4_1": (3, 32, 20, (0, 2)),
    "Q5_0": (6, 32, 22, (0,)),
    "Q5_1": (7, 32, 24, (0, 2)),
    "Q8_0": (8, 32, 34, (0,)),
    "Q2_K": (10, 256, 84, (80, 82)),
    "Q3_K": (11, 256, 110, (108,)),
    "Q4_K": (12, 256, 144, (0, 2)),
    "Q5_K": (13, 256, 176, (0, 2)),
    "Q6_K": (14, 256, 210, (208,)),
    "IQ2_XXS": (16, 256, 66, (0,)),
    "IQ2_XS": (17, 256, 74, (0,)),
    "IQ3_XXS": (18, 256, 98, (0,)),
    "IQ1_S": (19, 256, 50, (0,)),
    "IQ4_NL": (20, 32, 18, (0,)),
    "IQ3_S": (21, 256, 110, (0,)),
    "IQ2_S": (22, 256, 82, (0,)),
    "IQ4_XS": (23, 256, 136, (0,)),
    "IQ1_M": (29, 256, 56, ()),  # its half lies scattered: see iq1_m_scale
    "BF16": (30, 1, 2, ()),
    "TQ1_0": (34, 256, 54, (52,)),
    "TQ2_0": (35, 256, 66, (64,)),
    "MXFP4": (39, 32, 17, ()),
    "NVFP4": (40, 64, 36, ()),
    "Q2_0": (42, 64, 18, (0,)),
}

# Halves by their bits: +-0, the smallest and the largest subnormal, the smallest normal, +-1, an
# ordinary small scale, the largest finite of both signs.
FINITE_HALVES = (0, 0x8000, 1, 0x8001, 0x3FF, 0x83FF, 0x400, 0x3C00, 0xBC00, 0x1234, 0x7BFF, 0xFBFF)
PARTIAL = ("F32", "F16", "BF16")  # types whose rows may end within a block of 32
MARK = np.float32(-123.25)  # where nothing may be written


def random_blocks(name, n_blocks, seed=0):
    _, _, block_bytes, _ = TYPES[name]
    rng = np.random.default_rng([seed, *name.encode()])
    return rng.integers(0, 256, (n_blocks, block_bytes), np.uint8)


def set_halves(name, blocks, halves):
    """Puts every combination of `halves` into the scale fields, block after block."""
    offsets = TYPES[name][3]
    for k, offset in enumerate(offsets):
        chosen = np.array(halves, "<u2")[np.arange(len(blocks)) // len(halves) ** k % len(halves)]
        blocks[:, offset : offset + 2] = chosen.reshape(-1, 1).view(np.uint8)
    if name == "IQ1_M":
        iq1_m_scale(blocks, np.array(halves)[np.arange(len(blocks)) % len(halves)])
    return blocks


def iq1_m_scale(blocks, halves):
    """Nibble i of the half is the top nibble of word i of the last eight bytes."""
    for i in range(4):
        high_byte = blocks[:, 49 + 2 * i]
        high_byte[:] = (high_byte & 15) | ((halves >> 4 * i & 15) << 4)


def decode(name, blocks):
    type_id, elements, _, _ = TYPES[name]
    n = len(blocks) * elements
    return _core.decode_weights(type_id, blocks.tobytes(), n)


def random_weights(name, rows, cols, seed=0):
    """Bytes of a matrix [rows, row_bytes] and its weights [rows, cols] as float64, of order 1."""
    type_id, elements, _, halves = TYPES[name]
    rng = np.random.default_rng([seed, rows, cols, *name.encode()])
    if name in PARTIAL:
        values = rng.standard_normal((rows, cols), np.float32)
        if name == "BF16":
            data = (values.view(np.uint32) >> 16).astype(np.uint16)
        else:
            data = values.astype(np.float16) if name == "F16" else values
        blocks = data.view(np.uint8)
    else:
        n = rows * (cols // elements)
        blocks = random_blocks(name, n, seed=seed)
        scales = (rng.uniform(0.5, 2, (n, 2)) * rng.choice([-1, 1], (n, 2))).astype("<f2")
        for k, offset in enumerate(halves):
            blocks[:, offset : offset + 2] = scales[:, k : k + 1].view(np.uint8)
        if name == "IQ1_M":
            iq1_m_scale(blocks, scales[:, 0].view(np.uint16))
        if name == "MXFP4":
            blocks[:, 0] = rng.integers(124, 130, n)
    data = np.ascontiguousarray(blocks.reshape(rows, -1))
    weights = _core.decode_weights(type_id, data.tobytes(), rows * cols).reshape(rows, cols)
    return data, weights.astype(np.float64)


def strided(values, stride):
    """Rows [T, n] in an array [T, stride] of NaN."""
    out = np.full((len(values), stride), np.nan, np.float32)
    out[:, : values.shape[1]] = values
    return out


def matrix_args(data, x, cols, x_stride, y_stride, scale):
    """scale: of the epilogue, None without"""
    return STRUCTS["MatrixArgs"](
        rows=len(data),
        cols=cols,
        tokens=len(x),
        row_bytes=data.shape[1],
        x_stride=x_stride,
        y_stride=y_stride,
        epilogue=CONSTANTS["kPlain"] if scale is None else CONSTANTS["kScaledSilu"],
        scale=0.0 if scale is None else scale,
    )


def usual_size(x, weights):
    """How large products of such rows are: where there are few, some happen to be much smaller."""
    return np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(weights, axis=1)


def activations(tokens, cols, seed=1):
    return np.random.default_rng([seed, tokens, cols]).standard_normal((tokens, cols), np.float32)
