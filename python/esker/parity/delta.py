# SPDX-License-Identifier: MIT
"""metal/delta.metal against float64: the gated delta net, both forms of its recurrence.

The truth of both is the recurrence token by token.
"""

import functools

import numpy as np

from . import abi
from .cases import (
    ceil,
    check,
    error,
    in_every_order,
    launch,
    nans,
    normal,
    parametrize,
    rng_of,
    same_bits,
    within,
)
from .mixer import EPS, rms, sigma

# Log decays of a token: hardly any, some, the state gone within a few tokens, and all of it at some tokens.
DECAYS = {
    "weak": lambda rng, *shape: -rng.uniform(0, 1e-3, shape),
    "some": lambda rng, *shape: -rng.uniform(0.01, 0.3, shape),
    "strong": lambda rng, *shape: -rng.uniform(1, 30, shape),
    "jumps": lambda rng, *shape: np.where(
        rng.random(shape) < 0.1, -3000.0, -rng.uniform(0, 0.01, shape)
    ),
}


def run(kernels, args, buffers, outputs, order="forward"):
    """Dispatches kernels [(name, groups, threads)] on copies of the buffers numbered `outputs`."""
    buffers = [b.copy() if i in outputs else b for i, b in enumerate(buffers, 1)]
    for name, groups, threads in kernels:
        launch(name, args, buffers, groups=groups, threads=(threads, 1, 1), order=order)
    return [buffers[i - 1] for i in outputs]


def run_orders(kernels, args, buffers, outputs):
    """The same in every order of lanes."""
    return in_every_order(lambda order: run(kernels, args, buffers, outputs, order))


# Convolution, gates, norm


def gdn_conv(qkv, taps, old, nk, nv, d):
    args = abi.GdnConvArgs(tokens=len(qkv), n_key_head=nk, n_value_head=nv, d=d, taps=len(taps))
    buffers = [qkv, taps, np.full_like(qkv, np.nan), old, np.full_like(old, np.nan)]
    groups = (ceil(2 * nk + nv, 4), len(qkv), 1)
    return run_orders([("gdn_conv", groups, 128)], args, buffers, (3, 5))


@parametrize("nk, nv, d", [(2, 6, 128), (1, 3, 64), (3, 3, 20), (1, 2, 200)])
@parametrize("tokens, n_taps", [(1, 4), (2, 4), (3, 4), (9, 4), (2, 7), (2, 1)])
def case_gdn_conv(tokens, n_taps, nk, nv, d):
    width, history = (2 * nk + nv) * d, n_taps - 1
    rng = rng_of(tokens, n_taps, nk, nv, d)
    qkv, taps, old = (
        normal(rng, tokens, width),
        normal(rng, n_taps, width),
        normal(rng, history or 1, width),
    )
    got, new = gdn_conv(qkv, taps, old, nk, nv, d)
    rows = np.concatenate([old[:history], qkv]).astype(float)
    y = sum(taps[k] * rows[k : k + tokens] for k in range(n_taps))
    want = (y * sigma(y)).reshape(tokens, -1, d)
    want[:, : 2 * nk] /= np.sqrt((want[:, : 2 * nk] ** 2).sum(-1, keepdims=True) + 1e-6)
    want[:, :nk] /= np.sqrt(d)
    got = got.reshape(want.shape)
    for heads in (slice(0, nk), slice(nk, 2 * nk), slice(2 * nk, None)):
        within(error(got[:, heads], want[:, heads]), 1e-6)
    if history:
        np.testing.assert_array_equal(new, rows[-history:].astype(np.float32))


def case_gdn_conv_in_pieces():
    rng = rng_of(11)
    qkv, taps, old = normal(rng, 11, 5 * 64), normal(rng, 4, 5 * 64), normal(rng, 3, 5 * 64)
    whole, last = gdn_conv(qkv, taps, old, 1, 3, 64)
    pieces = []
    for begin, end in ((0, 1), (1, 3), (3, 4), (4, 11)):
        part, old = gdn_conv(qkv[begin:end].copy(), taps, old, 1, 3, 64)
        pieces.append(part)
    same_bits(np.concatenate(pieces), whole)
    same_bits(old, last)


