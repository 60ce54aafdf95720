# SPDX-License-Identifier: MIT
"""metal/route.metal: routing against a replica in float64, plans and sums against numpy.

Scores lie on a grid of 0.02, of which neither prior is a multiple: different scores are told apart
by any arithmetic, with the prior and without, and equal ones tie exactly.
"""

import itertools

import numpy as np

from . import abi
from .cases import ORDERS, check, error, in_every_order, launch, parametrize, same_bits, within

MARK = -77
BONUSES = (0.0, 0.25, 0.85)


def run_route(scores, top_k, favoured=None, bonus=0.0, protect=0, order="forward", on=None):
    """picks, weights, wanted, order: [T, K] each"""
    tokens, n_expert = scores.shape
    args = abi.RouteArgs(
        tokens=tokens,
        n_expert=n_expert,
        top_k=top_k,
        protect=protect,
        factor=np.exp(np.float32(bonus)),
    )
    ints = [np.full((tokens, top_k), MARK, np.int32) for _ in range(3)]
    weights = np.full((tokens, top_k), np.nan, np.float32)
    favoured = np.zeros(n_expert, np.uint8) if favoured is None else favoured
    (launch if on is None else on.run)(
        "route",
        args,
        [scores, favoured, ints[0], weights, ints[1], ints[2]],
        groups=(tokens, 1, 1),
        threads=(32, 1, 1),
        order=order,
    )
    return ints[0], weights, ints[1], ints[2]


def replica(scores, top_k, favoured, bonus, protect):
    """The same of one token, [K] each."""
    p = np.exp(scores.astype(np.float64) - scores.max())
    p /= p.sum()
    wanted = np.argsort(-p, kind="stable")[:top_k]
    picks = wanted
    if bonus:
        counted = np.where(favoured != 0, p * np.exp(bonus), p)
        counted[wanted[:protect]] = -1
        rest = np.argsort(-counted, kind="stable")[: max(0, top_k - protect)]
        picks = np.concatenate([wanted[:protect], rest])
    return picks, p[picks] / p[picks].sum(), wanted, np.argsort(picks)


def on_grid(scores):
    return (np.round(np.asarray(scores, np.float64) / 0.02) * 0.02).astype(np.float32)


def grid_scores(rng, shape, deviation):
    return on_grid(deviation * rng.standard_normal(shape))


def is_same(got, token, want):
    picks, weights, wanted, order = want
    return (
        np.array_equal(got[0][token], picks)
        and error(got[1][token], weights) <= 1e-6
        and np.array_equal(got[2][token], wanted)
        and np.array_equal(got[3][token], order)
    )


@parametrize("n_expert", [8, 256, 288, 512])
def case_windows_are_routed_as_the_replica_says(n_expert):
    rng = np.random.default_rng(n_expert)
    moved = 0
    for window in range(250):
        tokens = 1 + window % 4
        top_k = int(rng.integers(1, min(n_expert, 12) + 1))
        bonus = BONUSES[window % 3]
        protect = int(rng.integers(0, 4))
        scores = grid_scores(rng, (tokens, n_expert), rng.choice([0.2, 1.0, 3.0]))
        favoured = (rng.random(n_expert) < rng.choice([0.1, 0.6])).astype(np.uint8) * rng.integers(
            1, 256
        )
        favoured = favoured.astype(np.uint8)
        got = run_route(scores, top_k, favoured, bonus, protect, ORDERS[window % 3])
        for t in range(tokens):
            want = replica(scores[t], top_k, favoured, bonus, min(protect, top_k))
            check(is_same(got, t, want), (window, t))
            moved += not np.array_equal(want[0], want[2])
    check(moved > 100)  # tokens whose picks the prior changed


def case_orders_of_lanes_give_the_same_bits():
    rng = np.random.default_rng(5)
    scores = rng.standard_normal((4, 300)).astype(np.float32)
    favoured = (rng.random(300) < 0.3).astype(np.uint8)
    in_every_order(lambda order: run_route(scores, 10, favoured, 0.85, 2, order))


def case_a_token_is_routed_alone_as_in_a_window():
    rng = np.random.default_rng(6)
    scores = rng.standard_normal((37, 512)).astype(np.float32)
    favoured = (rng.random(512) < 0.3).astype(np.uint8)
    together = run_route(scores, 10, favoured, 0.25, 1)
    for t in (0, 3, 36):
        for a, b in zip(together, run_route(scores[t : t + 1].copy(), 10, favoured, 0.25, 1)):
            same_bits(a[t], b[0])


