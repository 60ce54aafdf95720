# SPDX-License-Identifier: MIT
"""metal/matvec.metal and metal/quants.h: products, decoders and the largest logits, against float64.

What may not be read is NaN (the gaps between rows of x), what may not be written keeps its mark.
"""

import numpy as np

from . import abi
from .cases import ORDERS, Skipped, check, error, launch, parametrize, same_bits, within
from .weights import (
    FINITE_HALVES,
    MARK,
    PARTIAL,
    TYPES,
    activations,
    decode,
    matrix_args,
    random_blocks,
    random_weights,
    set_halves,
    strided,
    usual_size,
)

CODEBOOKS = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")
TABLES = (*CODEBOOKS, "IQ4_NL", "IQ4_XS")  # types with kernels that copy a table

# Lanes, rows of a lane group, simdgroups of a threadgroup, simdgroups that share rows.
TILES = (
    (32, 1, 4, 1), (32, 2, 4, 1), (32, 4, 2, 1), (16, 1, 4, 1), (16, 4, 4, 1), (8, 2, 4, 1), (8, 4, 1, 1),
    (4, 1, 8, 1), (4, 2, 4, 1), (32, 1, 8, 4), (32, 2, 8, 8), (16, 2, 4, 2), (8, 1, 4, 4), (4, 4, 8, 2),
)  # fmt: skip