@parametrize("tokens, heads", [(1, 48), (4, 6), (70, 5)])
def case_gdn_gates(tokens, heads):
    rng = rng_of(tokens, heads)
    alpha, beta = 8 * normal(rng, tokens, heads), 3 * normal(rng, tokens, heads)
    a, dt = -np.exp(normal(rng, heads)), normal(rng, heads)
    args = abi.GdnGatesArgs(tokens=tokens, heads=heads)
    buffers = [alpha, beta, a, dt, nans(tokens, heads), nans(tokens, heads)]
    decay, rate = run_orders(
        [("gdn_gates", (ceil(tokens * heads, 256), 1, 1), 256)], args, buffers, (5, 6)
    )
    x = (alpha + dt).astype(float)  # the sum as float32 makes it
    # Value by value: a small decay counts as much as a large one. Above 20 the kernel's softplus is x.
    np.testing.assert_allclose(decay, a * np.logaddexp(0, x), rtol=1e-6)
    np.testing.assert_allclose(rate, sigma(beta.astype(float)), rtol=1e-6)


def case_softplus_at_its_edges():
    alpha = np.array(
        [[-200, -104, -87, -30, -17, -16, -1e-9, 0, 1, 19.9, 20, 20.1, 500, np.nan]], np.float32
    )
    n = alpha.shape[1]
    buffers = [
        alpha,
        alpha,
        np.full(n, -1, np.float32),
        np.zeros(n, np.float32),
        nans(1, n),
        nans(1, n),
    ]
    decay, _ = run_orders(
        [("gdn_gates", (1, 1, 1), 256)], abi.GdnGatesArgs(tokens=1, heads=n), buffers, (5, 6)
    )
    with np.errstate(invalid="ignore"):
        want = -np.logaddexp(0, alpha.astype(float))
    np.testing.assert_allclose(decay, want, rtol=1e-6, atol=1e-38)


@parametrize("tokens, heads, d", [(1, 48, 128), (3, 6, 64), (2, 5, 33), (1, 1, 256)])
def case_gdn_norm(tokens, heads, d):
    rng = rng_of(tokens, heads, d)
    o, z, gamma = normal(rng, tokens, heads, d), 3 * normal(rng, tokens, heads, d), normal(rng, d)
    o[0, 0] *= 1e-4
    args = abi.GdnNormArgs(tokens=tokens, heads=heads, d=d, eps=EPS)
    groups = (ceil(heads, 4), tokens, 1)
    (got,) = run_orders(
        [("gdn_norm", groups, 128)], args, [o, z, gamma, np.full_like(o, np.nan)], (4,)
    )
    want = rms(o.astype(float), gamma.astype(float)) * sigma(z.astype(float))
    for t, h in np.ndindex(tokens, heads):
        within(error(got[t, h], want[t, h]), 1e-6)


# The recurrence


