# SPDX-License-Identifier: MIT
"""metal/attention.metal against float64: attention and the indexer that selects for it (SPEC 6).

Memory that a kernel must not read holds NaN, and so does memory that it must not write: what it should
have left alone is still NaN afterwards.
"""

import numpy as np

from . import abi
from .cases import (
    ORDERS,
    ceil,
    check,
    error,
    nans,
    normal,
    parametrize,
    rng_of,
    run,
    same_bits,
    within,
)

EPS = 1e-6
LIMIT = 1e-6  # relative L2


# Rows made ready


def turns_of(first, n, n_rope):
    """Cosines, then sines, of n positions from `first` on: float32 [n, n_rope]."""
    angles = np.arange(first, first + n)[:, None] * 1e4 ** (-2.0 * np.arange(n_rope // 2) / n_rope)
    return np.concatenate([np.cos(angles), np.sin(angles)], 1).astype(np.float32)


def norm_and_turn(x, gamma, turns):
    """rope(rms(x; gamma)) of x [T, heads, d], turns [T, n_rope]."""
    y = x / np.sqrt(np.mean(x.astype(float) ** 2, -1, keepdims=True) + EPS) * gamma
    half = turns.shape[1] // 2
    cos, sin = turns[:, None, :half].astype(float), turns[:, None, half:].astype(float)
    a, b = y[..., :half].copy(), y[..., half : 2 * half].copy()
    y[..., :half], y[..., half : 2 * half] = a * cos - b * sin, b * cos + a * sin
    return y


def attn_prepare(qg, k, v, gq, gk, turns, first_turn, position, context):
    tokens, heads, d = len(qg), qg.shape[1], k.shape[2]
    args = abi.AttnPrepareArgs(
        tokens=tokens, position=position, first_turn=first_turn, n_head=heads, n_kv_head=k.shape[1],
        d_head=d, n_rope=turns.shape[1], eps=EPS,
    )  # fmt: skip
    inputs = [qg, k, v, gq, gk, turns]
    kept = nans(context, *k.shape[1:])
    outputs = {7: nans(tokens, heads, d), 8: kept, 9: kept}
    return run("attn_prepare", args, inputs, outputs, (heads + 2 * k.shape[1], tokens, 1), 32)


@parametrize("tokens, position", [(1, 0), (2, 3), (4, 6), (9, 5)])
@parametrize(
    "heads, kv, d, n_rope", [(24, 2, 256, 64), (6, 2, 128, 32), (3, 3, 37, 10), (2, 1, 70, 70)]
)
def case_attn_prepare(heads, kv, d, n_rope, tokens, position):
    rng = rng_of(heads, d, tokens)
    qg, k, v = (
        normal(rng, tokens, heads, 2 * d),
        normal(rng, tokens, kv, d),
        normal(rng, tokens, kv, d),
    )
    gq, gk = normal(rng, d), normal(rng, d)
    first_turn = max(0, position - 2)
    turns = turns_of(first_turn, position - first_turn + tokens, n_rope)
    q, keys, values = attn_prepare(qg, k, v, gq, gk, turns, first_turn, position, 20)
    own = turns[position - first_turn :]
    rows = slice(position, position + tokens)
    within(error(q, norm_and_turn(qg[..., :d], gq, own)), LIMIT)
    within(error(keys[rows], norm_and_turn(k, gk, own)), LIMIT)
    np.testing.assert_array_equal(values[rows], v)
    for appended in (keys, values):
        check(np.isnan(np.delete(appended, np.r_[rows], 0)).all())
    for t in range(tokens):
        one = [x[t : t + 1].copy() for x in (qg, k, v)]
        at = position + t
        q1, keys1, _ = attn_prepare(*one, gq, gk, own[t : t + 1].copy(), at, at, 20)
        same_bits(q1[0], q[t])
        same_bits(keys1[at], keys[at])


def index_prepare(iq, raw, gq, gk, tail, n_rope, position, context):
    tokens, heads, d = iq.shape
    ratio = len(tail)
    first_turn = position // ratio * ratio
    args = abi.IndexPrepareArgs(
        tokens=tokens, position=position, first_turn=first_turn, n_head=heads, d=d, n_rope=n_rope,
        ratio=ratio, eps=EPS,
    )  # fmt: skip
    turns = turns_of(first_turn, position - first_turn + tokens, n_rope)
    inputs = [iq, raw, gq, gk, turns, tail]
    outputs = {
        7: np.full_like(tail, np.nan),
        8: np.full_like(iq, np.nan),
        9: nans(ceil(context, ratio), d),
    }
    tail, iq, keys = run("index_prepare", args, inputs, outputs, (heads + 2, tokens, 1), 32)
    return iq, keys, tail


def block_keys(raw, gk, ratio, n_rope):
    """Keys of the whole blocks of raw [n, d]."""
    n = len(raw) // ratio
    mean = raw[: n * ratio].astype(float).reshape(n, 1, ratio, -1).mean(2)
    return norm_and_turn(mean, gk, turns_of(0, n * ratio + 1, n_rope)[: n * ratio : ratio])[:, 0]


@parametrize("ratio", [1, 2, 4, 5, 12])
@parametrize("cuts", [(1,) * 13, (3, 2, 4, 1, 3), (2, 11), (13,), (5, 8), (12, 1)])
def case_index_prepare(ratio, cuts):
    d, heads, n_rope = 66, 3, 20
    rng = rng_of(ratio, len(cuts))
    n = sum(cuts)
    iq, raw = normal(rng, n, heads, d), normal(rng, n, d)
    gq, gk = normal(rng, d), normal(rng, d)
    # Rows of the tail beyond the block at hand hold zeros, and nothing else may be there.
    tail, position, queries, keys = np.zeros((ratio, d), np.float32), 0, [], nans(ceil(n, ratio), d)
    for tokens in cuts:
        rows = slice(position, position + tokens)
        q, k, tail = index_prepare(
            iq[rows].copy(), raw[rows].copy(), gq, gk, tail, n_rope, position, n
        )
        position += tokens
        queries.append(q)
        made = ~np.isnan(k).any(1)
        whole = np.arange((position - tokens) // ratio, position // ratio)
        np.testing.assert_array_equal(np.flatnonzero(made), whole)
        keys[made] = k[made]
        want = np.zeros_like(tail)
        want[: position % ratio] = raw[position - position % ratio : position]
        np.testing.assert_array_equal(tail, want)
    queries = np.concatenate(queries)
    within(error(queries, norm_and_turn(iq, gq, turns_of(0, n, n_rope))), LIMIT)
    within(error(keys[: n // ratio], block_keys(raw, gk, ratio, n_rope)), LIMIT)
    whole_q, whole_keys, whole_tail = index_prepare(
        iq, raw, gq, gk, np.zeros_like(tail), n_rope, 0, n
    )
    same_bits(whole_q, queries)
    same_bits(whole_keys, keys)
    same_bits(whole_tail, tail)


# Selection


def select_args(tokens, position, heads, d, ratio, keep, stride):
    return abi.BlockSelectArgs(
        tokens=tokens,
        position=position,
        n_head=heads,
        d=d,
        ratio=ratio,
        keep=keep,
        score_stride=stride,
    )


def block_scores(iq, keys, position, ratio, keep, orders=ORDERS):
    tokens, heads, d = iq.shape
    stride = ceil(len(keys), 4) * 4
    args = select_args(tokens, position, heads, d, ratio, keep, stride)
    groups = (ceil((position + tokens) // ratio, 64), ceil(tokens, 4), 1)
    inputs = [iq, keys]
    return run("block_scores", args, inputs, {3: nans(tokens, stride)}, groups, 128, orders)[0]


@parametrize("tokens", [1, 2, 3, 4, 9])
@parametrize(
    "heads, d, ratio, position",
    [(4, 128, 4, 600), (1, 64, 1, 70), (6, 36, 3, 205), (9, 256, 5, 329)],
)
def case_block_scores(heads, d, ratio, position, tokens):
    rng = rng_of(heads, tokens)
    iq, keys = normal(rng, tokens, heads, d), normal(rng, (position + tokens) // ratio, d)
    scores = block_scores(iq, keys, position, ratio, 3)
    want = np.maximum(np.einsum("thd,bd->thb", iq, keys, dtype=float), 0).sum(1)
    for t in range(tokens):
        seen = (position + t + 1) // ratio
        within(error(scores[t, :seen], want[t, :seen]), LIMIT)
        check(np.isnan(scores[t, seen:]).all())
        one = block_scores(
            iq[t : t + 1].copy(), keys[:seen].copy(), position + t, ratio, 3, ["forward"]
        )
        same_bits(one[0, :seen], scores[t, :seen])


def case_block_scores_of_nan_count_as_zero():
    rng = rng_of(1)
    iq, keys = normal(rng, 2, 4, 64), normal(rng, 70, 64)
    iq[0, 2], keys[5] = np.nan, np.nan
    scores = block_scores(iq, keys, 68, 1, 8)
    want = np.maximum(np.einsum("thd,bd->thb", iq, keys, dtype=float), 0)
    want = np.where(np.isnan(want), 0, want).sum(1)
    within(error(scores[0, :69], want[0, :69]), LIMIT)
    within(error(scores[1, :70], want[1]), LIMIT)
    check(scores[1, 5] == 0)


def case_block_scores_are_left_out_where_all_blocks_fit():
    rng = rng_of(2)
    iq, keys = normal(rng, 8, 2, 32), normal(rng, 12, 32)
    scores = block_scores(
        iq, keys, 4, 1, 8
    )  # the first four tokens see up to 8 blocks, the others up to 12
    check(np.isnan(scores[:4]).all())
    check(not np.isnan(scores[4, :9]).any())


def block_select(scores, position, ratio, keep, orders=ORDERS):
    tokens, stride = scores.shape
    args = select_args(tokens, position, 0, 0, ratio, keep, stride)
    out = np.full((tokens, 1 + keep), -7, np.int32)
    return run("block_select", args, [scores], {2: out}, (tokens, 1, 1), 1024, orders)[0]


def best(scores, keep):
    """The keep best, ties to the lower index; NaN and below 0 count as 0."""
    with np.errstate(invalid="ignore"):
        keys = np.where(scores > 0, scores, 0)
    return np.sort(np.argsort(-keys, kind="stable")[:keep])


def check_selection(scores, position, ratio, keep, orders=ORDERS):
    picks = block_select(scores, position, ratio, keep, orders)
    for t, row in enumerate(picks):
        seen = (position + t + 1) // ratio
        n = min(seen, keep)
        check(row[0] == n)
        np.testing.assert_array_equal(row[1 : 1 + n], best(scores[t, :seen], keep))
        check((row[1 + n :] == -7).all())


def score_rows(kind, rng, tokens, n):
    """Scores of a kind, [tokens, n]."""
    spread = np.maximum(normal(rng, tokens, n), 0) * 30
    special = np.array([0, -0.0, np.nan, np.inf, 1e-45, 1e-40, -1, np.float32(3.4e38)], np.float32)
    return {
        "plain": lambda: spread,
        "ties": lambda: np.floor(spread / 8),
        "zeros": lambda: np.where(rng.random((tokens, n)) < 0.99, np.float32(0), spread),
        "all-zero": lambda: np.zeros((tokens, n), np.float32),
        "equal": lambda: np.full((tokens, n), 2.5, np.float32),
        "near": lambda: np.float32(1) + rng.integers(0, 9, (tokens, n)) * np.float32(2**-23),
        "special": lambda: rng.choice(special, (tokens, n)),
        "small": lambda: rng.integers(0, 3000, (tokens, n)).astype(np.uint32).view(np.float32),
    }[kind]().astype(np.float32)


KINDS = ["plain", "ties", "zeros", "all-zero", "equal", "near", "special", "small"]


@parametrize("kind", KINDS)
@parametrize("seen, keep, ratio", [(9, 8, 1), (130, 1, 3), (1000, 512, 4), (700, 699, 2)])
def case_block_select(kind, seen, keep, ratio):
    rng = rng_of(KINDS.index(kind), seen)
    tokens = 3
    scores = np.full(
        (tokens, ceil(seen + tokens, 4) * 4 + 4), np.inf, np.float32
    )  # not to be selected
    scores[:, : seen + tokens] = score_rows(kind, rng, tokens, seen + tokens)
    check_selection(scores, seen * ratio - 2, ratio, keep)


@parametrize("kind", KINDS)
def case_block_select_large(kind):
    rng = rng_of(KINDS.index(kind))
    n = 65536 if kind != "ties" else 65533
    scores = np.full((1, 65536), np.inf, np.float32)
    scores[:, :n] = score_rows(kind, rng, 1, n)
    check_selection(scores, 4 * n - 1, 4, 512, ["random"])


@parametrize("position", [0, 1, 3, 4, 10, 30])
def case_block_select_where_all_blocks_fit(position):
    # Scores were not computed: they may be anything.
    picks = block_select(nans(4, 12), position, 4, 8)
    for t, row in enumerate(picks):
        n = min((position + t + 1) // 4, 8)
        check(row[0] == n)
        np.testing.assert_array_equal(row[1 : 1 + n], np.arange(n))


# Attention


class Case:
    """Queries at [position, position + tokens), each with a selection of its own where ratio > 0."""

    def __init__(self, heads, kv, d, ratio=0, keep=0, *, tokens=1, position=0, seed=0, qk=None):
        rng = rng_of(heads, d, ratio, keep, tokens, position, seed)
        n = position + tokens
        self.heads, self.kv, self.d, self.ratio, self.keep = heads, kv, d, ratio, keep
        self.tokens, self.position = tokens, position
        self.q, self.qg = normal(rng, tokens, heads, d), normal(rng, tokens, heads, 2 * d)
        self.keys, self.values = normal(rng, n, kv, d), normal(rng, n, kv, d)
        if qk is not None:
            qk(rng, self)
        self.qg[..., :d] = np.nan  # the gates' half counts
        self.selected = np.full((tokens, 1 + keep), -1, np.int32)
        for t in range(tokens if ratio else 0):
            whole = (position + t + 1) // ratio
            chosen = np.sort(rng.permutation(whole)[:keep])
            self.selected[t, : 1 + len(chosen)] = [len(chosen), *chosen]

    def attended(self, t):
        """Positions that token t attends to."""
        end = self.position + t + 1
        if self.ratio == 0:
            return np.arange(end)
        blocks = self.selected[t, 1 : 1 + self.selected[t, 0]]
        inside = blocks[:, None] * self.ratio + np.arange(self.ratio)
        return np.r_[inside.ravel(), np.arange(end // self.ratio * self.ratio, end)].astype(int)

    def hide_others(self):
        """NaN at every position that no token attends to."""
        seen = np.unique(np.concatenate([self.attended(t) for t in range(self.tokens)]))
        others = np.setdiff1d(np.arange(len(self.keys)), seen)
        self.keys[others] = self.values[others] = np.nan
        return self

    def truth(self):
        out = np.empty((self.tokens, self.heads, self.d))
        group = self.heads // self.kv
        for t in range(self.tokens):
            at = self.attended(t)
            k = np.repeat(self.keys[at].astype(float), group, 1)
            v = np.repeat(self.values[at].astype(float), group, 1)
            s = np.einsum("hd,jhd->hj", self.q[t].astype(float), k) * self.d**-0.5
            p = np.exp(s - s.max(1, keepdims=True))
            out[t] = np.einsum("hj,jhd->hd", p / p.sum(1, keepdims=True), v)
        return out / (1 + np.exp(-self.qg[..., self.d :].astype(float)))

    def only(self, begin, end):
        """Its tokens [begin, end)."""
        part = Case.__new__(Case)
        part.__dict__.update(self.__dict__, tokens=end - begin, position=self.position + begin)
        for name in ("q", "qg", "selected"):
            setattr(part, name, getattr(self, name)[begin:end].copy())
        return part

    def args(self, spans=0):
        return abi.AttentionArgs(
            tokens=self.tokens, position=self.position, n_head=self.heads, n_kv_head=self.kv,
            d_head=self.d, ratio=self.ratio, keep=self.keep, spans=spans, scale=self.d**-0.5,
        )  # fmt: skip

    def attention(self, orders=ORDERS):
        inputs = [self.q, self.qg, self.keys, self.values, self.selected]
        groups = (self.kv * ceil(self.heads // self.kv, 12), self.tokens, 1)
        return run(
            "attention", self.args(), inputs, {6: np.full_like(self.q, np.nan)}, groups, 128, orders
        )[0]

    def attention_by_parts(self, orders=ORDERS, more_room=0):
        most = max(len(self.attended(t)) for t in range(self.tokens))
        spans = min(abi.kAttentionSpans, ceil(most, abi.kAttentionChunk)) + more_room
        parts = nans(self.tokens * self.heads * spans * (self.d + 2))
        inputs = [self.q, self.keys, self.values, self.selected]
        groups = (spans, self.kv * ceil(self.heads // self.kv, 12), self.tokens)
        parts = run("attention_part", self.args(spans), inputs, {5: parts}, groups, 128, orders)[0]
        inputs = [parts, self.qg, self.selected]
        out = {4: np.full_like(self.q, np.nan)}
        return run(
            "attention_join",
            self.args(spans),
            inputs,
            out,
            (self.heads, self.tokens, 1),
            64,
            orders,
        )[0]


SHAPES = {
    "real": (24, 2, 256, 4, 512),
    "tiny": (4, 2, 64, 4, 16),
    "tiny-b": (6, 2, 128, 4, 8),
    "one-kv": (26, 1, 36, 3, 11),
    "equal": (3, 3, 4, 1, 5),
    "block": (2, 1, 64, 8, 1),
    "dense": (8, 2, 32, 0, 0),
}


@parametrize("tokens", [1, 2, 3, 4])
@parametrize("position", [0, 2, 3, 61, 150])
@parametrize("shape", [name for name in SHAPES if name != "real"])
def case_attention_window(shape, position, tokens):
    case = Case(*SHAPES[shape], tokens=tokens, position=position).hide_others()
    whole, parts = case.attention(), case.attention_by_parts()
    within(error(whole, case.truth()), LIMIT)
    same_bits(whole, parts)


@parametrize("position", [5, 2040, 2047, 2051, 2900])
def case_attention_real_shape(position):
    case = Case(*SHAPES["real"], tokens=2, position=position).hide_others()
    whole = case.attention(["random"])
    within(error(whole, case.truth()), LIMIT)
    same_bits(whole, case.attention_by_parts(["reverse"]))


# Up to 64 spans of 64 keys: beyond 4096 keys a span has several chunks.
@parametrize("position", [4031, 4095, 4096, 4200, 9000])
def case_attention_many_keys(position):
    case = Case(3, 1, 8, tokens=1, position=position)
    whole = case.attention(["forward", "random"])
    within(error(whole, case.truth()), LIMIT)
    same_bits(whole, case.attention_by_parts(["forward", "random"]))


@parametrize("shape", ["tiny", "one-kv", "dense"])
def case_attention_prompt_is_its_tokens_one_by_one(shape):
    case = Case(*SHAPES[shape], tokens=23, position=170)
    whole = case.attention(["forward"])
    within(error(whole, case.truth()), LIMIT)
    for begin, end in ((0, 1), (1, 3), (3, 7), (7, 23)):
        part = case.only(begin, end)
        same_bits(part.attention(["forward"]), whole[begin:end])
        same_bits(part.attention_by_parts(["forward"], more_room=5), whole[begin:end])


# Scores that float32 holds exactly, so that only the softmax is on trial: +-80 in some order, one far above
# all others, or the same everywhere.
SCORES = {
    "wide": lambda rng, n: rng.integers(-80, 81, n),
    "rising": lambda rng, n: np.linspace(-80, 80, n).round(),
    "falling": lambda rng, n: np.linspace(80, -80, n).round(),
    "one": lambda rng, n: np.where(np.arange(n) == n // 3, 80, -80),
    "low": lambda rng, n: np.full(n, -80),
}


@parametrize("scores", SCORES)
@parametrize("position", [300, 4500])
def case_attention_strong_scores(scores, position):
    def qk(rng, case):
        case.q[:], case.keys[:] = 0, 0
        case.q[..., 5] = np.sqrt(case.d)
        case.keys[:, :, 5] = SCORES[scores](rng, len(case.keys))[:, None]

    case = Case(4, 2, 16, tokens=2, position=position, qk=qk)
    whole = case.attention(["random"])
    within(error(whole, case.truth()), LIMIT)
    same_bits(whole, case.attention_by_parts(["random"]))


def case_attention_nan_propagates():
    case = Case(*SHAPES["tiny"], tokens=2, position=150)
    clean = case.attention()
    case.q[1, 2, 7] = np.nan
    value = case.attended(0)[3]
    case.values[value, 0, 9] = np.nan
    for out in (case.attention(), case.attention_by_parts()):
        bad = np.isnan(out)
        check(bad[1, 2].all())
        check(bad[0, :2, 9].all())  # the query heads of the value's kv head
        same_bits(out[~bad], clean[~bad])
        check(not bad[0, 2:].any() and not bad[1, 3].any())


# The whole of it


def case_selection_and_attention_in_chunks():
    """From raw projections to outputs, in windows and in chunks: the same bits as at once."""
    heads, kv, d, index_heads, index_d, n_rope, ratio, keep, n = 4, 2, 32, 2, 32, 16, 4, 6, 61
    rng = rng_of(61)
    qg, k, v = normal(rng, n, heads, 2 * d), normal(rng, n, kv, d), normal(rng, n, kv, d)
    iq, raw = normal(rng, n, index_heads, index_d), normal(rng, n, index_d)
    gq, gk, giq, gik = normal(rng, d), normal(rng, d), normal(rng, index_d), normal(rng, index_d)

    def pass_through(cuts):
        keys, values, kept = nans(n, kv, d), nans(n, kv, d), nans(ceil(n, ratio), index_d)
        tail, position, out = np.zeros((ratio, index_d), np.float32), 0, []
        for tokens in cuts:
            rows = slice(position, position + tokens)
            turns = turns_of(position, tokens, n_rope)
            given = [x[rows].copy() for x in (qg, k, v)]
            q, new_keys, new_values = attn_prepare(*given, gq, gk, turns, position, position, n)
            keys[rows], values[rows] = new_keys[rows], new_values[rows]
            given = [x[rows].copy() for x in (iq, raw)]
            turned, made, tail = index_prepare(*given, giq, gik, tail, n_rope, position, n)
            kept = np.where(np.isnan(made), kept, made)
            scores = block_scores(turned, kept, position, ratio, keep, ["random"])
            case = Case(heads, kv, d, ratio, keep, tokens=tokens, position=position)
            case.q, case.qg, case.keys, case.values = q, qg[rows].copy(), keys, values
            case.selected = block_select(scores, position, ratio, keep, ["random"])
            out.append(
                case.attention_by_parts(["random"]) if tokens <= 4 else case.attention(["random"])
            )
            position += tokens
        return np.concatenate(out)

    whole = pass_through([n])
    check(not np.isnan(whole).any())
    same_bits(pass_through([1, 2, 3, 4, 17, 1, 4, 29]), whole)
