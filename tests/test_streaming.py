# SPDX-License-Identifier: MIT
"""Streaming from Python: read-ahead, prior, profiles, the disk's measurement, governor, wiring.

What any of them may change is the time; with the cache prior on, also the text, but never by chance.
"""

import os
import struct
import subprocess
import sys

import esker
import numpy as np
import pytest
from esker import _core, disk, profile
from support.measure import resident_bytes

PROMPT = "How does write-ahead logging work in SQLite? " * 3
LAYERS, EXPERTS = 8, 64


@pytest.fixture(scope="module")
def resident():
    """(tokens, logits of all prompt tokens) with every expert in memory."""
    return run(arena="100%")


def run(max_tokens=24, **options):
    with esker.Model(**options) as model:
        result = model.complete(PROMPT, max_tokens=max_tokens, temperature=0)
        logits = model.logits(model.tokenizer.encode(PROMPT))
        return result.tokens, logits


@pytest.mark.parametrize(
    "options",
    [
        {"read_ahead": 0},
        {"read_ahead": 4},
        {"read_ahead": 16, "read_ahead_2": 6},
        {"read_ahead": 64, "touch_guesses": True},
        {"split_turn": False},
        {"threads": 1},
        {"chunk": 5},
    ],
    ids=str,
)
@pytest.mark.parametrize("arena", ["10%", "30%"])
def test_read_ahead_changes_no_bit(resident, arena, options):
    tokens, logits = run(arena=arena, **options)
    assert tokens == resident[0]
    if "chunk" in options:  # other sums of the delta net
        np.testing.assert_allclose(logits, resident[1], atol=2e-4)
    else:
        assert np.array_equal(logits, resident[1])


def test_read_ahead_finds_experts_before_they_are_wanted():
    counters = {}
    for depth in (0, 10):
        with esker.Model(arena="25%", read_ahead=depth) as model:
            result = model.complete(PROMPT, max_tokens=32, temperature=0)
            counters[depth] = result.decode_counters
    none, some = counters[0], counters[10]
    assert none["ahead_reads"] == none["ahead_hits"] == 0
    assert some["demand_misses"] < none["demand_misses"] / 2
    assert some["ahead_hits"] > some["demand_misses"]
    for c in (none, some):
        assert c["lookups"] == c["hits"] + c["ahead_hits"] + c["demand_misses"]
        assert c["bytes_read"] >= c["bytes_ahead"] + c["bytes_wasted"]


def test_read_ahead_is_planned_only_where_something_is_read():
    what = "routers for read-ahead"
    for options in ({"arena": "100%", "read_ahead": 10}, {"arena": "25%"}):  # small experts: off
        with esker.Model(**options) as model:
            assert what not in [row["what"] for row in model.plan["rows"]]
            assert "guess" not in model._engine.graph()
    with esker.Model(arena="25%", read_ahead=10) as model:
        rows = {row["what"]: row["bytes"] for row in model.plan["rows"]}
        d_model = model.info["config"]["d_model"]
        assert rows[what] == LAYERS * EXPERTS * d_model // 32 * 34
        assert sum(rows.values()) == model.plan["total_bytes"]
        assert "guess" in model._engine.graph()


@pytest.mark.parametrize("protect", [1, 3])
def test_the_cache_prior_is_repeatable_and_saves_reads(protect):
    runs = []
    for threads in (1, 2, 2):
        with esker.Model(
            arena="20%", threads=threads, read_ahead=10, cache_prior=0.85, protect=protect
        ) as model:
            result = model.complete(PROMPT, max_tokens=40, temperature=0)
            runs.append((result.tokens, {k: v for k, v in result.decode_counters.items()
                                         if not k.endswith("_ns") and k not in TIMED}))  # fmt: skip
    assert runs[0] == runs[1] == runs[2]
    with esker.Model(arena="20%", read_ahead=10) as model:
        exact = model.complete(PROMPT, max_tokens=40, temperature=0).decode_counters
    assert exact["displaced"] == 0 < runs[0][1]["displaced"]
    assert runs[0][1]["demand_misses"] < exact["demand_misses"]


TIMED = {"ahead_late", "bytes_wasted", "bytes_read"}  # what depends on how far reads had come


def test_a_prior_that_protects_all_ranks_is_exact(resident):
    assert run(arena="20%", cache_prior=5.0, protect=6)[0] == resident[0]


def test_a_starved_expert_is_read():
    with esker.Model(arena="20%", cache_prior=80.0, protect=0, starvation=0) as model:
        never = model.complete(PROMPT, max_tokens=40, temperature=0).decode_counters
    with esker.Model(arena="20%", cache_prior=80.0, protect=0, starvation=4) as model:
        soon = model.complete(PROMPT, max_tokens=40, temperature=0).decode_counters
    assert soon["demand_misses"] + soon["ahead_hits"] > never["demand_misses"] + never["ahead_hits"]