class Case:
    """A run's operands and what it should give; d^2 state, unit keys, queries over sqrt(d)."""

    def __init__(self, tokens, nk, nv, d, decay="some", rate=None):
        rng = rng_of(tokens, nk, nv, d, *decay.encode())
        self.tokens, self.nk, self.nv, self.d = tokens, nk, nv, d
        x = rng.standard_normal((tokens, 2 * nk + nv, d))
        # Keys that resemble each other, as a convolution makes them: the triangular system is no identity.
        x[:, nk : 2 * nk] += 0.7 * rng.standard_normal((nk, d))
        x[:, : 2 * nk] /= np.linalg.norm(x[:, : 2 * nk], axis=-1, keepdims=True)
        x[:, :nk] /= np.sqrt(d)
        self.qkv = x.astype(np.float32).reshape(tokens, -1)
        self.log_decay = DECAYS[decay](rng, tokens, nv).astype(np.float32)
        self.rate = (
            rng.uniform(0, 1, (tokens, nv)).astype(np.float32) if rate is None else nans(tokens, nv)
        )
        if rate is not None:
            self.rate[:] = rate
        self.state = normal(rng, nv, d, d) / np.float32(np.sqrt(d))

    def truth(self, tokens=None):
        """out [T, nv, d] and the state after so many tokens, in float64."""
        x = self.qkv.astype(float).reshape(self.tokens, -1, self.d)
        key_head = np.arange(self.nv) % self.nk
        q, k, v = x[:, key_head], x[:, self.nk + key_head], x[:, 2 * self.nk :]
        decay, rate = np.exp(self.log_decay.astype(float)), self.rate.astype(float)
        s, out = self.state.astype(float), []
        for t in range(self.tokens if tokens is None else tokens):
            s = s * decay[t][:, None, None]
            e = rate[t][:, None] * (v[t] - np.einsum("hkv,hk->hv", s, k[t]))
            s = s + k[t][:, :, None] * e[:, None, :]
            out.append(np.einsum("hkv,hk->hv", s, q[t]))
        return np.array(out), s

    def slice(self, begin, end, state):
        """The run of some of the tokens, from a state."""
        part = object.__new__(Case)
        part.tokens, part.nk, part.nv, part.d = end - begin, self.nk, self.nv, self.d
        for name in ("qkv", "log_decay", "rate"):
            setattr(part, name, getattr(self, name)[begin:end].copy())
        part.state = state
        return part

    @property
    def buffers(self):
        """Of both forms, without the scratch; the state out is all NaN."""
        out = nans(self.tokens, self.nv, self.d)
        return [
            self.qkv,
            self.log_decay,
            self.rate,
            self.state,
            np.full_like(self.state, np.nan),
            out,
        ]

    @property
    def columns(self):
        return ceil(self.d, 16 if self.d > 128 else 32)


@functools.cache
def case(*key):
    return Case(*key)


def delta_step(c, commit, dispatch=run_orders):
    """-> state out, out."""
    sizes = {"n_key_head": c.nk, "n_value_head": c.nv, "d": c.d}
    args = abi.DeltaStepArgs(tokens=c.tokens, commit=commit, **sizes)
    return dispatch([("delta_step", (c.columns, c.nv, 1), 128)], args, c.buffers, (5, 6))


def delta_chunk(c, dispatch=run_orders, threads=128):
    """-> state out, out."""
    args = abi.DeltaChunkArgs(tokens=c.tokens, n_key_head=c.nk, n_value_head=c.nv, d=c.d)
    chunks = ceil(c.tokens, abi.kDeltaTokens)
    scratch = nans(c.nv * chunks * abi.kDeltaFloats)
    kernels = [
        ("delta_prepare", (chunks, c.nk, 1), 128),
        ("delta_chunk", (ceil(c.d, 32), c.nv, 1), threads),
    ]
    return dispatch(kernels, args, [*c.buffers, scratch], (5, 6, 7))[:2]


def check_made(c, made, limit=1e-6):
    """The state out and out of either form against the recurrence."""
    out, state = c.truth()
    got_state, got = made
    within(error(got, out), limit)
    within(error(got_state, state), limit)


SIZES = [(2, 6, 128), (1, 3, 64), (3, 3, 22), (1, 1, 256), (2, 5, 99)]


@parametrize("nk, nv, d", SIZES)
@parametrize("tokens", [1, 2, 3, 4, 9])
def case_delta_step(tokens, nk, nv, d):
    c = case(tokens, nk, nv, d)
    out, state = c.truth()
    got_state, got = delta_step(c, tokens)
    for t in range(tokens):
        within(error(got[t], out[t]), 1e-6)
    within(error(got_state, state), 1e-6)


@parametrize("decay", DECAYS)
def case_delta_step_decays(decay):
    c = case(4, 1, 2, 64, decay)
    check_made(c, delta_step(c, 4))


@parametrize("commit", range(5))
def case_delta_step_commits_some_tokens(commit):
    c = case(4, 2, 4, 64)
    got_state, got = delta_step(c, commit, run)
    within(error(got, c.truth()[0]), 1e-6)  # the outputs are those of every token
    if commit == 0:
        check(np.isnan(got_state).all())
    else:
        part = c.slice(0, commit, c.state)
        same_bits(got_state, delta_step(part, commit, run)[0])
        within(error(got_state, c.truth(commit)[1]), 1e-6)


