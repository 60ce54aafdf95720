# SPDX-License-Identifier: MIT
"""metal/expert_matmat.metal: a prompt's experts by plan, every weight type, against float64.

Plans are made here, by their description in kernel_args.h. Rows of h and of parts whose picks are not in
the round keep their mark; experts that are not in the round lie nowhere.
"""

import numpy as np

from . import abi
from .cases import check, error, in_every_order, launch, parametrize, same_bits, within
from .weights import MARK, TYPES, activations, random_weights

N_EXPERT, TOP_K = 5, 3
ROUND = (0, 2, 4)  # experts of it


def random_picks(tokens, seed=3):
    """Expert 2 is every token's, so that it fills more than one tile of 32."""
    rng = np.random.default_rng([seed, tokens])
    others = [0, 1, 3, 4]
    return np.array(
        [rng.permutation([2, *rng.permutation(others)[: TOP_K - 1]]) for _ in range(tokens)],
        np.int32,
    )


def make_plan(picks, experts, spare=2):
    """The plan, with room for `spare` tiles more than there are; returns it and that room."""
    tiles, order = [], []
    for expert in sorted(experts):
        own = np.flatnonzero(picks.ravel() == expert)
        for at in range(0, len(own), abi.kTileTokens):
            count = min(abi.kTileTokens, len(own) - at)
            tiles.append((expert, len(order) + at, count))
        order += own.tolist()
    room = len(tiles) + spare
    plan = np.full(1 + 3 * room + picks.size, -1, np.int32)
    plan[0] = len(tiles)
    plan[1 : 1 + 3 * len(tiles)] = np.ravel(tiles)
    plan[1 + 3 * room : 1 + 3 * room + len(order)] = order
    return plan, room