@parametrize(("n_expert", "top_k"), [(1024, 32), (32, 32), (33, 10), (1, 1), (700, 1)])
def case_sizes(n_expert, top_k):
    rng = np.random.default_rng(n_expert)
    scores = grid_scores(rng, (2, n_expert), 2.0)
    favoured = (rng.random(n_expert) < 0.5).astype(np.uint8)
    for bonus in (0.0, 0.85):
        got = run_route(scores, top_k, favoured, bonus, 1)
        for t in range(2):
            check(is_same(got, t, replica(scores[t], top_k, favoured, bonus, 1)))


def case_ties_go_to_the_lowest_index():
    got = run_route(np.zeros((1, 100), np.float32), 7)
    np.testing.assert_array_equal(got[0][0], np.arange(7))
    favoured = np.zeros(100, np.uint8)
    favoured[[90, 40, 3]] = 1
    got = run_route(np.zeros((1, 100), np.float32), 7, favoured, 0.25, 2)
    np.testing.assert_array_equal(got[0][0], [0, 1, 3, 40, 90, 2, 4])
    np.testing.assert_array_equal(got[2][0], np.arange(7))


def case_factor_1_reads_no_map():
    """Nothing is favoured without a prior, whatever stands in the map."""
    scores = grid_scores(np.random.default_rng(1), (1, 64), 1.0)
    got = run_route(scores, 8, np.ones(64, np.uint8), 0.0, 3)
    check(is_same(got, 0, replica(scores[0], 8, np.zeros(64), 0.0, 0)))


@parametrize("bad", [np.nan, np.inf, -np.inf])
@parametrize("bonus", [0.0, 0.85])
@parametrize("where", ["one", "some", "all"])
def case_different_experts_whatever_the_scores(bad, bonus, where):
    scores = np.random.default_rng(2).standard_normal((1, 96)).astype(np.float32)
    scores[0, {"one": [50], "some": [0, 31, 64, 95], "all": slice(None)}[where]] = bad
    favoured = (np.arange(96) % 3 == 0).astype(np.uint8)
    picks, weights, wanted, order = (a[0] for a in run_route(scores, 20, favoured, bonus, 2))
    for experts in (picks, wanted):
        check(len(set(experts.tolist())) == 20 and experts.min() >= 0 and experts.max() < 96)
    np.testing.assert_array_equal(order, np.argsort(picks))
    if np.isnan(bad) or bad > 0 or where == "all":
        check(np.isnan(weights).all())  # what is broken shows
    else:
        check(not np.isin(picks, np.flatnonzero(np.isinf(scores[0]))).any())
        check(abs(weights.sum() - 1) < 1e-6)


def case_what_overflows_comes_last():
    """A factor of infinity makes a NaN of a probability of 0."""
    scores = np.array([[0, -1, -200, -2, -300, 1]], np.float32)
    with np.errstate(over="ignore"):
        got = run_route(scores, 6, np.array([0, 1, 1, 0, 0, 0], np.uint8), bonus=100.0)
    np.testing.assert_array_equal(got[0][0], [1, 5, 0, 3, 4, 2])
    np.testing.assert_array_equal(got[2][0], [5, 0, 1, 3, 2, 4])


def make_picks(rng, tokens, n_expert, top_k, skew=0.0):
    """[T, K], different experts a token; skew: how much likelier the first ones are."""
    score = rng.standard_normal((tokens, n_expert)) - skew * np.arange(n_expert) / n_expert
    return np.ascontiguousarray(np.argsort(-score, axis=1)[:, :top_k].astype(np.int32))


def make_slots(rng, n_expert, in_round=1.0, first=1):
    slots = np.full(1 + n_expert, -1, np.int32)
    slots[0] = first
    chosen = np.flatnonzero(rng.random(n_expert) < in_round)
    slots[1 + chosen] = rng.permutation(len(chosen))
    return slots


