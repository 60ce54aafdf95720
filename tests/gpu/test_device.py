# SPDX-License-Identifier: MIT
"""Whole models on a GPU device: lowering, backend and kernels together, next to the CPU backend.

The device is "simt", or what ESKER_TEST_DEVICE names.
"""

import json
import os
import signal
import threading
import time
from pathlib import Path

import esker
import numpy as np
import pytest
from decoding import LIMIT, decoded, tokens
from device_library import FILES, environment
from esker import _core, cli

ORACLE = Path(__file__).parents[1] / "data" / "oracle"
MODELS = ["demo", "mq-mix1", "mq-mix2", "micro-f32"]
SMALL = "micro-f32"  # the fastest here
DEVICE = os.environ.get("ESKER_TEST_DEVICE", "simt")
only_simt = pytest.mark.skipif(DEVICE != "simt", reason="of the simt device")


@pytest.fixture(autouse=True)
def simt_device(monkeypatch):
    if DEVICE == "simt":
        for name, value in environment().items():
            monkeypatch.setenv(name, value)
    monkeypatch.delenv("ESKER_SIMT_ORDER", raising=False)


def path_of(name):
    return None if name == "demo" else str(ORACLE / f"{name}.gguf")


def model(name, backend, **options):
    return esker.Model(path_of(name), backend=backend, **options)


def logits(name, backend, ids, **options):
    with model(name, backend, **options) as m:
        return m.logits(ids)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("n", [3, 21])
def test_logits_are_the_cpu_backends(name, n):
    ours, theirs = (logits(name, backend, tokens(n)) for backend in (DEVICE, "cpu"))
    assert np.abs(ours - theirs).max() <= LIMIT


def test_logits_beyond_the_attention_budget():
    """A query attends to the blocks that the indexer chose for it, a window's as a prompt's."""
    budget = _core.file_info(str(ORACLE / f"{SMALL}.gguf"))["config"]["index_budget"]
    ids = tokens(budget + 22)
    ours, theirs = (logits(SMALL, backend, ids) for backend in (DEVICE, "cpu"))
    assert np.abs(ours - theirs).max() <= LIMIT
    ours, theirs = (decoded(path_of(SMALL), backend, ids[:-3], 3)[1] for backend in (DEVICE, "cpu"))
    assert np.abs(ours - theirs).max() <= LIMIT


@pytest.mark.parametrize("name", ["demo", "mq-mix2"])
def test_greedy_text_is_the_cpu_backends(name):
    our_tokens, ours, _ = decoded(path_of(name), DEVICE, tokens(9), 5)
    their_tokens, theirs, _ = decoded(path_of(name), "cpu", tokens(9), 5)
    assert our_tokens == their_tokens
    assert np.abs(ours - theirs).max() <= LIMIT


@pytest.mark.parametrize(
    "options",
    [
        {"slots": 5},
        {"slots": 5, "read_ahead": 2, "read_ahead_2": 1},
        {"slots": 5, "read_ahead": 2, "split_turn": False},
    ],
    ids=["rounds", "read-ahead", "unsplit"],
)
def test_streaming_gives_the_bits_of_resident(options):
    whole_tokens, whole, _ = decoded(path_of(SMALL), DEVICE, tokens(30), 6)
    tight_tokens, tight, counters = decoded(path_of(SMALL), DEVICE, tokens(30), 6, **options)
    assert counters["demand_misses"] > 0 and counters["evictions"] > 0
    assert tight_tokens == whole_tokens
    assert np.array_equal(tight, whole)


@only_simt
@pytest.mark.parametrize("order", ["reverse", "random"])
def test_order_of_threads_and_of_kernels_without_a_barrier_between(order, monkeypatch):
    """What may overlap runs in another order: a barrier that lacks shows."""
    _, first, _ = decoded(path_of(SMALL), DEVICE, tokens(20), 4, slots=5)
    monkeypatch.setenv("ESKER_SIMT_ORDER", order)
    _, second, _ = decoded(path_of(SMALL), DEVICE, tokens(20), 4, slots=5)
    assert np.array_equal(first, second)


def test_chunks_of_a_prompt_make_no_difference():
    ids = tokens(41)
    with model(SMALL, DEVICE) as m:
        whole, parts = m.logits(ids), m.logits(ids, chunk=7)
    assert np.abs(whole - parts).max() <= LIMIT


def test_cache_prior_picks_what_the_cpu_backend_picks():
    options = {"arena": "25%", "cache_prior": 0.85, "protect": 2}
    our_tokens, ours, our_counters = decoded(path_of("demo"), DEVICE, tokens(6), 6, **options)
    their_tokens, theirs, their_counters = decoded(path_of("demo"), "cpu", tokens(6), 6, **options)
    assert our_counters["displaced"] == their_counters["displaced"] > 0
    assert our_counters["bytes_read"] == their_counters["bytes_read"]
    assert our_tokens == their_tokens
    assert np.abs(ours - theirs).max() <= LIMIT


@only_simt
def test_a_missing_kernel_is_one_clear_error(monkeypatch):
    kernels = environment([file for file in FILES if file != "delta"])
    monkeypatch.setenv("ESKER_SIMT_KERNEL_LIBRARIES", kernels["ESKER_SIMT_KERNEL_LIBRARIES"])
    with model(SMALL, DEVICE) as m:
        for ids in ([1, 2], tokens(9), [3]):  # what was encoded before it is not left for the next
            with pytest.raises(esker.DeviceError, match="no such kernel"):
                m.logits(ids)


@only_simt
def test_a_missing_library_is_one_clear_error(monkeypatch):
    monkeypatch.setenv("ESKER_SIMT_LIBRARY", "/nowhere/libdevice.so")
    with pytest.raises(esker.UsageError, match="/nowhere/libdevice.so"):
        model("demo", DEVICE)


@only_simt  # a GPU is done before
def test_ctrl_c_leaves_the_session_usable():
    with model(SMALL, DEVICE) as m:
        session = m.session()
        session.prefill(tokens(3))
        before = session.checkpoint()
        session.decode(7)
        wanted = session.logits()
        session.rewind(before)
        timer = threading.Timer(0.3, lambda: signal.raise_signal(signal.SIGINT))
        timer.start()
        begin = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            session.prefill(tokens(300))
        assert time.monotonic() - begin < 20  # the device runs out its layer; no hang
        timer.join()
        session.rewind(before)
        session.decode(7)
        assert np.array_equal(session.logits(), wanted)


def test_tune_sweeps_and_says_what_it_found(capsys):
    assert (
        cli.main(
            [
                "tune",
                "--backend",
                DEVICE,
                "--quick",
                "--json",
                "--only",
                "gate_up",
                "--model",
                str(ORACLE / f"{SMALL}.gguf"),
            ]
        )
        == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert found["stored"] is None and found["choices"]
    for choice in found["choices"]:
        assert choice["use"] == "gate_up" and choice["ns"] > 0 and choice["bytes"] > 0
        assert choice["ns"] <= choice["table_ns"]