class Experts:
    """Matrices of N_EXPERT experts; an arena that holds those of the round, in slots out of order."""

    GAP = 32  # bytes of nothing between the parts of a slot

    def __init__(self, shapes, experts=ROUND, seed=0):
        """shapes: (type, rows, cols) of each matrix of an expert"""
        made = [
            [random_weights(*shape, seed=100 * seed + 10 * e + i) for i, shape in enumerate(shapes)]
            for e in range(N_EXPERT)
        ]
        self.weights = [[weights for _, weights in expert] for expert in made]
        self.row_bytes = [data.shape[1] for data, _ in made[0]]
        self.offsets, at = [], self.GAP
        for data, _ in made[0]:
            self.offsets.append(at)
            at += -(-data.size // 32) * 32 + self.GAP
        self.slot_bytes = at
        self.arena = np.full((len(experts) + 1, at), 0xFF, np.uint8)
        self.slots = np.full(1 + N_EXPERT, -1, np.int32)
        self.slots[0] = 1
        for i, e in enumerate(experts):
            self.slots[1 + e] = slot = len(experts) - i
            for (data, _), offset in zip(made[e], self.offsets):
                self.arena[slot, offset : offset + data.size] = data.ravel()


def in_round(picks, experts=ROUND):
    return np.isin(picks, experts)


def gate_up(name, experts, x, picks, part, h=None, which=(0, 1), order="forward", chosen=ROUND):
    """which: the matrices of an expert that are gate and up"""
    width, n_rows = x.shape[1], experts.weights[0][0].shape[0]
    plan, room = make_plan(picks, chosen)
    args = abi.ExpertGateUpArgs(
        slot_bytes=experts.slot_bytes,
        gate_offset=experts.offsets[which[0]],
        up_offset=experts.offsets[which[1]],
        tokens=len(x),
        top_k=picks.shape[1],
        n_expert=N_EXPERT,
        width=width,
        expert_width=n_rows,
        row_bytes=experts.row_bytes[which[1] if part == abi.kUpToGate else which[0]],
        part=part,
        tiles=room,
    )
    h = np.full((*picks.shape, n_rows), MARK) if h is None else h
    rows = 64 if part == abi.kGateAndUp else 128
    launch(
        f"expert_gate_up_mm_{name}",
        args,
        [experts.arena, experts.slots, picks, x, h, plan],
        groups=(-(-n_rows // rows), room, 1),
        threads=(128, 1, 1),
        order=order,
    )
    return h


def down(name, experts, h, picks, order="forward", chosen=ROUND):
    rows, cols = experts.weights[0][0].shape
    plan, room = make_plan(picks, chosen)
    args = abi.ExpertDownArgs(
        slot_bytes=experts.slot_bytes,
        down_offset=experts.offsets[0],
        tokens=len(picks),
        top_k=picks.shape[1],
        n_expert=N_EXPERT,
        width=rows,
        expert_width=cols,
        row_bytes=experts.row_bytes[0],
        tiles=room,
    )
    parts = np.full((*picks.shape, rows), MARK)
    launch(
        f"expert_down_mm_{name}",
        args,
        [experts.arena, experts.slots, h, parts, plan],
        groups=(-(-rows // 128), room, 1),
        threads=(128, 1, 1),
        order=order,
    )
    return parts


def silu(v):
    return v / (1 + np.exp(-v))


def gate_up_activations(tokens, experts):
    """Such that the products are of order 1, where silu bends."""
    weights = experts.weights[ROUND[0]][0]
    return activations(tokens, weights.shape[1]) / np.float32(
        np.linalg.norm(weights, axis=1).mean()
    )


def expected_gate_up(experts, x, picks):
    return np.array(
        [
            [silu(experts.weights[e][0] @ row) * (experts.weights[e][1] @ row) for e in chosen]
            for row, chosen in zip(x.astype(np.float64), picks)
        ]
    )


def expected_down(experts, h, picks):
    return np.array(
        [
            [experts.weights[e][0] @ row for row, e in zip(rows, chosen)]
            for rows, chosen in zip(h.astype(np.float64), picks)
        ]
    )


def check_products(got, want, picks, bound=1e-6):
    inside = in_round(picks)
    check((got[~inside] == MARK).all())
    within(error(got[inside], want[inside]), bound)


@parametrize("name", TYPES)
def case_gate_up_every_type(name):
    width = {1: 50, 256: 256}.get(TYPES[name][1], 64)
    experts = Experts([(name, 70, width), (name, 70, width)])
    picks, x = random_picks(35), gate_up_activations(35, experts)
    (got,) = in_every_order(
        lambda order: [gate_up(name, experts, x, picks, abi.kGateAndUp, order=order)]
    )
    check_products(got, expected_gate_up(experts, x, picks), picks)


@parametrize("name", TYPES)
def case_down_every_type(name):
    cols = {1: 50, 256: 256}.get(TYPES[name][1], 64)
    experts = Experts([(name, 134, cols)])
    picks = random_picks(35)
    h = activations(35 * TOP_K, cols).reshape(35, TOP_K, cols)
    (got,) = in_every_order(lambda order: [down(name, experts, h, picks, order=order)])
    check_products(got, expected_down(experts, h, picks), picks)


@parametrize("n_rows", [1, 32, 63, 64, 65, 129])
@parametrize("tokens", [1, 9])
def case_gate_up_edges(n_rows, tokens):
    experts = Experts([("F16", n_rows, 40), ("F16", n_rows, 40)])
    picks, x = random_picks(tokens), gate_up_activations(tokens, experts)
    want = expected_gate_up(experts, x, picks)
    check_products(gate_up("F16", experts, x, picks, abi.kGateAndUp), want, picks)


@parametrize(("gate", "up"), [("Q4_0", "Q8_0"), ("F32", "IQ4_NL")])
@parametrize("n_rows", [20, 130])
def case_gate_and_up_of_different_types(gate, up, n_rows):
    experts = Experts([(gate, n_rows, 64), (up, n_rows, 64)])
    picks, x = random_picks(33), gate_up_activations(33, experts)
    products = expected_down(experts, np.repeat(x[:, None], TOP_K, axis=1), picks)
    h = gate_up(gate, experts, x, picks, abi.kGateOnly)
    check_products(h, products, picks)
    gate_up(up, experts, x, picks, abi.kUpToGate, h=h)
    check_products(h, expected_gate_up(experts, x, picks), picks)


@parametrize("n_rows", [30, 70])
def case_both_parts_at_once_are_the_parts(n_rows):
    """Fused or one after the other: the same sums, the same bits."""
    experts = Experts([("Q6_K", n_rows, 256), ("Q6_K", n_rows, 256)])
    picks, x = random_picks(12), gate_up_activations(12, experts)
    fused = gate_up("Q6_K", experts, x, picks, abi.kGateAndUp)
    h = gate_up("Q6_K", experts, x, picks, abi.kGateOnly)
    gate_up("Q6_K", experts, x, picks, abi.kUpToGate, h=h)
    same_bits(fused, h)


def case_a_pick_is_alone():
    """A token's h and parts are the same bits in any round and next to any other tokens."""
    experts = Experts([("IQ2_S", 70, 256), ("IQ2_S", 70, 256)])
    picks, x = random_picks(40), gate_up_activations(40, experts)
    all_h = gate_up("IQ2_S", experts, x, picks, abi.kGateAndUp)
    for t in (0, 7, 33, 39):
        h = gate_up("IQ2_S", experts, x[t : t + 1], picks[t : t + 1], abi.kGateAndUp)
        same_bits(all_h[t : t + 1], h)
    one = gate_up("IQ2_S", experts, x, picks, abi.kGateAndUp, chosen=(2,))
    same_bits(all_h[picks == 2], one[picks == 2])
    check((one[picks != 2] == MARK).all())

    experts = Experts([("IQ4_NL", 134, 64)])
    h = activations(40 * TOP_K, 64).reshape(40, TOP_K, 64)
    all_parts = down("IQ4_NL", experts, h, picks)
    for t in (1, 8, 32, 38):
        alone = np.ascontiguousarray(h[t : t + 1])
        same_bits(all_parts[t : t + 1], down("IQ4_NL", experts, alone, picks[t : t + 1]))


def case_a_round_of_nothing():
    experts = Experts([("F32", 40, 32)], experts=(1,))
    picks = np.array([[0, 2, 4]], np.int32)
    parts = down("F32", experts, activations(3, 32).reshape(1, 3, 32), picks, chosen=(1,))
    check((parts == MARK).all())