def test_a_profile_fills_the_arena(tmp_path, resident):
    path = tmp_path / "demo.profile"
    with esker.Model(arena="100%") as model:
        with pytest.raises(esker.UsageError, match="no expert was picked yet"):
            model.save_profile(path)
        model.complete(PROMPT, max_tokens=40, temperature=0)
        entries = model.save_profile(path, text_sha256="ab" * 32)
    made = profile.read(path, LAYERS, EXPERTS)
    assert len(made.ranked) == entries == len(set(made.ranked)) > 100
    assert made.text_sha256 == "ab" * 32
    data = path.read_bytes()
    assert struct.unpack_from("<4s4I", data) == (b"STRP", 1, LAYERS, EXPERTS, entries)
    counters = {}
    for given in (None, path):
        with esker.Model(arena="50%", read_ahead=0, expert_profile=given) as model:
            result = model.complete(PROMPT, max_tokens=24, temperature=0)
            assert result.tokens == resident[0]
            counters[given] = result.prompt_counters
    assert counters[path]["hits"] > counters[None]["hits"]
    assert counters[path]["demand_misses"] < counters[None]["demand_misses"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:10], "not an expert profile"),
        (lambda data: b"GGUF" + data[4:], "not an expert profile"),
        (lambda data: data[:4] + b"\x02" + data[5:], "another version"),
        (lambda data: data[:8] + b"\x09" + data[9:], "another model"),
        (lambda data: data[:-1], "wrong size"),
        (lambda data: data[:16] + b"\xff\xff\xff\xff" + data[20:], "wrong size"),
        (lambda data: data[:20] + b"\x08" + data[21:], "does not exist"),
    ],
)
def test_a_bad_profile_is_one_clear_error(tmp_path, damage, message):
    path = tmp_path / "bad.profile"
    profile.write(path, [1] * LAYERS * EXPERTS, LAYERS, EXPERTS)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(esker.FormatError, match=message):
        esker.Model(expert_profile=path)
    with pytest.raises(esker.ReadError, match="cannot read the profile"):
        esker.Model(expert_profile=tmp_path / "none")


def test_a_profile_that_cannot_be_written_leaves_the_old_one(tmp_path):
    path = tmp_path / "p"
    path.write_bytes(b"old")
    counts = [1] * 4
    with pytest.raises(esker.ReadError, match="cannot write the profile"):
        profile.write(tmp_path / "no" / "p", counts, 2, 2)
    with pytest.raises(esker.UsageError, match="64 hexadecimal"):
        profile.write(path, counts, 2, 2, "xy")
    # A full disk, as the process sees it: no file may grow.
    code = (
        "import resource, signal, sys; from esker import profile\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (8, 8))\n"
        "profile.write(sys.argv[1], [1] * 4, 2, 2)"
    )
    ended = subprocess.run(
        [sys.executable, "-B", "-c", code, str(path)], capture_output=True, text=True, check=False
    )
    assert "cannot write the profile" in ended.stderr and "disk full" in ended.stderr
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["p"]


def test_the_disk_is_measured_once(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(disk, "WORTH_BYTES", 1)
    calls = []
    probe = _core.probe_disk
    monkeypatch.setattr(
        disk._core, "probe_disk", lambda *a, **k: (calls.append(a), probe(*a, **k))[1]
    )
    with esker.Model(arena="25%") as model:
        first = model.disk
    assert first.readers in disk._READERS and first.chunk_bytes in disk._SIZES
    assert first.bytes_per_s > 0 and len(calls) == 12
    with esker.Model(arena="25%") as model:
        assert model.disk == first and len(calls) == 12
    with esker.Model(arena="100%") as model:
        assert model.disk is None
    for damaged in (b"", b"{", b'{"version": 9}', b'{"version": 1, "disks": {"a": 3}}', b"[]"):
        (tmp_path / "cache/esker/disks.json").write_bytes(damaged)
        assert disk._load() == {}
    # A cache that cannot be kept costs another measurement and nothing else.
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/none")
    assert disk.choose(model.path).readers in disk._READERS


def test_the_governor_is_quiet_while_there_is_memory(resident):
    with esker.Model(arena="60%", governor=True) as model:  # short of it: test_engine.cpp
        assert model.complete(PROMPT, max_tokens=24, temperature=0).tokens == resident[0]
        assert model.counters["withdrawn_bytes"] == 0


def test_wiring_says_what_was_refused():
    with esker.Model(arena="25%", wire=True) as model:
        for part in model.wired:
            assert (part["bytes"] > 0) != bool(part["error"]) or part["what"] == "dense weights"
        assert [part["what"] for part in model.wired] == ["dense weights", "expert arena"]
    code = (
        "import resource, esker\n"
        "resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))\n"
        "with esker.Model(arena='25%', wire=True) as m: print(m.wired)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    # A privileged process is refused nothing.
    assert os.geteuid() == 0 or "Cannot allocate memory" in ended.stdout


def test_memory_is_flat_over_turns_and_rewinds():
    with esker.Model(arena="25%") as model:
        session = model.session()
        tokens = model.tokenizer.encode(PROMPT)
        sizes = []
        for turn in range(200):
            session.prefill(tokens[: 5 + turn % 8])
            session.decode(tokens[turn % 8])
            if session.position > 1500 or turn == 0:
                session = model.session()
                session.prefill(tokens[:3])
                point = session.checkpoint()
            if turn % 4 == 3:
                session.rewind(point)
            if turn >= 100:
                sizes.append(resident_bytes())
        assert max(sizes) - sizes[0] < 4 << 20
