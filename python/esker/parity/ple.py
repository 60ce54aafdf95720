# SPDX-License-Identifier: MIT
"""metal/ple.metal against float64: the gate of the n-gram layer and its dilated convolution."""

import numpy as np

from . import abi
from .cases import ceil, check, error, normal, parametrize, rng_of, run, same_bits, within
from .mixer import EPS, rms, sigma


def ple_gate(key, value, residual, gammas):
    tokens, streams, width = key.shape
    args = abi.PleGateArgs(tokens=tokens, streams=streams, width=width, eps=EPS)
    out = np.full_like(key, np.nan)
    inputs = [key, value, residual, *gammas]
    return run("ple_gate", args, inputs, {7: out, 8: out}, (streams, tokens, 1))


def gate_truth(key, value, residual, gammas):
    key, value, residual = (x.astype(float) for x in (key, value, residual))
    gk, gq, gc = (g.astype(float) for g in gammas)
    s = (rms(key, gk) * rms(residual, gq)).sum(-1, keepdims=True) / np.sqrt(key.shape[-1])
    f = sigma(np.sign(s) * np.sqrt(np.maximum(np.abs(s), 1e-6)))
    gated = f * value[:, None]
    return gated, rms(gated, gc)


@parametrize("tokens, streams, width", [(1, 4, 24), (3, 2, 257), (4, 3, 700), (1, 4, 2560)])
def case_ple_gate(tokens, streams, width):
    rng = rng_of(tokens, streams, width)
    key, residual = normal(rng, tokens, streams, width), normal(rng, tokens, streams, width)
    key[0] += residual[0]  # they agree: a large score; the others' are near 0, one is negative
    key[-1, -1] = -3 * residual[-1, -1]
    value = normal(rng, tokens, width)
    gammas = [normal(rng, streams, width) for _ in range(3)]
    gammas[1] = np.abs(gammas[0])
    got, want = ple_gate(key, value, residual, gammas), gate_truth(key, value, residual, gammas)
    for g, w in zip(got, want, strict=True):
        for t, c in np.ndindex(tokens, streams):
            within(error(g[t, c], w[t, c]), 1e-6)


def case_ple_gate_at_a_score_of_zero_and_of_nan():
    key = np.zeros((2, 2, 64), np.float32)
    key[1, 1, 3] = np.nan
    rng = rng_of(2)
    value, residual, gammas = (
        normal(rng, 2, 64),
        normal(rng, 2, 2, 64),
        [normal(rng, 2, 64) for _ in range(3)],
    )
    gated, normed = ple_gate(key, value, residual, gammas)
    np.testing.assert_array_equal(gated[0, 0], value[0] / 2)  # sign(0) = 0
    check(np.isnan(gated[1, 1]).all() and np.isnan(normed[1, 1]).all())
    check(not np.isnan(gated[1, 0]).any())


def case_ple_gate_near_a_score_of_zero():
    """|score| counts 1e-6 at least: the sign alone decides."""
    rng = rng_of(3)
    value, residual, gammas = (
        normal(rng, 2, 64),
        np.ones((2, 2, 64), np.float32),
        np.ones((3, 2, 64), np.float32),
    )
    key = np.zeros((2, 2, 64), np.float32)
    key[..., 0] = [
        [1e-11, -1e-11],
        [1e-9, -1e-9],
    ]  # scores of 1e-9 and 1e-7, eps being all of the norm
    key[1, 1] = -1e-6  # above the floor: 8e-3
    got, want = (
        ple_gate(key, value, residual, [*gammas]),
        gate_truth(key, value, residual, [*gammas]),
    )
    for g, w in zip(got, want, strict=True):
        for t, c in np.ndindex(2, 2):
            within(error(g[t, c], w[t, c]), 1e-6)


def ple_conv(gated, normed, taps, residual, old, dilation):
    tokens, width = normed.shape
    args = abi.PleConvArgs(tokens=tokens, width=width, taps=len(taps), dilation=dilation)
    new = np.full_like(old, np.nan)
    inputs = [gated, normed, taps, old]
    return run("ple_conv", args, inputs, {4: residual, 6: new}, (ceil(width, 256), tokens, 1))


# Fewer tokens than the history of 9, as many, more; other kernels; one tap: no history.
@parametrize("tokens", [1, 2, 4, 8, 9, 10, 23])
@parametrize("taps, dilation", [(4, 3), (2, 1), (3, 5), (1, 3)])
def case_ple_conv(tokens, taps, dilation):
    width, history = 300, (taps - 1) * dilation
    rng = rng_of(tokens, taps, dilation)
    gated, normed, residual = (normal(rng, tokens, width) for _ in range(3))
    w, old = normal(rng, taps, width), normal(rng, history, width)
    if history == 0:
        old = np.zeros((1, width), np.float32)  # buffers are not empty
    got, new = ple_conv(gated, normed, w, residual, old, dilation)
    rows = np.concatenate([old[:history], normed]).astype(float)
    y = sum(w[k] * rows[k * dilation : k * dilation + tokens] for k in range(taps))
    within(error(got, residual + gated.astype(float) + y * sigma(y)), 1e-6)
    if history:
        np.testing.assert_array_equal(new, rows[-history:].astype(np.float32))


def case_ple_conv_in_pieces():
    rng = rng_of(17)
    gated, normed, residual = (normal(rng, 17, 40) for _ in range(3))
    w, old = normal(rng, 4, 40), normal(rng, 9, 40)
    whole, last = ple_conv(gated, normed, w, residual, old, 3)
    pieces = []
    for begin, end in ((0, 1), (1, 3), (3, 12), (12, 17)):
        part, old = ple_conv(
            *(x[begin:end].copy() for x in (gated, normed)), w, residual[begin:end], old, 3
        )
        pieces.append(part)
    same_bits(np.concatenate(pieces), whole)
    same_bits(old, last)
