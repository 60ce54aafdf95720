# SPDX-License-Identifier: MIT
"""The guard: what it sees, when it stops a run, and how; memory is a list of made-up readings."""

import argparse
import subprocess
import sys
import threading

import pytest
from esker.bench.guard import READINGS_MAX, Guard, GuardLimits, add_arguments, limits_from
from esker.bench.machine import READING, machine_facts, read_memory, scrub
from esker.errors import PlanError, UsageError

LIMITS = GuardLimits(
    available_min_bytes=100, swap_rise_max_bytes=10, rss_max_bytes=500, interval_s=0.001
)
FINE = {"available_bytes": 1000, "swap_used_bytes": 7, "rss_bytes": 50}
PATIENCE_S = 60


class Reader:
    """Gives the readings in turn, the last for ever, and says when it has given them all."""

    def __init__(self, *readings):
        self.readings = list(readings)
        self.pids = set()
        self.at_end = threading.Event()

    def __call__(self, pid):
        self.pids.add(pid)
        if len(self.readings) == 1:
            self.at_end.set()
            return dict(self.readings[0])
        return dict(self.readings.pop(0))


def test_a_guard_that_sees_no_harm_reports_what_it_saw():
    reader = Reader(FINE, {**FINE, "available_bytes": 200, "swap_used_bytes": 12}, FINE)
    with Guard(LIMITS, read=reader) as guard:
        assert reader.at_end.wait(PATIENCE_S)
        guard.check()
    report = guard.report()
    assert report["stopped"] is False and report["reason"] is None
    assert report["available_min_bytes"] == 200
    assert report["swap_rise_bytes"] == 5
    assert report["rss_peak_bytes"] == 50
    assert report["samples"] >= 3
    assert report["limits"]["available_min_bytes"] == 100
    assert reader.pids == {None}
    memory = guard.memory()
    assert memory["before"] == memory["after"] == FINE


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        ({"available_bytes": 99}, "99 bytes available, limit 100"),
        ({"swap_used_bytes": 18}, "swap grew by 11 bytes, limit 10"),
        ({"rss_bytes": 501}, "the process has 501 bytes, limit 500"),
        ({"pressure_level": 4}, "calls its memory critical"),
        ({"available_bytes": None}, "cannot be read"),
    ],
)
def test_each_limit_stops_the_run(harm, reason):
    told = []
    stopped = threading.Event()

    def on_stop(why):
        told.append(why)
        stopped.set()

    with Guard(LIMITS, on_stop=on_stop, read=Reader(FINE, {**FINE, **harm})) as guard:
        assert stopped.wait(PATIENCE_S)
    assert guard.stopped and len(told) == 1 and reason in told[0]
    assert guard.report()["reason"] == told[0]
    with pytest.raises(PlanError, match="the guard stopped it"):
        guard.check()


def test_what_is_unknown_and_unwatched_does_no_harm():
    limits = GuardLimits(None, None, None, 0.001)
    reader = Reader(FINE, {"available_bytes": None, "swap_used_bytes": None, "rss_bytes": None})
    with Guard(limits, read=reader) as guard:
        assert reader.at_end.wait(PATIENCE_S)
    assert not guard.stopped


def test_work_in_this_process_is_interrupted_and_ends_with_an_error():
    waiting = threading.Event()
    low = {**FINE, "available_bytes": 1}
    guard = Guard(LIMITS, read=Reader(FINE, low))
    with pytest.raises(PlanError, match="1 bytes available"), guard:
        while not waiting.wait(0.01):  # for ever, but for the guard
            pass
    assert guard.stopped


def test_another_error_inside_is_kept():
    with pytest.raises(ZeroDivisionError), Guard(LIMITS, read=Reader(FINE)):
        1 / 0  # noqa: B018


def test_a_run_does_not_begin_below_the_limit():
    begun = []
    with pytest.raises(PlanError), Guard(LIMITS, read=Reader({**FINE, "available_bytes": 1})):
        begun.append(True)
    assert not begun


def test_a_child_is_killed():
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as child:
        reader = Reader(FINE, FINE, {**FINE, "rss_bytes": 501})
        with Guard(LIMITS, child=child, read=reader) as guard:
            assert child.wait(PATIENCE_S) != 0
        assert guard.stopped and reader.pids == {child.pid}


def test_a_child_that_ends_is_left_alone():
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        with Guard(LIMITS, child=child, read=Reader(FINE)) as guard:
            assert child.wait(PATIENCE_S) == 0
        assert not guard.stopped


def test_a_reading_that_fails_stops_the_run():
    def read(pid):
        if threading.current_thread() is not threading.main_thread():
            raise OSError("gone")
        return FINE

    stopped = threading.Event()
    with Guard(LIMITS, on_stop=lambda why: stopped.set(), read=read) as guard:
        assert stopped.wait(PATIENCE_S)
    assert "memory cannot be read (gone)" in guard.reason


def test_a_long_run_keeps_few_readings_spread_over_all_of_it():
    count = 5 * READINGS_MAX
    reader = Reader(*({**FINE, "index": index} for index in range(count)))
    limits = GuardLimits(100, 10, 500, 1e-6)
    with Guard(limits, read=reader) as guard:
        assert reader.at_end.wait(PATIENCE_S)
    indices = [reading["index"] for reading in guard.memory()["during"]]
    assert READINGS_MAX // 4 < len(indices) <= READINGS_MAX
    assert indices == sorted(indices)
    assert indices[0] < count // 8


def test_defaults_grow_with_the_machine_and_flags_beat_them():
    small, large = GuardLimits.for_machine(8 << 30), GuardLimits.for_machine(512 << 30)
    assert small.available_min_bytes == 512 << 20
    assert large.available_min_bytes == 2 << 30
    assert small.swap_rise_max_bytes < large.swap_rise_max_bytes
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert limits_from(parser.parse_args([]), 8 << 30) == small
    words = ["--guard-available", "1GB", "--guard-swap", "0", "--guard-rss", "4GiB"]
    limits = limits_from(parser.parse_args([*words, "--guard-interval", "0.5"]), 8 << 30)
    assert limits == GuardLimits(10**9, None, 4 << 30, 0.5)


@pytest.mark.parametrize(
    "words", [["--guard-available", "much"], ["--guard-interval", "x"], ["--guard-interval", "0"]]
)
def test_a_limit_that_is_none_is_refused(words):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    with pytest.raises(UsageError):
        limits_from(parser.parse_args(words))


def test_this_machine_can_be_read():
    reading = read_memory()
    assert set(reading) == {"time_ns", *READING}
    assert 0 < reading["available_bytes"] <= reading["total_bytes"]
    assert reading["rss_bytes"] > 1 << 20
    assert 1 << 20 < reading["footprint_bytes"] <= reading["rss_bytes"] + reading["swap_used_bytes"]
    facts = machine_facts()
    assert facts["cores"] >= facts["cores_usable"] >= 1
    assert not {"host", "user"} & set(facts)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("/home/someone/models/a.gguf", "a.gguf"),
        ("~/models/a.gguf", "a.gguf"),
        ("--model=/home/someone/a.gguf", "--model=a.gguf"),
        ("bench/results/a.json", "bench/results/a.json"),
        ("failed: '/home/x/a.gguf' is cut short", "failed: 'a.gguf' is cut short"),
        ("12 tokens/s and 3 GB/s", "12 tokens/s and 3 GB/s"),
        ("a/b and x / y", "a/b and x / y"),
    ],
)
def test_paths_lose_their_folders(text, kept):
    assert scrub(text) == kept
