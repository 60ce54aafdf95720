# SPDX-License-Identifier: MIT
"""metal/experts.metal: a window's experts, every weight type, against float64.

What may not be read is NaN (activations of picks out of the round, bytes between the matrices),
what may not be written keeps its mark.
"""

import itertools

import numpy as np

from . import abi
from .cases import ORDERS, check, error, launch, parametrize, same_bits, within
from .weights import MARK, PARTIAL, TYPES, activations, random_weights

GRIDS = ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S", "IQ1_M")
N_EXPERT, TOP_K = 7, 3
GAP = 32  # bytes of nothing between the matrices of a slot
# Lanes a row, simdgroups; by turns, for the types.
TILES = [(32, 4), (8, 2), (16, 1), (4, 2), (2, 1), (1, 1)]

# Of 4 tokens: experts 1 and 5 are shared by two and by three of them, not always from the first.
PICKS = np.array([[5, 0, 2], [1, 5, 3], [6, 1, 4], [2, 5, 0]], np.int32)


def columns(name):
    return {1: 96, 256: 512, 64: 192}.get(TYPES[name][1], 160)


class Experts:
    """Matrices of every expert in an arena, in slots out of order."""

    def __init__(self, *shapes, n_expert=N_EXPERT):
        """shapes: (type, rows, cols) of each matrix of a record"""
        made = [
            [random_weights(*shape, seed=31 * e + i) for i, shape in enumerate(shapes)]
            for e in range(n_expert)
        ]
        self.weights = [[weights for _, weights in record] for record in made]
        self.row_bytes = [data.shape[1] for data, _ in made[0]]
        self.offsets, at = [], GAP
        for data, _ in made[0]:
            self.offsets.append(at)
            at += -(-data.size // 32) * 32 + GAP
        self.slot_bytes = at
        self.slot_of = np.random.default_rng(n_expert).permutation(n_expert).astype(np.int32)
        self.arena = np.full((n_expert, at), 0xFF, np.uint8)
        for e, record in enumerate(made):
            for (data, _), offset in zip(record, self.offsets):
                self.arena[self.slot_of[e], offset : offset + data.size] = data.ravel()

    def slots(self, experts, is_first=True):
        """Of a round that has these experts."""
        slots = np.full(1 + len(self.slot_of), -1, np.int32)
        slots[0] = is_first
        for e in experts:
            slots[1 + e] = self.slot_of[e]
        return slots


EVERYONE = range(N_EXPERT)


def gate_up(
    kernel,
    experts,
    x,
    picks,
    *,
    chosen=EVERYONE,
    part=abi.kGateAndUp,
    h=None,
    which=(0, 1),
    rows=1,
    lanes=32,
    simdgroups=2,
    tokens=None,
    stage=None,
    order="forward",
):
    """h [T, K, F]; which: what of a record is gate and up; tokens: what kernels are made for"""
    n_rows = experts.weights[0][0].shape[0]
    args = abi.ExpertGateUpArgs(
        slot_bytes=experts.slot_bytes,
        gate_offset=experts.offsets[which[0]],
        up_offset=experts.offsets[which[1]],
        tokens=len(x),
        top_k=picks.shape[1],
        n_expert=len(experts.slot_of),
        width=x.shape[1],
        expert_width=n_rows,
        row_bytes=experts.row_bytes[which[1] if part == abi.kUpToGate else which[0]],
        part=part,
    )
    h = np.full((*picks.shape, n_rows), MARK) if h is None else h
    constants = {abi.kLanesConstant: lanes}
    if tokens:
        constants[abi.kTokensConstant] = tokens
    if stage is not None:
        constants[abi.kStageConstant] = stage
    launch(
        kernel,
        args,
        [experts.arena, experts.slots(chosen), picks, x, h],
        groups=(-(-n_rows // (simdgroups * 32 // lanes * rows)), picks.size, 1),
        threads=(32 * simdgroups, 1, 1),
        constants=constants,
        order=order,
    )
    return h


def down(
    kernel,
    experts,
    h,
    picks,
    weights,
    *,
    chosen=EVERYONE,
    is_first=True,
    y=None,
    rows=1,
    lanes=32,
    simdgroups=2,
    split=None,
    tokens=None,
    order="forward",
):
    n_rows, n_cols = experts.weights[0][-1].shape
    args = abi.ExpertDownArgs(
        slot_bytes=experts.slot_bytes,
        down_offset=experts.offsets[-1],
        tokens=len(picks),
        top_k=picks.shape[1],
        n_expert=len(experts.slot_of),
        width=n_rows,
        expert_width=n_cols,
        row_bytes=experts.row_bytes[-1],
    )
    y = np.full((len(picks), n_rows), np.nan, np.float32) if y is None else y
    constants = {abi.kLanesConstant: lanes}
    if split:
        constants[abi.kSplitConstant] = split
    if tokens:
        constants[abi.kTokensConstant] = tokens
    by_expert = np.argsort(picks, axis=1).astype(np.int32)
    buffers = [experts.arena, experts.slots(chosen, is_first), picks, by_expert, weights, h, y]
    launch(
        kernel,
        args,
        buffers,
        groups=(-(-n_rows // (simdgroups // (split or 1) * 32 // lanes * rows)), 1, 1),
        threads=(32 * simdgroups, 1, 1),
        constants=constants,
        order=order,
    )
    return y


def silu(v):
    return v / (1 + np.exp(-v))


def inputs(experts, tokens, seed=1):
    """x [T, D] that makes gates of order 1, where silu is neither 0 nor the identity."""
    gate = experts.weights[0][0]
    return activations(tokens, gate.shape[1], seed) / np.float32(
        np.linalg.norm(gate, axis=1).mean()
    )


def expected_h(experts, x, picks, which=(0, 1)):
    x = x.astype(np.float64)
    out = np.empty((*picks.shape, experts.weights[0][0].shape[0]))
    for t, k in np.ndindex(picks.shape):
        record = experts.weights[picks[t, k]]
        out[t, k] = silu(record[which[0]] @ x[t]) * (record[which[1]] @ x[t])
    return out


def expected_y(experts, h, picks, weights):
    out = np.zeros((len(picks), experts.weights[0][-1].shape[0]))
    for t, k in np.ndindex(picks.shape):
        out[t] += np.float64(weights[t, k]) * (
            experts.weights[picks[t, k]][-1] @ h[t, k].astype(np.float64)
        )
    return out


def pick_weights(picks, seed=7):
    return np.random.default_rng(seed).uniform(0.1, 1, picks.shape).astype(np.float32)


def variants(base, name):
    """(kernel, rows): 1, 2 and 4 rows, with the table in constant and in threadgroup memory."""
    tables = ["", "_tg"] if name in GRIDS else [""]
    return [(f"{base}_{name}_r{rows}{table}", rows) for table in tables for rows in (1, 2, 4)]


@parametrize("name", TYPES)
def case_gate_and_up_of_every_type(name):
    """All kernels of a type: one result, bit for bit, that is right."""
    experts = Experts((name, 21, columns(name)), (name, 21, columns(name)))
    x = inputs(experts, 4)
    lanes, simdgroups = TILES[sum(name.encode()) % len(TILES)]
    chosen = (0, 1, 2, 4, 5)
    present = np.isin(PICKS, chosen)
    first = None
    for kernel, rows in variants("expert_gate_up", name):
        for order in ORDERS if rows == 2 else ORDERS[:1]:
            h = gate_up(
                kernel,
                experts,
                x,
                PICKS,
                chosen=chosen,
                rows=rows,
                lanes=lanes,
                simdgroups=simdgroups,
                order=order,
            )
            first = h if first is None else first
            check(h.tobytes() == first.tobytes())
    within(error(first[present], expected_h(experts, x, PICKS)[present]), 1e-6)
    check((first[~present] == MARK).all())


@parametrize("name", TYPES)
def case_down_of_every_type(name):
    experts = Experts((name, 37, columns(name)))
    h = activations(12, columns(name)).reshape(4, TOP_K, -1)
    weights = pick_weights(PICKS)
    lanes, simdgroups = TILES[sum(name.encode()) % len(TILES)]
    first = None
    for kernel, rows in variants("expert_down", name):
        for order in ORDERS if rows == 2 else ORDERS[:1]:
            y = down(
                kernel,
                experts,
                h,
                PICKS,
                weights,
                rows=rows,
                lanes=lanes,
                simdgroups=simdgroups,
                order=order,
            )
            first = y if first is None else first
            check(y.tobytes() == first.tobytes())
    within(error(first, expected_y(experts, h, PICKS, weights)), 1e-6)


@parametrize("lanes", [1, 2, 4, 8, 16, 32])
@parametrize("name", ["Q4_K", "IQ3_S", "F16"])
def case_lanes(name, lanes):
    experts = Experts((name, 70, 256), (name, 70, 256), (name, 70, 256))
    x = inputs(experts, 2)
    picks, weights = np.ascontiguousarray(PICKS[:2]), pick_weights(PICKS[:2])
    options = {"lanes": lanes, "simdgroups": 3}
    h = gate_up(f"expert_gate_up_{name}_r2", experts, x, picks, rows=2, **options)
    within(error(h, expected_h(experts, x, picks)), 1e-6)
    wide = activations(6, 256, seed=9).reshape(2, TOP_K, 256)
    y = down(f"expert_down_{name}_r4", experts, wide, picks, weights, rows=4, **options)
    within(error(y, expected_y(experts, wide, picks, weights)), 1e-6)


@parametrize("name", PARTIAL)
@parametrize(("width", "n_rows"), [(31, 5), (70, 3), (100, 9), (1, 1), (129, 33)])
def case_sizes_that_fit_nothing(name, width, n_rows):
    experts = Experts((name, n_rows, width), (name, n_rows, width), (name, width, n_rows))
    x = inputs(experts, 3)
    picks, weights = np.ascontiguousarray(PICKS[:3]), pick_weights(PICKS[:3])
    h = gate_up(f"expert_gate_up_{name}_r2", experts, x, picks, rows=2, lanes=8)
    within(error(h, expected_h(experts, x, picks)), 1e-6)
    y = down(f"expert_down_{name}_r1", experts, h, picks, weights, lanes=16)
    within(error(y, expected_y(experts, h, picks, weights)), 1e-6)


@parametrize("name", [*GRIDS, "IQ4_XS", "Q8_0", "Q6_K", "Q2_0", "F32"])
@parametrize("width", [512, 2560, 5120])
def case_staged_activations(name, width):
    """Of one token, in threadgroup memory where there is room for them: the same bits."""
    experts = Experts((name, 10, width), (name, 10, width), n_expert=6)
    x = inputs(experts, 1)
    picks = np.array([[4, 0]], np.int32)
    for kernel, rows in variants("expert_gate_up", name):
        of = {"chosen": (0, 4), "rows": rows, "lanes": 16, "tokens": 1}
        h = gate_up(kernel, experts, x, picks, **of, stage=0)
        within(error(h, expected_h(experts, x, picks)), 1e-6)
        for order in ORDERS:
            same_bits(gate_up(kernel, experts, x, picks, **of, stage=1, order=order), h)


@parametrize("name", ["Q4_0", "Q8_0", "Q2_0", "NVFP4", "MXFP4"])
def case_rows_of_640(name):
    """Twenty parts, which 32 lanes share unevenly."""
    experts = Experts((name, 10, 640), (name, 10, 640), n_expert=6)
    x = inputs(experts, 1)
    picks = np.array([[4, 0]], np.int32)
    for lanes in (32, 8):
        h = gate_up(f"expert_gate_up_{name}_r1", experts, x, picks, chosen=(0, 4), lanes=lanes)
        within(error(h, expected_h(experts, x, picks)), 1e-6)
        wide = activations(2, 640, seed=3).reshape(1, 2, 640)
        weights = pick_weights(picks)
        y = down(
            f"expert_down_{name}_r2",
            experts,
            wide,
            picks,
            weights,
            chosen=(0, 4),
            rows=2,
            lanes=lanes,
        )
        within(error(y, expected_y(experts, wide, picks, weights)), 1e-6)


@parametrize(("gate", "up"), [("Q4_K", "Q4_K"), ("IQ2_XXS", "IQ2_XXS"), ("Q8_0", "IQ3_S")])
def case_gate_then_up(gate, up):
    """Of one type they give the bits of both at once; of two types what both would."""
    experts = Experts((gate, 19, 256), (up, 19, 256))
    x = inputs(experts, 4)
    chosen = (0, 1, 3, 5)
    h = np.full((*PICKS.shape, 19), MARK)
    gate_up(
        f"expert_gate_up_{gate}_r2",
        experts,
        x,
        PICKS,
        chosen=chosen,
        part=abi.kGateOnly,
        h=h,
        rows=2,
    )
    present = np.isin(PICKS, chosen)
    only = np.array(
        [
            [w[0] @ xt for w in (experts.weights[e] for e in p)]
            for p, xt in zip(PICKS, x.astype(float))
        ]
    )
    within(error(h[present], only[present]), 1e-6)
    gate_up(f"expert_gate_up_{up}_r1", experts, x, PICKS, chosen=chosen, part=abi.kUpToGate, h=h)
    check((h[~present] == MARK).all())
    within(error(h[present], expected_h(experts, x, PICKS)[present]), 1e-6)
    if gate == up:
        both = gate_up(f"expert_gate_up_{gate}_r1", experts, x, PICKS, chosen=chosen)
        check(both.tobytes() == h.tobytes())


@parametrize("tokens", [1, 2, 3, 4])
@parametrize("name", ["Q6_K", "IQ2_S", "BF16"])
def case_a_token_has_the_bits_it_has_alone(name, tokens):
    """Whoever shares its experts; with kernels made for a window, for one token, or for any."""
    experts = Experts((name, 12, 256), (name, 12, 256), (name, 40, 256))
    x, picks = inputs(experts, tokens), np.ascontiguousarray(PICKS[:tokens])
    weights = pick_weights(picks)
    wide = activations(tokens * TOP_K, 256, seed=4).reshape(tokens, TOP_K, 256)
    kernels = f"expert_gate_up_{name}_r1", f"expert_down_{name}_r1"
    for made_for in {None, tokens, 4}:
        h = gate_up(kernels[0], experts, x, picks, tokens=made_for)
        y = down(kernels[1], experts, wide, picks, weights, tokens=made_for)
        for t in range(tokens):
            one = slice(t, t + 1)
            alone = picks[one].copy()
            h_alone = gate_up(kernels[0], experts, x[one].copy(), alone, tokens=1)
            y_alone = down(
                kernels[1], experts, wide[one].copy(), alone, weights[one].copy(), tokens=1
            )
            check(h[t].tobytes() == h_alone.tobytes())
            check(y[t].tobytes() == y_alone.tobytes())


@parametrize(
    "rounds", [[(0, 1, 2, 3), (4, 5, 6)], [(0, 1), (2, 3, 4), (5, 6)], [(5,), (6,), EVERYONE[:5]]]
)
@parametrize("split", [1, 2])
def case_rounds_do_not_show(rounds, split):
    """Ascending rounds give the bits of one; what is not in a round is neither read nor written."""
    name = "Q5_K"
    experts = Experts((name, 15, 256), (name, 15, 256), (name, 50, 256))
    x, weights = inputs(experts, 4), pick_weights(PICKS)
    wide = activations(12, 256, seed=5).reshape(4, TOP_K, 256)
    options = {"rows": 2, "lanes": 8, "simdgroups": 2}
    h_once = gate_up(f"expert_gate_up_{name}_r2", experts, x, PICKS, **options)
    y_once = down(f"expert_down_{name}_r2", experts, wide, PICKS, weights, split=split, **options)
    within(error(y_once, expected_y(experts, wide, PICKS, weights)), 1e-6)
    is_ascending = all(max(a) < min(b) for a, b in itertools.pairwise(rounds))
    h = np.full_like(h_once, MARK)
    y = np.full_like(y_once, np.nan)
    for i, chosen in enumerate(rounds):
        present = np.isin(PICKS, chosen)
        before = h.copy()
        gate_up(f"expert_gate_up_{name}_r2", experts, x, PICKS, chosen=chosen, h=h, **options)
        check(h[~present].tobytes() == before[~present].tobytes())
        given = np.where(present[:, :, None], wide, np.float32(np.nan))
        down(
            f"expert_down_{name}_r2",
            experts,
            given,
            PICKS,
            weights,
            chosen=chosen,
            is_first=i == 0,
            y=y,
            split=split,
            **options,
        )
    check(h.tobytes() == h_once.tobytes())
    if is_ascending:
        check(y.tobytes() == y_once.tobytes())
    else:
        within(error(y, y_once), 1e-6)


@parametrize(
    ("split", "simdgroups", "lanes", "rows", "tokens"),
    [
        (1, 1, 32, 1, 4),
        (2, 2, 32, 1, 4),
        (4, 8, 8, 2, 4),
        (5, 5, 4, 2, 3),
        (2, 4, 1, 4, 4),
        (2, 4, 2, 4, 4),
        (3, 3, 2, 4, 1),
    ],
)
def case_simdgroups_that_share_rows(split, simdgroups, lanes, rows, tokens):
    """The bits of one simdgroup, in one batch of experts or several (128 rows, 4 tokens: two)."""
    name = "Q2_0"
    experts = Experts((name, 70, 128), n_expert=12)
    rng = np.random.default_rng(split)
    picks = np.array([rng.permutation(12)[:7] for _ in range(tokens)], np.int32)
    weights, h = pick_weights(picks), activations(tokens * 7, 128).reshape(tokens, 7, 128)
    chosen = [0, 1, 2, 4, 5, 7, 8, 9, 10, 11]
    kernel = f"expert_down_{name}_r{rows}"
    tile = {"chosen": chosen, "rows": rows, "lanes": lanes}
    want = down(kernel, experts, h, picks, weights, simdgroups=1, **tile)
    for order in ORDERS:
        got = down(
            kernel,
            experts,
            h,
            picks,
            weights,
            simdgroups=simdgroups,
            split=split,
            order=order,
            **tile,
        )
        check(got.tobytes() == want.tobytes())
    present = np.where(np.isin(picks, chosen)[:, :, None], h, np.float32(0))
    within(error(got, expected_y(experts, present, picks, weights)), 1e-6)


def case_as_many_picks_as_lanes():
    experts = Experts(("Q4_0", 8, 64), ("Q4_0", 8, 64), ("Q4_0", 20, 32), n_expert=40)
    rng = np.random.default_rng(8)
    picks = np.array([rng.permutation(40)[:32] for _ in range(4)], np.int32)
    x, weights = inputs(experts, 4), pick_weights(picks)
    h = gate_up("expert_gate_up_Q4_0_r1", experts, x, picks, chosen=range(40), lanes=2)
    within(error(h, expected_h(experts, x, picks)), 1e-6)
    wide = activations(128, 32).reshape(4, 32, 32)
    y = down(
        "expert_down_Q4_0_r1",
        experts,
        wide,
        picks,
        weights,
        chosen=range(40),
        lanes=1,
        simdgroups=1,
    )
    within(error(y, expected_y(experts, wide, picks, weights)), 1e-6)


def case_what_is_broken_shows():
    """A NaN in an activation reaches every value of its token and of no other."""
    experts = Experts(("Q8_0", 9, 96), ("Q8_0", 9, 96), ("Q8_0", 9, 96))
    x = inputs(experts, 4)
    x[2, 50] = np.nan
    h = gate_up("expert_gate_up_Q8_0_r1", experts, x, PICKS)
    check(np.isnan(h[2]).all() and np.isfinite(h[[0, 1, 3]]).all())
    wide = activations(12, 96).reshape(4, TOP_K, 96)
    wide[1, 0, 95] = np.nan
    y = down("expert_down_Q8_0_r1", experts, wide, PICKS, pick_weights(PICKS))
    check(np.isnan(y[1]).all() and np.isfinite(y[[0, 2, 3]]).all())
