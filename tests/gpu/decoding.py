# SPDX-License-Identifier: MIT
"""Greedy decoding of whole models, for comparing a device with the cpu backend."""

import esker
import numpy as np

# Both sides add floats, in another order: logits have a standard deviation of 1.4 to 3.5.
LIMIT = 1e-4


def tokens(n):
    return [(37 * i + i * i) % 400 for i in range(n)]


def greedy(session, prompt, n):
    """n greedy tokens; logits [n + 1, vocab] of the prompt's end and after each token."""
    session.prefill(prompt)
    rows, picked = [session.logits()], []
    for _ in range(n):
        picked.append(int(rows[-1].argmax()))
        session.decode(picked[-1])
        rows.append(session.logits())
    return picked, np.stack(rows)


def decoded(path, backend, prompt, n, **options):
    """What greedy() gives, and the counters; path: None for the demo model."""
    with esker.Model(path and str(path), backend=backend, **options) as model:
        session = model.session()
        return *greedy(session, prompt, n), model.counters
