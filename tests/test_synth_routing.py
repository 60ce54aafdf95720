# SPDX-License-Identifier: MIT
"""How synthetic models route: popularity and stickiness as asked for, by the formulas, by the
oracle's picks and by the engine's counters."""

from itertools import pairwise

import esker
import numpy as np
import pytest
from esker import UsageError
from esker.synth import STAY, TOPICS, Shape, routing, synthesize, token_stream
from esker.synth.blocks import Pool
from support.oracle import Oracle

EXPERTS, USED = 128, 8
SHAPE = Shape(
    layers=4, hidden=256, vocab=4096, context=4096, experts=EXPERTS, experts_used=USED,
    expert_width=32, shared_width=32, heads=4, kv_heads=2, head_width=64, rotary=32, key_heads=2,
    value_heads=6, linear_width=64, low_rank=32, index_heads=4, index_width=64, index_budget=256,
    ngram_heads=4, ngram_base=500,
)  # fmt: skip
PLAIN_TOKENS = 4096 - 16


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """model(zipf, sticky) -> path."""
    paths = {}

    def make(zipf, sticky):
        if (zipf, sticky) not in paths:
            path = tmp_path_factory.mktemp("routing") / "m.gguf"
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Pool, "BYTES", 1 << 18)
                types = ["dense,mixers,experts=F16"]
                synthesize(path, SHAPE, types=types, zipf=zipf, sticky=sticky)
            paths[zipf, sticky] = path
        return paths[zipf, sticky]

    return make


@pytest.mark.parametrize("zipf", [0, 0.5, 1, 2])
def test_popularity_falls_as_a_power_of_the_rank(zipf):
    picked = routing.popularity(512, 10, zipf)
    assert picked.sum() == pytest.approx(10) and picked.max() <= 0.98
    free = picked[picked < 0.97]
    ranks = np.arange(1, 513)[picked < 0.97]
    assert free * ranks**zipf == pytest.approx(free[0] * ranks[0] ** zipf)


def test_shared_part_is_what_two_correlated_tokens_share():
    picked = routing.popularity(512, 10, 1)
    cuts = routing.thresholds(picked)
    rng = np.random.default_rng(1)
    for rho in (0.3, 0.8):
        common = rng.standard_normal((2000, 512))
        a, b = (
            np.sqrt(rho) * common + np.sqrt(1 - rho) * rng.standard_normal((2000, 512)) > cuts
            for _ in range(2)
        )
        both = (a & b).sum() / 2000 / 10
        assert routing.shared_part(cuts, 10, rho) == pytest.approx(both, abs=0.01)
    for sticky in (0.3, 0.6, 0.95):
        rho = routing.correlation(picked, sticky)
        assert routing.shared_part(cuts, 10, rho) == pytest.approx(sticky, abs=1e-6)
    assert routing.correlation(picked, 0) == 0 and routing.correlation(picked, 1) == 1


@pytest.mark.parametrize("sticky", [0, 0.5, 0.9])
def test_tokens_of_a_topic_share_their_experts(model, sticky):
    tokens = token_stream(40, 2, n_vocab=PLAIN_TOKENS, stay=10)
    oracle = Oracle(model(0, sticky))
    oracle.evaluate(tokens)
    same_topic = tokens[1:] % TOPICS == tokens[:-1] % TOPICS
    assert len(oracle.picks) == SHAPE.layers
    within = []
    for picks in oracle.picks:
        shared = np.array([len(set(a) & set(b)) / USED for a, b in pairwise(picks)])
        within.append(shared[same_topic].mean())
        assert shared[~same_topic].mean() < 0.3
    # By chance 6 % are shared, a little more because all tokens have a context in common.
    assert max(sticky - 0.15, 0) < min(within) and max(within) < max(sticky + 0.15, 0.2)
    assert np.mean(within) == pytest.approx(max(sticky, 0.1), abs=0.08)


def test_experts_are_as_popular_as_asked_for(model):
    tokens = token_stream(250, 3, n_vocab=PLAIN_TOKENS, stay=1)
    best = EXPERTS // 16
    for zipf, expected in (
        (0, 0.12),
        (1, routing.popularity(EXPERTS, USED, 1)[:best].sum() / USED),
    ):
        oracle = Oracle(model(zipf, 0))
        oracle.evaluate(tokens)
        for picks in oracle.picks:
            counts = np.sort(np.bincount(picks.ravel(), minlength=EXPERTS))[::-1]
            # Share of the most popular 16th.  Where all are alike it is 6 %, but the best of a
            # sample always look better than they are.
            assert counts[:best].sum() / counts.sum() == pytest.approx(expected, abs=0.06)
    # Which experts are popular differs by layer.
    firsts = [np.bincount(p.ravel(), minlength=EXPERTS).argmax() for p in oracle.picks]
    assert len(set(firsts)) > 1


def test_hit_rates_of_an_lru_follow(model):
    """An arena with room for a fifth of the experts.  Figures for 512 stand in routing.py."""
    rates = {}
    tokens = token_stream(120, 1, n_vocab=PLAIN_TOKENS).tolist()
    for zipf, sticky in ((0, 0), (1, 0), (0, 0.9), (1, 0.9)):
        with esker.Model(model(zipf, sticky), slots=26, context=256) as opened:
            session = opened._engine.new_session()
            session.prefill(tokens[:1])
            for token in tokens[1:40]:
                session.decode(token)
            before = opened.counters
            for token in tokens[40:]:
                session.decode(token)
            after = opened.counters
            hits, lookups = (after[key] - before[key] for key in ("hits", "lookups"))
        assert lookups == 80 * SHAPE.layers * USED
        rates[zipf, sticky] = hits / lookups
    assert rates[0, 0] < 0.45
    assert rates[0, 0] + 0.15 < rates[1, 0] < 0.85
    assert rates[0, 0.9] > 0.9 and rates[1, 0.9] > 0.9


def test_a_token_stream_stays_in_its_topics():
    tokens = token_stream(50_000, 1, n_vocab=32752)
    assert tokens.min() >= 0 and tokens.max() < 32752
    assert len(set(tokens % TOPICS)) == TOPICS
    leaves = np.mean(tokens[1:] % TOPICS != tokens[:-1] % TOPICS)
    assert leaves == pytest.approx(1 / STAY, rel=0.15)
    assert np.array_equal(tokens, token_stream(50_000, 1, n_vocab=32752))
    assert not np.array_equal(tokens, token_stream(50_000, 2, n_vocab=32752))
    assert token_stream(0, n_vocab=64).tolist() == []
    with pytest.raises(UsageError, match="token stream"):
        token_stream(5, n_vocab=10)
