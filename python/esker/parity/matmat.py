# SPDX-License-Identifier: MIT
"""metal/matmat.metal: every weight type, sizes around every edge of a tile, against float64.

What may not be read is NaN (the gaps between rows of x), what may not be written keeps its mark (the
gaps between rows of out).
"""

import numpy as np

from . import abi
from .cases import check, error, in_every_order, launch, parametrize, within
from .weights import (
    MARK,
    PARTIAL,
    TYPES,
    activations,
    matrix_args,
    random_weights,
    strided,
    usual_size,
)


def run(name, data, x, cols, *, x_stride=None, y_stride=None, scale=None, order="forward"):
    rows, tokens = len(data), len(x)
    x_stride, y_stride = x_stride or cols, y_stride or rows
    out = np.full((tokens, y_stride), MARK)
    args = matrix_args(data, x, cols, x_stride, y_stride, scale)
    groups = (-(-tokens // abi.kTileTokens), -(-rows // 128), 1)
    buffers = [data, strided(x, x_stride), out]
    launch(f"matmat_{name}", args, buffers, groups=groups, threads=(128, 1, 1), order=order)
    check((out[:, rows:] == MARK).all())
    return out[:, :rows].copy()


@parametrize("name", TYPES)
def case_every_type(name):
    """Two tiles of rows and two of tokens, the second of each nearly empty; three orders of lanes."""
    cols = {1: 77, 256: 512}.get(TYPES[name][1], 192)
    data, weights = random_weights(name, 135, cols)
    x = activations(37, cols)
    strides = {"x_stride": cols + 3, "y_stride": 140}
    (got,) = in_every_order(lambda order: [run(name, data, x, cols, order=order, **strides)])
    within(error(got, x @ weights.T), 1e-6)


@parametrize("name", ["F16", "Q4_K"])
@parametrize(
    ("rows", "tokens"),
    # Rows: how a tile is split among its simdgroups changes behind 32 and 64. Tokens: fragments of 8.
    [(1, 1), (7, 32), (32, 9), (33, 8), (64, 31), (65, 16), (96, 17), (97, 7), (128, 33), (129, 64),
     (200, 5), (257, 25)],
)  # fmt: skip
def case_edges(name, rows, tokens):
    data, weights = random_weights(name, rows, 256)
    x = activations(tokens, 256)
    got = run(name, data, x, 256)
    within(error(got, x @ weights.T, usual_size(x, weights)), 1e-6)


@parametrize("name", PARTIAL)
@parametrize("cols", [1, 15, 16, 31, 32, 33, 63, 64, 65])
def case_last_columns(name, cols):
    data, weights = random_weights(name, 40, cols)
    x = activations(10, cols)
    got = run(name, data, x, cols)
    within(error(got, x @ weights.T, usual_size(x, weights)), 1e-6)


def case_long_rows():
    """A sum of n in order is off by about 3e-8 sqrt(n / 2), hence the wider bound."""
    data, weights = random_weights("Q8_0", 128, 4096)
    x = activations(8, 4096)
    within(error(run("Q8_0", data, x, 4096), x @ weights.T), 2.5e-6)


@parametrize("rows", [4, 130])
def case_scaled_silu(rows):
    data, weights = random_weights("Q5_0", rows, 64)
    x = activations(34, 64)
    v = 0.125 * (x @ weights.T)
    got = run("Q5_0", data, x, 64, scale=0.125, y_stride=rows + 1)
    within(error(got, v / (1 + np.exp(-v))), 1e-6)


@parametrize("rows", [20, 50, 130])
@parametrize("name", ["BF16", "IQ3_S"])
def case_a_token_is_alone(name, rows):
    """The same bits by itself, in a full tile, at every place of it; what others hold stays theirs."""
    cols = 70 if name == "BF16" else 256
    data, _ = random_weights(name, rows, cols)
    x = activations(32, cols)
    together = run(name, data, x, cols)
    alone = run(name, data, x[5:6], cols)
    np.testing.assert_array_equal(together[5:6], alone)
    np.testing.assert_array_equal(
        run(name, data, np.roll(x, 11, axis=0), cols), np.roll(together, 11, axis=0)
    )
    wild = x.copy()
    wild[[4, 6, 12, 13, 21, 31]] = [[np.nan], [np.inf], [-np.inf], [0], [3e38], [np.nan]]
    np.testing.assert_array_equal(run(name, data, wild, cols)[5:6], alone)


def case_a_row_is_alone():
    """A row's NaN is not another row's."""
    data, _ = random_weights("F32", 40, 45)
    x = activations(3, 45)
    before = run("F32", data, x, 45)
    data.view(np.float32)[[3, 39]] = np.nan
    after = run("F32", data, x, 45)
    check(np.isnan(after[:, [3, 39]]).all())
    kept = np.setdiff1d(np.arange(40), [3, 39])
    np.testing.assert_array_equal(after[:, kept], before[:, kept])
