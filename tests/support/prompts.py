# SPDX-License-Identifier: MIT
"""The prompts behind the stored reference logits (data/oracle/*-hf.npz).

They must never change: the references were computed from exactly these ids. Token 500 is the tiny
models' PLE EOS; it resets the n-gram window.
"""

import numpy as np

EOS = 500
# What the long prompts are cut from.
_LONG_TOKENS = 2000


def random_tokens(count, seed=7, vocab=500):
    """count ids below vocab, the same for the same seed."""
    generator = np.random.Generator(np.random.PCG64(seed))
    return generator.integers(0, vocab, count).tolist()


def prompts():
    """Name -> token ids."""
    long = random_tokens(_LONG_TOKENS)
    out = {}
    for index, count in enumerate((1, 2, 3, 5, 65, 130, 300)):
        start = 100 * index if count < 100 else 0
        out[f"n{count}"] = long[start : start + count]
    resets = long[:300]
    for position in (0, 10, 11, 13, 50, 51, 52, 150, 298):
        resets[position] = EOS
    out["eos300"] = resets
    out["eos6"] = [5, EOS, 7, 8, 9, 10]
    out["eos5"] = [EOS, 3, 4, EOS, EOS]
    out["eos1"] = [EOS]
    # Few distinct tokens: repeated n-grams, and repeated indexer keys.
    out["rep140"] = [1, 2, 3, 4, 5, 6, 7] * 20
    return out


PROMPT_NAMES = tuple(prompts())
