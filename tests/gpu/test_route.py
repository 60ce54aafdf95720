# SPDX-License-Identifier: MIT
"""metal/route.metal: the cases of esker.parity, and a map that changes while it is read."""

import itertools
import re
import threading
import time

import numpy as np
import simt
from esker.parity.route import grid_scores, is_same, on_grid, replica, run_route
from parity_on_simt import parity_tests

test_route = parity_tests("route")


def device_with_reads(folder, function):
    """metal/route.metal, with a call of read_map, C++ for the CPU, wherever it reads the map."""
    text = (simt.ROOT / "metal" / "route.metal").read_text(encoding="utf-8")
    text, n_declared = re.subn(
        r"device const volatile uchar\* favoured", "device uchar* favoured", text
    )
    text, n_read = re.subn(r"\bfavoured\[(\w+)\]", r"read_map(favoured, \1)", text)
    code = re.sub(r"//[^\n]*", "", text)
    assert n_declared == 1 and n_read >= 1 and len(re.findall(r"\bfavoured\b", code)) == 1 + n_read
    at = text.index("struct Ranked")
    file = folder / "route.metal"
    file.write_text(text[:at] + function + text[at:], encoding="utf-8")
    return simt.Device(file)


# Where the bonus decides about six experts.
CONTESTED = [3, 17, 20, 33, 40, 63]
MAP = {"top_k": 8, "bonus": 0.85, "protect": 1}


def contested_scores(seed):
    rng = np.random.default_rng(seed)
    scores = grid_scores(rng, 64, 1.0)
    scores[CONTESTED] = on_grid(np.sort(scores)[-MAP["top_k"]] - 0.02 * rng.integers(0, 50, 6))
    return scores


def test_a_byte_of_the_map_is_read_once(tmp_path):
    """Every read turns the byte over, so the first token sees the map, the second its opposite."""
    flipping = device_with_reads(
        tmp_path,
        "inline uchar read_map(device uchar* m, uint e) { m[e] ^= 1; return m[e] ^ 1; }\n",
    )
    rng = np.random.default_rng(1)
    for seed in range(20):
        scores = np.tile(contested_scores(seed), (3, 1))
        favoured = (rng.random(64) < 0.4).astype(np.uint8)
        before = favoured.copy()
        got = run_route(scores, favoured=favoured, on=flipping, **MAP)
        np.testing.assert_array_equal(favoured, 1 - before)
        for t in range(3):
            seen = before if t != 1 else 1 - before
            assert is_same(got, t, replica(scores[t], favoured=seen, **MAP))
        run_route(scores, favoured=favoured, on=flipping, **MAP | {"bonus": 0.0})
        np.testing.assert_array_equal(favoured, 1 - before)


def test_a_map_that_a_thread_changes(tmp_path):
    """All tokens have the same scores, and each gets what one of the 64 maps gives.

    Neighbours that differ show that bytes did change during the dispatch.
    """
    live = device_with_reads(
        tmp_path,
        "inline uchar read_map(device uchar* m, uint e) { return (*(volatile uchar**)m)[e]; }\n",
    )
    tokens = 200
    favoured = (np.arange(64) % 5 == 0).astype(np.uint8)
    address = np.array([favoured.ctypes.data], np.uint64)
    stop = threading.Event()

    def flip():
        rng = np.random.default_rng(1)
        while not stop.is_set():
            for i in rng.choice(CONTESTED, 256).tolist():
                favoured[i] ^= 1

    flipper = threading.Thread(target=flip)
    flipper.start()
    n_change = 0
    give_up = time.monotonic() + 60
    try:
        for seed in itertools.count():
            scores = contested_scores(seed)
            wants = {}
            for bits in itertools.product((0, 1), repeat=len(CONTESTED)):
                one = favoured.copy()
                one[CONTESTED] = bits
                want = replica(scores, favoured=one, **MAP)
                wants[want[0].astype(np.int32).tobytes()] = want
            got = run_route(np.tile(scores, (tokens, 1)), favoured=address, on=live, **MAP)
            for t in range(tokens):
                want = wants.get(got[0][t].tobytes())
                assert want is not None and is_same(got, t, want), got[0][t]
            n_change += int((got[0][1:] != got[0][:-1]).any(axis=1).sum())
            if n_change >= 30:
                break
            assert time.monotonic() < give_up, f"only {n_change} tokens saw the map change"
    finally:
        stop.set()
        flipper.join()
