# SPDX-License-Identifier: MIT
"""Comparing logits: differences, Kullback-Leibler divergence, agreement of the best token."""

from dataclasses import dataclass

import numpy as np


def log_softmax(logits):
    """Over the last axis, in double precision."""
    x = np.asarray(logits, np.float64)
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def kl_divergence(reference, other):
    """KL(reference || other) of every row, in nats."""
    a, b = log_softmax(reference), log_softmax(other)
    return (np.exp(a) * (a - b)).sum(-1)


@dataclass(frozen=True)
class Comparison:
    """How far two sets of logits lie apart. Differences are absolute, in logits."""

    diff_max: float
    diff_max_row: int
    std: float  # of the reference's logits
    kl_mean: float
    kl_max: float
    top1_equal: float  # share of rows

    def __str__(self):
        return (
            f"max difference {self.diff_max:.3g} at row {self.diff_max_row} "
            f"(deviation of the logits {self.std:.3g}), KL mean {self.kl_mean:.3g} "
            f"max {self.kl_max:.3g}, same best token in {100 * self.top1_equal:.1f} % of rows"
        )


def compare(reference, other):
    """Compares logits [T, vocab]; shapes must be equal."""
    reference, other = np.atleast_2d(reference), np.atleast_2d(other)
    assert reference.shape == other.shape, (reference.shape, other.shape)
    assert np.isfinite(other).all(), "logits hold NaN or infinity"
    rows = np.abs(reference.astype(np.float64) - other).max(-1)
    kl = kl_divergence(reference, other)
    return Comparison(
        diff_max=float(rows.max()),
        diff_max_row=int(rows.argmax()),
        std=float(reference.std()),
        kl_mean=float(kl.mean()),
        kl_max=float(kl.max()),
        top1_equal=float((reference.argmax(-1) == other.argmax(-1)).mean()),
    )


def assert_close(reference, other, limit, what=""):
    """No logit may differ by more than limit."""
    result = compare(reference, other)
    assert result.diff_max <= limit, f"{what}: {result}, allowed {limit:.3g}"


def assert_close_and_same_top(reference, other, limit, what=""):
    """As assert_close; and every row's best token must be the same, unless the reference's two
    best are nearer than the limit, where no order is owed."""
    assert_close(reference, other, limit, what)
    reference, other = np.atleast_2d(reference), np.atleast_2d(other)
    best = np.sort(reference, -1)
    decided = best[:, -1] - best[:, -2] > limit
    wrong = np.nonzero(decided & (reference.argmax(-1) != other.argmax(-1)))[0]
    assert not len(wrong), f"{what}: another best token in rows {wrong[:20].tolist()}"


def assert_bit_equal(reference, other, what=""):
    """Every bit of the two arrays must be the same."""
    reference, other = np.asarray(reference), np.asarray(other)
    assert reference.shape == other.shape, (what, reference.shape, other.shape)
    if reference.tobytes() == other.tobytes():
        return
    rows = np.nonzero((np.atleast_2d(reference) != np.atleast_2d(other)).any(-1))[0]
    raise AssertionError(
        f"{what}: not bit-equal in {len(rows)} rows, first {rows[:20].tolist()}; "
        f"{compare(reference, other)}"
    )