def run_plan(picks, slots, room, threads=(128, 256, 128), order="forward"):
    tokens, top_k = picks.shape
    n_expert = len(slots) - 1
    args = abi.PlanArgs(tokens=tokens, top_k=top_k, n_expert=n_expert, tiles=room)
    counts = np.full(n_expert, MARK, np.int32)
    plan = np.full(1 + 3 * room + tokens * top_k, MARK, np.int32)
    first = np.full(n_expert, MARK, np.int32)
    buffers = [picks, slots, counts, plan, first]
    groups = [-(-n_expert // (n // 32)) for n in threads]
    groups[1] = 1
    for name, n_groups, n in zip(("plan_count", "plan_scan", "plan_scatter"), groups, threads):
        launch(name, args, buffers, groups=(n_groups, 1, 1), threads=(n, 1, 1), order=order)
    return plan


def expected_plan(picks, slots, room):
    tiles, listed = [], []
    for expert in np.flatnonzero(slots[1:] >= 0):
        own = np.flatnonzero(picks.ravel() == expert)
        for i in range(0, len(own), abi.kTileTokens):
            tiles.append((expert, len(listed) + i, min(abi.kTileTokens, len(own) - i)))
        listed.extend(own)
    plan = np.full(1 + 3 * room + picks.size, MARK, np.int32)
    plan[0] = len(tiles)
    plan[1 : 1 + 3 * len(tiles)] = np.array(tiles, np.int32).reshape(-1)
    plan[1 + 3 * room : 1 + 3 * room + len(listed)] = listed
    return plan


@parametrize(
    ("tokens", "n_expert", "top_k", "in_round", "skew"),
    [
        (1, 8, 1, 1.0, 0),
        (5, 8, 3, 0.5, 0),
        (67, 288, 6, 0.7, 9),
        (130, 33, 16, 1.0, 30),
        (200, 700, 16, 0.9, 2),
        (1024, 512, 10, 0.6, 6),
        (33, 4, 4, 1.0, 0),
        (10, 64, 2, 0.0, 0),
    ],
)
def case_plans(tokens, n_expert, top_k, in_round, skew):
    rng = np.random.default_rng([tokens, n_expert])
    picks = make_picks(rng, tokens, n_expert, top_k, skew)
    slots = make_slots(rng, n_expert, in_round)
    room = tokens * top_k // abi.kTileTokens + n_expert
    want = expected_plan(picks, slots, room)
    np.testing.assert_array_equal(run_plan(picks, slots, room), want)
    if picks.size < 2000:
        for order in ORDERS[1:]:
            np.testing.assert_array_equal(run_plan(picks, slots, room, order=order), want)
        np.testing.assert_array_equal(run_plan(picks, slots, room, (32, 32, 64)), want)


def case_a_plan_keeps_to_its_room():
    """A host that counts wrong gets fewer tiles, not a list that is written over."""
    rng = np.random.default_rng(4)
    picks, slots = make_picks(rng, 10, 64, 2), make_slots(rng, 64, 0.5)
    want = expected_plan(picks, slots, 30)
    check(
        want[0] > 8 and want[-1] == MARK
    )  # tiles past the room would reach what the list leaves free
    plan = run_plan(picks, slots, 3)
    check(plan[0] == 3)
    np.testing.assert_array_equal(plan[1:10], want[1:10])
    np.testing.assert_array_equal(plan[10:], want[91:])


def run_combine(slots, picks, order, weights, parts, y, lanes="forward", threads=128):
    tokens, top_k, width = parts.shape
    args = abi.ExpertCombineArgs(tokens=tokens, top_k=top_k, n_expert=len(slots) - 1, width=width)
    launch(
        "expert_combine",
        args,
        [slots, picks, order, weights, parts, y],
        groups=(-(-width // (4 * threads)), tokens, 1),
        threads=(threads, 1, 1),
        order=lanes,
    )


@parametrize("width", [1, 131, 515, 640, 1024])
@parametrize("top_k", [1, 6, 32])
def case_combine(width, top_k):
    rng = np.random.default_rng([width, top_k])
    tokens, n_expert = 3, 48
    picks = make_picks(rng, tokens, n_expert, top_k)
    order = np.argsort(picks, axis=1).astype(np.int32)
    weights = rng.random((tokens, top_k)).astype(np.float32)
    parts = rng.standard_normal((tokens, top_k, width)).astype(np.float32)
    whole = make_slots(rng, n_expert)
    y = np.full((tokens, width), np.nan, np.float32)
    run_combine(whole, picks, order, weights, parts, y)
    want = np.einsum("tk,tkd->td", weights.astype(np.float64), parts.astype(np.float64))
    within(error(y, want), 1e-6)
    for lanes in ORDERS[1:]:
        again = np.full_like(y, np.nan)
        run_combine(whole, picks, order, weights, parts, again, lanes, threads=64)
        same_bits(again, y)

    # Rounds: the same bits; what is not in a round is not read.
    in_rounds = np.full_like(y, np.nan)
    bounds = (0, 11, 30, n_expert)
    for i, (begin, end) in enumerate(itertools.pairwise(bounds)):
        slots = np.full(1 + n_expert, -1, np.int32)
        slots[0] = i == 0
        slots[1 + begin : 1 + end] = np.arange(end - begin)
        present = np.where(
            ((picks >= begin) & (picks < end))[:, :, None], parts, np.float32(np.nan)
        )
        run_combine(slots, picks, order, weights, np.ascontiguousarray(present), in_rounds)
    same_bits(in_rounds, y)