def case_delta_step_does_not_depend_on_the_window():
    c = case(9, 2, 4, 128)
    whole_state, whole = delta_step(c, 9, run)
    state, pieces = c.state, []
    for begin, end in ((0, 1), (1, 5), (5, 7), (7, 9)):
        state, part = delta_step(c.slice(begin, end, state), end - begin, run)
        pieces.append(part)
    same_bits(np.concatenate(pieces), whole)
    same_bits(state, whole_state)


def in_place(kernels, args, buffers, outputs):
    """State in and state out are one buffer."""
    buffers = list(buffers)
    buffers[3] = buffers[4] = buffers[3].copy()
    for name, groups, threads in kernels:
        launch(name, args, buffers, groups=groups, threads=(threads, 1, 1))
    return [buffers[i - 1] for i in outputs]


@parametrize("form", [lambda c, how: delta_step(c, 3, how), delta_chunk], ids=["step", "chunk"])
def case_the_state_in_place(form):
    c = case(3, 1, 2, 128)
    for a, b in zip(form(c, run), form(c, in_place), strict=True):
        same_bits(a, b)


@parametrize("decay", DECAYS)
@parametrize("tokens", [1, 2, 7, 31, 32, 33, 63, 64, 65, 200])
def case_delta_chunk(tokens, decay):
    c = case(tokens, 1, 2, 64, decay)
    check_made(c, delta_chunk(c, run))


@parametrize("nk, nv, d", SIZES)
def case_delta_chunk_sizes(nk, nv, d):
    c = case(40, nk, nv, d)
    out, state = c.truth()
    got_state, got = delta_chunk(c)
    for h in range(nv):
        within(error(got[:, h], out[:, h]), 1e-6)
        within(error(got_state[h], state[h]), 1e-6)


@parametrize("rate", [0, 1])
def case_delta_chunk_rates(rate):
    """Nothing is learned; and every value replaces what stood there."""
    c = case(70, 1, 1, 64, "weak", rate)
    check_made(c, delta_chunk(c, run))


def case_delta_chunk_of_one_key_again_and_again():
    """Nearly: A is then full of numbers near 1, and most of a product with M cancels; hence 2e-6."""
    c = Case(100, 1, 1, 128, "weak", 1)
    x = c.qkv.reshape(100, 3, 128)
    k = x[0, 1] + 0.004 * normal(rng_of(1), 100, 128)
    x[:, 1] = k / np.linalg.norm(k, axis=-1, keepdims=True)
    check_made(c, delta_chunk(c, run), 2e-6)


def case_delta_chunk_and_key_heads_with_more_values_than_simdgroups():
    c = case(33, 1, 6, 64)
    check_made(c, delta_chunk(c, run))


def case_delta_chunk_forgets_all_at_a_decay_to_zero():
    c = Case(40, 1, 1, 64)
    c.log_decay[[0, 17, 35]] = -np.inf
    check_made(c, delta_chunk(c, run))


def case_delta_chunk_in_pieces():
    """Cut at whole chunks: the same bits."""
    c = case(100, 1, 2, 64)
    whole_state, whole = delta_chunk(c, run)
    state, pieces = c.state, []
    for begin, end in ((0, 32), (32, 96), (96, 100)):
        state, part = delta_chunk(c.slice(begin, end, state), run)
        pieces.append(part)
    same_bits(np.concatenate(pieces), whole)
    same_bits(state, whole_state)


@parametrize("d", [64, 256, 50])
def case_delta_chunk_in_smaller_groups(d):
    c = case(37, 1, 2, d)
    whole = delta_chunk(c, run)
    for threads in (64, 32):
        for a, b in zip(whole, delta_chunk(c, run, threads), strict=True):
            same_bits(a, b)


def case_delta_chunk_goes_on_after_steps():
    c = case(65, 2, 2, 64)
    before, first = delta_step(c.slice(0, 3, c.state), 3, run)
    after, rest = delta_chunk(c.slice(3, 65, before), run)
    check_made(c, (after, np.concatenate([first, rest])))