def matvec(
    name, data, x, cols, tile, *, threadgroup_table=False, stage=None, window=None, x_stride=None,
    y_stride=None, scale=None, order="forward",
):  # fmt: skip
    lanes, rows_each, simdgroups, split = tile
    rows, tokens = len(data), len(x)
    x_stride, y_stride = x_stride or cols, y_stride or rows
    out = np.full((tokens, y_stride), MARK)
    args = matrix_args(data, x, cols, x_stride, y_stride, scale)
    constants = {abi.kLanesConstant: lanes, abi.kSplitConstant: split}
    if window is not None:
        constants[abi.kTokensConstant] = window
    if stage is not None:
        constants[abi.kStageConstant] = stage
    launch(
        f"matvec_{name}_r{rows_each}{'_tg' if threadgroup_table else ''}",
        args,
        [data, strided(x, x_stride), out],
        groups=(-(-rows // (simdgroups // split * (32 // lanes) * rows_each)), 1, 1),
        threads=(32 * simdgroups, 1, 1),
        constants=constants,
        order=order,
    )
    check((out[:, rows:] == MARK).all())
    return out[:, :rows].copy()


def width_of(name, least=1):
    """A few blocks, at least so many columns, and not a round number of them."""
    elements = TYPES[name][1]
    n = -(-max(least, 200) // elements)
    return 211 + least if elements == 1 else elements * (n | 1)


# Decoders, through the rows of an embedding.


def embed(name, data, ids, width, streams=2, order="forward"):
    ids = np.array(ids, np.int32)
    out = np.full((len(ids), streams, width), MARK)
    args = abi.EmbedArgs(tokens=len(ids), width=width, streams=streams, row_bytes=data.shape[1])
    groups = (-(-width // (32 * 64)), len(ids), 1)
    launch(f"embed_{name}", args, [data, ids, out], groups=groups, threads=(64, 1, 1), order=order)
    return out


@parametrize("name", TYPES)
def case_decoders_give_the_same_floats(name):
    """Random bytes with halves of every kind: what is finite is equal, NaNs stand at the same places."""
    _, elements, _, halves = TYPES[name]
    width, rows = (992, 40) if elements == 1 else (elements * (1024 // elements), 144)
    n = rows * width // elements
    blocks = random_blocks(name, n, seed=9)
    if halves or name == "IQ1_M":
        half = n // 2
        blocks[:half] = set_halves(name, blocks[:half], FINITE_HALVES)  # the rest: any bits
    if name == "MXFP4":
        blocks[:, 0] %= 241  # beyond, a weight is larger than 2^112 or infinite here
    data = np.ascontiguousarray(blocks.reshape(rows, -1))
    want = decode(name, blocks).reshape(rows, width)
    got = embed(name, data, range(rows), width)
    for stream in (0, 1):
        np.testing.assert_array_equal(got[:, stream], want)


@parametrize("name", ["F32", "Q6_K", "IQ2_XS"])
def case_embedding_takes_the_rows_asked_for(name):
    width = 333 if name == "F32" else 2560
    data, weights = random_weights(name, 7, width)
    for streams in (1, 4):
        for order in ORDERS:
            got = embed(name, data, [6, 0, 3, 3, 5], width, streams, order)
            want = np.repeat(weights[[6, 0, 3, 3, 5], None], streams, axis=1)
            np.testing.assert_array_equal(got, want)


# Products.


@parametrize("name", TYPES)
def case_every_type(name):
    """Tiles at random for each type; odd numbers of rows, gaps between rows, orders of lanes. How many rows
    a lane group has does not show."""
    cols = width_of(name)
    data, weights = random_weights(name, 37, cols)
    x = activations(4, cols)
    for i in range(3):
        tile = TILES[(5 * sorted(TYPES).index(name) + 6 * i) % len(TILES)]
        tokens = 1 + (sorted(TYPES).index(name) + i) % 4
        options = {"x_stride": 4 * (cols // 4 + 2), "y_stride": 41}
        got = matvec(name, data, x[:tokens], cols, tile, **options)
        within(error(got, x[:tokens] @ weights.T), 1e-6)
        for order in ORDERS:
            same_bits(matvec(name, data, x[:tokens], cols, tile, order=order, **options), got)
            same_bits(
                matvec(name, data, x[:tokens], cols, tile, order=order, stage=1, **options), got
            )
        lanes, _, simdgroups, split = tile
        for rows in (1, 2, 4):
            other = (lanes, rows, simdgroups, split)
            same_bits(matvec(name, data, x[:tokens], cols, other, **options), got)


@parametrize("name", ["BF16", "Q8_0", "Q4_K", "Q2_0"])
@parametrize("tile", TILES, ids=str)
def case_every_tile(name, tile):
    cols = {"BF16": 160, "Q4_K": 1280}.get(name, 640)
    for rows in (1, 70):
        data, weights = random_weights(name, rows, cols)
        x = activations(3, cols)
        for stage in (0, 1):
            got = matvec(name, data, x, cols, tile, stage=stage)
            within(error(got, x @ weights.T, usual_size(x, weights)), 1e-6)


@parametrize("name", TABLES)
def case_tables_in_threadgroup_memory(name):
    """The same bits, and the right ones."""
    cols = width_of(name)
    data, weights = random_weights(name, 33, cols)
    x = activations(2, cols)
    for tile in TILES[:: 3 if name == "IQ2_S" else 6]:
        got = matvec(name, data, x, cols, tile, threadgroup_table=True)
        within(error(got, x @ weights.T), 1e-6)
        same_bits(got, matvec(name, data, x, cols, tile))
    lanes, _, simdgroups, split = tile
    for rows in (1, 2, 4):
        other = (lanes, rows, simdgroups, split)
        same_bits(got, matvec(name, data, x, cols, other, threadgroup_table=True))
    for stage in (0, 1):
        same_bits(
            got,
            matvec(name, data, x, cols, tile, threadgroup_table=True, stage=stage, order="random"),
        )


@parametrize("name", TYPES)
def case_a_token_is_alone(name):
    """The same bits in every window, at every place of it, whatever registers are set aside."""
    cols = width_of(name)
    data, _ = random_weights(name, 19, cols)
    x = activations(4, cols)
    tile = TILES[(3 + 5 * sorted(TYPES).index(name)) % len(TILES)]
    alone = np.concatenate(
        [matvec(name, data, x[t : t + 1], cols, tile, window=1) for t in range(4)]
    )
    for tokens in (1, 2, 3, 4):
        for window, stage in ((None, 0), (tokens, 1), (4, None), (4, 1)):
            got = matvec(name, data, x[:tokens], cols, tile, window=window, stage=stage)
            same_bits(got, alone[:tokens])
    wild = x.copy()
    wild[[0, 2]] = [[np.nan], [np.inf]]
    same_bits(matvec(name, data, wild, cols, tile)[[1, 3]], alone[[1, 3]])


@parametrize("name", PARTIAL)
@parametrize("cols", [1, 4, 7, 8, 31, 32, 33, 100, 104, 256])
def case_columns_without_blocks(name, cols):
    data, weights = random_weights(name, 11, cols)
    x = activations(2, cols)
    for tile in (TILES[0], TILES[11]):
        for x_stride in (cols, cols + 4, cols + 5):
            got = matvec(name, data, x, cols, tile, x_stride=x_stride)
            within(error(got, x @ weights.T, usual_size(x, weights)), 1e-6)


@parametrize("name", ["Q8_0", "IQ3_S", "F16"])
@parametrize("cols", [32, 320, 640, 2560, 10240])
def case_lengths_of_rows(name, cols):
    if cols % TYPES[name][1] != 0:
        raise Skipped("not a row of whole blocks")
    data, weights = random_weights(name, 9, cols)
    x = activations(1, cols)
    for tile in (TILES[0], TILES[9], TILES[8]):
        got = matvec(name, data, x, cols, tile, threadgroup_table=name == "IQ3_S")
        within(error(got, x @ weights.T, usual_size(x, weights)), 1e-6)
        same_bits(matvec(name, data, x, cols, tile, stage=1, window=1), got)


@parametrize("tile", [TILES[0], TILES[9], TILES[13]], ids=str)
def case_scaled_silu(tile):
    data, weights = random_weights("Q5_0", 50, 320)
    x = activations(3, 320)
    v = 0.125 * (x @ weights.T)
    got = matvec("Q5_0", data, x, 320, tile, scale=0.125, y_stride=53)
    within(error(got, v / (1 + np.exp(-v))), 1e-6)


def case_a_nan_stays_in_its_row():
    data, _ = random_weights("F32", 40, 48)
    x = activations(2, 48)
    tile = TILES[1]
    before = matvec("F32", data, x, 48, tile)
    data.view(np.float32)[[3, 39], [0, 47]] = np.nan
    after = matvec("F32", data, x, 48, tile)
    check(np.isnan(after[:, [3, 39]]).all())
    kept = np.setdiff1d(np.arange(40), [3, 39])
    same_bits(after[:, kept], before[:, kept])


# The mixer's up product with the read of the streams.


def mix_up_read(name, data, low, normed, *, window=None, order="forward"):
    tokens, streams, width = normed.shape
    out = np.full((tokens, width), MARK)
    args = abi.MixUpReadArgs(
        tokens=tokens, streams=streams, width=width, rank=low.shape[1], row_bytes=data.shape[1]
    )
    launch(
        f"mix_up_read_{name}",
        args,
        [data, low, normed, out],
        groups=(-(-width // 16), 1, 1),
        threads=(128, 1, 1),
        constants={} if window is None else {abi.kTokensConstant: window},
        order=order,
    )
    return out


@parametrize("name", TYPES)
def case_mix_up_read(name):
    rank = {1: 48, 256: 512}.get(TYPES[name][1], 320)
    width, streams = 37, 4
    data, weights = random_weights(name, streams * width, rank)
    low = activations(4, rank)
    low *= np.float32(2 / (low @ weights.T).std())  # gates where a sigmoid is not flat
    normed = activations(4 * streams, width).reshape(4, streams, width)
    gates = (low @ weights.T).reshape(4, streams, width)
    want = (normed / (1 + np.exp(-gates))).mean(axis=1)
    got = mix_up_read(name, data, low, normed)
    within(error(got, want), 1e-6)
    for order in ORDERS[1:]:
        same_bits(mix_up_read(name, data, low, normed, order=order), got)
    for tokens in (1, 2, 3):
        same_bits(
            mix_up_read(name, data, low[:tokens], normed[:tokens], window=tokens), got[:tokens]
        )


@parametrize("streams", [1, 2, 3, 4, 5, 6, 7, 9])
@parametrize(("name", "rank", "width"), [("F16", 33, 20), ("Q8_0", 320, 16), ("IQ4_NL", 32, 1)])
def case_numbers_of_streams(streams, name, rank, width):
    data, weights = random_weights(name, streams * width, rank)
    low = activations(2, rank) / np.float32(np.sqrt(rank))
    normed = activations(2 * streams, width).reshape(2, streams, width)
    want = (normed / (1 + np.exp(-(low @ weights.T).reshape(normed.shape)))).mean(axis=1)
    within(
        error(mix_up_read(name, data, low, normed), want, np.linalg.norm(normed) / streams), 1e-6
    )


# The largest logits.


def logits_top(logits, k, order="forward"):
    tokens, n = logits.shape
    ids, values = np.full((tokens, k), -7, np.int32), np.full((tokens, k), MARK)
    args = abi.LogitsTopArgs(tokens=tokens, n=n, k=k)
    launch(
        "logits_top",
        args,
        [logits, ids, values],
        groups=(tokens, 1, 1),
        threads=(1024, 1, 1),
        order=order,
    )
    return ids, values


def assert_top(logits, k, order="forward"):
    """Larger first, NaNs before all; equals by index. -0 and 0 are equal."""
    ids, values = logits_top(logits, k, order)
    for t, row in enumerate(logits):
        key = np.where(np.isnan(row), np.inf, row).astype(np.float64)
        by_rank = np.lexsort((np.arange(len(row)), -key, ~np.isnan(row)))[:k]
        n = len(by_rank)
        np.testing.assert_array_equal(ids[t, :n], by_rank)
        np.testing.assert_array_equal(values[t, :n].view(np.uint32), row[by_rank].view(np.uint32))
        check((ids[t, n:] == -1).all() and (values[t, n:] == -np.inf).all())


@parametrize(
    ("n", "k"), [(1, 1), (5, 8), (63, 64), (1000, 64), (4099, 40), (20000, 1), (12288, 64)]
)
def case_the_largest_logits(n, k):
    rng = np.random.default_rng([n, k])
    logits = rng.standard_normal((2, n), np.float32) * 5
    assert_top(logits, k)
    assert_top(np.round(logits), k, "random")  # many ties
    assert_top(-np.sort(logits), k)
    assert_top(np.full((1, n), -2.5, np.float32), k, "reverse")


def case_logits_that_are_no_numbers():
    logits = np.random.default_rng(3).standard_normal((1, 6000), np.float32)
    logits[0, [10, 4000]] = np.inf
    logits[0, 20:3000] = -np.inf
    logits[0, 3000:3200] = np.tile(np.float32([0.0, -0.0]), 100)
    assert_top(logits, 64)
    logits[0, [5999, 17]] = np.float32([np.nan, -np.nan])
    assert_top(logits, 8)
    assert_top(np.full((1, 3000), np.nan, np.float32), 5)
    assert_top(np.full((1, 3000), -np.inf, np.float32), 5)
    assert_top(np.tile(np.float32([-0.0, 0.0]), 700)[None], 64)


@parametrize("k", [63, 64])
def case_largest_logits_that_few_threads_see(k):
    """k - 1 threads have all that is large, so that the bound lets all of it pass: more candidates than there is
    room for. The bound is then found bit by bit."""
    n = 40960
    logits = np.random.default_rng(4).standard_normal((1, n), np.float32)
    seen = np.arange(n) // 4 % 1024 < k - 1  # four neighbours to a thread
    logits[0, seen] += 100
    check(seen.sum() > 2048)
    for order in ORDERS:
        assert_top(logits, k, order)
    assert_top(np.where(seen, np.float32(7), logits), k, "random")
