# SPDX-License-Identifier: MIT
"""metal/mixer.metal against float64: hyper-connections and the elementwise ends of the experts."""

import numpy as np

from . import abi
from .cases import ceil, check, error, nans, normal, parametrize, rng_of, run, same_bits, within

EPS = 1e-6
# Tokens, streams, width: smaller than a group, between, more than one; odd; the real model's.
SHAPES = [(1, 4, 24), (3, 2, 257), (4, 3, 1000), (7, 1, 31), (1, 4, 2560)]


def sigma(x):
    return 1 / (1 + np.exp(-x))


def rms(x, gamma, eps=EPS):
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + eps) * gamma


def stream_norm(x, gamma):
    tokens, streams, width = x.shape
    args = abi.StreamNormArgs(tokens=tokens, streams=streams, width=width, eps=EPS)
    return run("stream_norm", args, [x, gamma], {3: nans(*x.shape)}, (streams, tokens, 1))[0]


@parametrize("shape", SHAPES)
def case_stream_norm(shape):
    rng = rng_of(*shape)
    x, gamma = normal(rng, *shape), normal(rng, *shape[1:])
    x *= np.float32(10) ** rng.integers(-4, 5, shape[:2])[..., None].astype(
        np.float32
    )  # eps and far from it
    got, want = stream_norm(x, gamma), rms(x.astype(float), gamma.astype(float))
    for t, c in np.ndindex(shape[:2]):
        within(error(got[t, c], want[t, c]), 1e-6)


def case_stream_norm_of_zeros_and_nan():
    x, gamma = np.zeros((2, 2, 40), np.float32), np.ones((2, 40), np.float32)
    x[1, 0, 17] = np.nan
    got = stream_norm(x, gamma)
    check(np.isnan(got[1, 0]).all())
    check((got[0] == 0).all() and (got[1, 1] == 0).all())


@parametrize("shape", SHAPES)
def case_mix_read(shape):
    tokens, streams, width = shape
    rng = rng_of(*shape)
    normed, gates = normal(rng, *shape), 4 * normal(rng, *shape)
    args = abi.MixReadArgs(tokens=tokens, streams=streams, width=width)
    out = nans(tokens, width)
    (got,) = run("mix_read", args, [normed, gates], {3: out}, (ceil(width, 256), tokens, 1))
    within(error(got, (sigma(gates.astype(float)) * normed).mean(1)), 1e-6)


@parametrize("shape", SHAPES)
def case_mix_write(shape):
    tokens, streams, width = shape
    rng = rng_of(*shape)
    y, inject, residual = (
        normal(rng, tokens, width),
        9 * normal(rng, tokens, streams),
        normal(rng, *shape),
    )
    args = abi.MixWriteArgs(tokens=tokens, streams=streams, width=width)
    (got,) = run("mix_write", args, [y, inject], {3: residual}, (ceil(width, 256), tokens, 1))
    want = residual + 2 * sigma(inject.astype(float) / streams)[..., None] * y[:, None]
    within(error(got, want), 1e-6)


@parametrize("n", [1, 255, 256, 1921])
def case_swiglu(n):
    rng = rng_of(n)
    gate, up = 6 * normal(rng, n), normal(rng, n)
    (got,) = run("swiglu", abi.SwigluArgs(n=n), [gate, up], {3: nans(n)}, (ceil(n, 256), 1, 1))
    within(error(got, gate * sigma(gate.astype(float)) * up), 1e-6)


def case_swiglu_far_from_zero():
    gate = np.array([-1e4, -200, -90, -88, 88, 90, 1e30, -0.0, np.nan, np.inf], np.float32)
    up = np.full_like(gate, 2)
    args = abi.SwigluArgs(n=len(gate))
    (got,) = run("swiglu", args, [gate, up], {3: np.zeros_like(gate)}, (1, 1, 1))
    with np.errstate(over="ignore"):
        want = (gate * sigma(gate.astype(float)) * 2).astype(np.float32)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-36)


@parametrize("tokens, width", [(1, 2560), (3, 100), (9, 513)])
def case_moe_combine(tokens, width):
    rng = rng_of(tokens, width)
    shared, share, y = (
        normal(rng, tokens, width),
        3 * normal(rng, tokens),
        normal(rng, tokens, width),
    )
    args = abi.MoeCombineArgs(tokens=tokens, width=width)
    (got,) = run("moe_combine", args, [shared, share], {3: y}, (ceil(width, 256), tokens, 1))
    within(error(got, y + sigma(share.astype(float))[:, None] * shared), 1e-6)


def case_a_token_does_not_depend_on_the_others():
    rng = rng_of(5)
    x, gamma = normal(rng, 5, 4, 300), normal(rng, 4, 300)
    whole = stream_norm(x, gamma)
    alone = np.concatenate([stream_norm(x[t : t + 1].copy(), gamma) for t in range(5)])
    same_bits(whole, alone)
