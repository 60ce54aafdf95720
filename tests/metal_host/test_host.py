# SPDX-License-Identifier: MIT
"""The Metal host as it is, driving whole models through the fake device, next to the cpu backend."""

import json
from pathlib import Path

import esker
import fake_metal
import numpy as np
import pytest
from decoding import LIMIT, decoded, tokens

pytestmark = fake_metal.needs_host

DATA = Path(__file__).parents[1] / "data"
SMALL = DATA / "oracle" / "micro-f32.gguf"
MIXED = DATA / "oracle" / "mq-mix2.gguf"


@pytest.fixture
def metal(monkeypatch, kernels_cache):
    """The fake of this process; at the end nothing is alive and nothing was done wrong."""
    for name, value in fake_metal.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(kernels_cache))
    fake = fake_metal.Fake(fake_metal.host_library())
    fake.forget()
    yield fake
    fake.settle()
    assert fake.report() == []
    assert fake.count("blocks") == fake.count("shared variables") == 0


def golden():
    return json.loads((DATA / "greedy.json").read_text())["files"]["esker-demo"]


@pytest.mark.parametrize("name", ["how", "sqlite"])
def test_the_demos_golden_tokens(metal, name):
    every = golden()
    of = every.get(name) or max(every.values(), key=lambda p: len(p["prompt"]))
    n = 12 if name == "how" else 3
    picked, _, _ = decoded(None, "metal", of["prompt"], n)
    assert picked == of["tokens"][:n]
    assert metal.count("dispatches") > 1000


@pytest.mark.parametrize("n", [1, 3, 4, 5, 40])
def test_windows_and_prompts(metal, n):
    with esker.Model(str(SMALL), backend="metal") as model:
        ours = model.logits(tokens(n))
    with esker.Model(str(SMALL), backend="cpu") as model:
        theirs = model.logits(tokens(n))
    assert np.abs(ours - theirs).max() <= LIMIT


def test_mixed_types_and_a_chunked_prompt(metal):
    ours = decoded(MIXED, "metal", tokens(30), 3, chunk=13)
    theirs = decoded(MIXED, "cpu", tokens(30), 3)
    assert ours[0] == theirs[0] and np.abs(ours[1] - theirs[1]).max() <= LIMIT


@pytest.mark.parametrize("order", ["reverse", "random"])
def test_any_order_of_what_may_overlap_gives_the_same_bits(metal, order, monkeypatch):
    first = decoded(SMALL, "metal", tokens(20), 4, slots=5)
    monkeypatch.setenv("ESKER_SIMT_ORDER", order)
    metal.set(slow_us=300, late_handlers_us=2000)
    second = decoded(SMALL, "metal", tokens(20), 4, slots=5)
    metal.set(slow_us=0, late_handlers_us=0)
    assert first[0] == second[0] and np.array_equal(first[1], second[1])


def test_streaming_from_a_slow_disk_gives_the_bits_of_resident(kernels_cache, tmp_path):
    whole = decoded(SMALL, "cpu", tokens(30), 6)[0]
    results = {}
    for name, options, extra in (
        ("resident", {}, {}),
        (
            "slow",
            {"slots": 5, "read_ahead": 2},
            {"LD_PRELOAD": str(fake_metal.slow_reads()), "SLOW_READS_US": "8000"},
        ),
    ):
        path = tmp_path / f"{name}.npy"
        found = fake_metal.play(
            kernels_cache,
            str(SMALL),
            prompt=tokens(30),
            decode=6,
            options=options,
            logits=path,
            **extra,
        )
        assert found["crash"] is None and found["errors"] == [] and found["report"] == []
        assert found["tokens"] == [whole]
        results[name] = np.load(path), found["counters"]
    assert results["slow"][1]["evictions"] > 0 and results["slow"][1]["demand_misses"] > 0
    assert np.array_equal(results["slow"][0], results["resident"][0])


def test_sessions_and_prompts_give_back_what_they_took(metal):
    """While the model is open: a session's buffers die with it, and leave the residency set."""

    def use(model):
        session = model.session()
        session.prefill(tokens(50))
        session.decode(1)
        most = metal.live("MTLBuffer")
        del session
        model.logits([1, 2, 3])
        return most

    with esker.Model(str(SMALL), backend="metal") as model:
        use(model)  # what the backend keeps for any session is there from now on
        metal.settle()
        before = metal.live("MTLBuffer")
        for _ in range(3):
            assert use(model) > before
        metal.settle(before)
        assert metal.live("MTLBuffer") == before
        assert metal.live("MTLComputeCommandEncoder") == 0


def test_the_second_start_finds_its_kernels(metal, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def start():
        metal.forget()
        with esker.Model(str(SMALL), backend="metal") as model:
            model.logits([1, 2])
        return metal.count("compiled"), metal.count("loaded")

    first, second = start(), start()
    assert first[1] == 0 and second == (0, first[0])
    (archive,) = (tmp_path / "esker").glob("metal-*.archive")
    whole = archive.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"nonsense"):
        archive.write_bytes(damaged)
        assert start() == first
        assert archive.read_bytes() == whole


def test_a_cache_that_cannot_be_written_costs_time_only(metal, tmp_path, monkeypatch):
    (tmp_path / "esker").write_text("a file where the folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with esker.Model(str(SMALL), backend="metal") as model:
        model.logits([1, 2])
    assert metal.count("compiled") > 0


def test_macos_14(metal):
    """No residency sets, no math mode: encoders name what they use."""
    metal.set(macos=14)
    try:
        ours = decoded(SMALL, "metal", tokens(9), 3, slots=5)
    finally:
        metal.set(macos=15)
    theirs = decoded(SMALL, "cpu", tokens(9), 3)
    assert ours[0] == theirs[0] and np.abs(ours[1] - theirs[1]).max() <= LIMIT
