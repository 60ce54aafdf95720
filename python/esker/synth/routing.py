# SPDX-License-Identifier: MIT
"""How the router of a synthetic model is made to prefer experts, and to stay with them.

Every token's embedding holds 1 in channel 0 and its topic's code, +1 or -1, in the next ones.  No
layer writes to these reserved channels (their rows of all output matrices are zero), and the
router reads them through known gates, so that an expert's score is, in units of `SIGMA`:

    bias + sqrt(rho) * (depends on the topic) + sqrt(1 - rho) * (depends on the token)

with both terms standard normal.  An expert is picked where its score is above a threshold common
to all, so a bias of Phi^-1(p) makes it picked with probability p: p falls as rank^-zipf.
rho is solved for: two tokens of one topic then share the part `sticky` of their experts.

What an LRU makes of it, by the engine's counters: 512 experts of which 10 are used, 4 layers of
width 640, tokens 200 to 600 of token_stream(600, 1); slots for 18 % and 40 % of the experts.

    zipf  sticky   18 %    40 %
    0     0        22.7 %  48.9 %
    1     0        61.8 %  80.4 %
    0     0.9      99.6 %  99.6 %
    1     0.9      99.6 %  99.6 %
    0.7   0.3      89.3 %  95.3 %
    0.7   0.3      92.3 %  96.8 %   preset real-12, tokens 100 to 300

(With zipf 0 experts are not quite alike: what all tokens have in common, their context above all,
makes some of them more popular.)
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from ..errors import UsageError, fault

Doubles = npt.NDArray[np.float64]

SIGMA = 1.5  # of router scores: the best of ten experts then weighs about five times the last
TOPICS = 64
STAY = 64  # tokens that a text stays in a topic, on average
_POPULAR_MAX = 0.98  # an expert that every token used would be no expert


def reserved_channels(hidden: int) -> int:
    """Channels that no layer writes to: one for the bias, the rest for topics."""
    return 64 if hidden >= 512 else 32 if hidden >= 256 else 16


def popularity(experts: int, used: int, zipf: float) -> Doubles:
    """How often each expert is picked, most popular first; the sum is `used`."""
    if used == experts:
        return np.ones(experts)
    weights = np.arange(1, experts + 1, dtype=np.float64) ** -zipf
    low, high = 0.0, float(used / weights.min())
    for _ in range(100):
        middle = (low + high) / 2
        if np.minimum(middle * weights, _POPULAR_MAX).sum() < used:
            low = middle
        else:
            high = middle
    return np.minimum(high * weights, _POPULAR_MAX)


def thresholds(picked: Doubles) -> Doubles:
    """Where a standard normal variable must lie to be picked with that probability."""
    normal = NormalDist()
    inside = np.clip(picked, 1e-9, 1 - 1e-9)
    return np.array([-normal.inv_cdf(p) for p in inside])


def correlation(picked: Doubles, sticky: float) -> float:
    """rho: of two tokens of one topic, the part `sticky` of the picks is the same."""
    if not 0 <= sticky <= 1:
        raise UsageError(fault("synth", "--sticky", got=sticky, want="a number from 0 to 1"))
    cuts, used = thresholds(picked), float(picked.sum())
    low, high = 0.0, 1.0
    if shared_part(cuts, used, low) >= sticky:
        return low
    if sticky == 1:
        return high
    for _ in range(40):
        middle = (low + high) / 2
        if shared_part(cuts, used, middle) < sticky:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def shared_part(cuts: Doubles, used: float, rho: float) -> float:
    """Part of the picks that two tokens have in common whose scores correlate by rho.

    Given the common term u, each exceeds the cut with probability Phi((sqrt(rho) u - cut) /
    sqrt(1 - rho)); the integral over u is a sum over a fine grid.
    """
    u = np.linspace(-8, 8, 641)
    weights = np.exp(-u * u / 2)
    weights /= weights.sum()
    z = (np.sqrt(rho) * u - cuts[:, None]) / np.sqrt(max(1 - rho, 1e-12))
    return float((_phi(z) ** 2 @ weights).sum() / used)


def _phi(z: Doubles) -> Doubles:
    """The normal distribution function, to 1e-7 (Abramowitz and Stegun 26.2.17)."""
    x = np.abs(z)
    t = 1 / (1 + 0.2316419 * x)
    poly = t * (
        0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429)))
    )
    tail = np.exp(-(np.minimum(x, 38) ** 2) / 2) / np.sqrt(2 * np.pi) * poly
    part: Doubles = np.where(z > 0, 1 - tail, tail)
    return part


def topic_codes(channels: int, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """A code of +1 and -1 for each topic: [TOPICS, channels]."""
    return (2 * rng.integers(0, 2, (TOPICS, channels)) - 1).astype(np.float32)


def topic_of(tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return tokens % TOPICS


def token_stream(
    n: int, seed: int = 0, *, n_vocab: int, topics: int = TOPICS, stay: float = STAY
) -> npt.NDArray[np.int64]:
    """n token ids that wander from topic to topic, staying for `stay` tokens on average.

    n_vocab counts the tokens to draw from: those before the control tokens (`plain_tokens` of
    the model's shape; key esker.synth.plain_tokens of its file).  stay = 1 draws every token from
    all of them.  The same arguments give the same tokens.
    """
    if n_vocab < topics or stay < 1 or n < 0:
        raise UsageError(
            fault("synth", "token stream", got=(n, n_vocab, stay),
                  want=f"n from 0, at least {topics} tokens, a stay of 1 or more")
        )  # fmt: skip
    rng = np.random.Generator(np.random.PCG64(seed))
    leaves = rng.random(n) < 1 / stay
    new_topics = rng.integers(0, topics, n)
    if n:
        leaves[0] = True
    where = np.maximum.accumulate(np.where(leaves, np.arange(n), 0))
    topic = new_topics[where]
    return topic + topics * rng.integers(0, (n_vocab - 1 - topic) // topics + 1)
