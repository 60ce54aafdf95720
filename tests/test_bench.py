# SPDX-License-Identifier: MIT
"""esker bench: every case leaves a result that the audit recomputes; the peer, with a llama_cpp of
our own; caps on trees of our own and, where that is allowed, for real.  No time is asserted.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from esker.bench import cache, caps, prompts
from esker.bench.audit import audit_file, audit_result
from esker.bench.process import OUT_OF_MEMORY
from esker.bench.summary import summarize
from esker.cli import main
from esker.errors import UsageError
from esker.options import LOAD

SMALL = ("--prefill", "6", "--decode", "4")
SEEDED = ("--random-tokens", "3")

# A llama_cpp that does as little as can be; what it does wrong is FAKE_LLAMA's to say.
FAKE = """
import ctypes, os, time
HOW, LOG = os.environ.get("FAKE_LLAMA", ""), os.environ.get("FAKE_LLAMA_LOG", "")
N_VOCAB = 4096
logits = (ctypes.c_float * N_VOCAB)()
class Thing:
    def __init__(self, **fields): self.__dict__.update(fields)
def llama_backend_init(): print("noise that is no event")
def llama_print_system_info(): return b"FAKE = 1"
def llama_model_default_params(): return Thing(n_gpu_layers=-1)
def llama_model_load_from_file(path, params):
    assert os.path.exists(path)
    return None if HOW == "no model" else 1
def llama_model_get_vocab(model): return model
def llama_vocab_n_tokens(vocab): return N_VOCAB
def llama_context_default_params(): return Thing(n_ubatch=512)
def llama_init_from_model(model, params):
    global n_ctx
    n_ctx = params.n_ctx
    assert params.type_k == params.type_v == 0
    return 1
def llama_n_ctx(context): return n_ctx
def llama_batch_init(n, embd, n_seq):
    return Thing(token=[0]*n, pos=[0]*n, n_seq_id=[0]*n, seq_id=[[0] for _ in range(n)], logits=[0]*n)
def llama_decode(context, batch):
    if HOW == "sleep":
        open(LOG, "w").write(str(os.getpid()))
        time.sleep(600)
    if HOW == "die": os.kill(os.getpid(), 9)
    if HOW == "eat":
        hoard = []
        while True: hoard.append(os.urandom(1 << 20))
    n = batch.n_tokens
    assert batch.logits[:n] == [False] * (n - 1) + [True]
    if LOG:
        with open(LOG, "a") as log:
            log.write(" ".join(f"{t}@{p}" for t, p in zip(batch.token[:n], batch.pos[:n])) + "\\n")
    for i in range(N_VOCAB): logits[i] = -abs(i - batch.token[n - 1])
    return 7 if HOW == "refuse" else 0
def llama_get_logits_ith(context, i): return ctypes.cast(logits, ctypes.POINTER(ctypes.c_float))
def llama_get_memory(context): return context
def llama_memory_clear(memory, data): pass
"""


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for option in LOAD:
        monkeypatch.delenv(option.variable, raising=False)
    monkeypatch.delenv("ESKER_PEER_PYTHON", raising=False)


@pytest.fixture
def bench(capsys, tmp_path):
    """bench(*words) -> (status, result or None, stdout, stderr)."""

    def call(*words):
        out = tmp_path / "result.json"
        try:
            status = main(["bench", *words, "--out", str(out)])
        except SystemExit as exit_:
            status = exit_.code
        captured = capsys.readouterr()
        result = json.loads(out.read_text()) if out.exists() else None
        return status, result, captured.out, captured.err

    return call


@pytest.fixture
def fake_llama(tmp_path, monkeypatch):
    """fake_llama(how) puts a llama_cpp on the path of whoever is started; -> its log."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "llama_cpp.py").write_text(FAKE)
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path.rstrip(os.pathsep))

    def set_up(how=""):
        monkeypatch.setenv("FAKE_LLAMA", how)
        monkeypatch.setenv("FAKE_LLAMA_LOG", str(tmp_path / "log"))
        return tmp_path / "log"

    return set_up


def refusals(result):
    """What the audit has against a quick result beside its being quick."""
    quick = ("is a quick one", "want at least 3 repeats", "more like these")
    return [why for why in audit_result(result).refused if not any(q in why for q in quick)]


# Cases


@pytest.mark.parametrize(
    ("words", "sides"),
    [
        (("load",), ["cold", "warm"]),
        (("load", "--cache", "warm"), ["warm"]),
        (("prefill", "--prefill", "3,9", *SEEDED), ["prompt-3", "prompt-9"]),
        (("decode", *SMALL), ["after-6"]),
        (("stream", "--slots", "8,16", *SMALL, "--threads", "1"), ["slots-8", "slots-16"]),
        (("stream", "--arena", "30%", *SMALL, "--fill", "none"), ["arena-30%"]),
        (("ops", "--types", "F32,IQ3_S", "--bytes", "100kB"), ["kernel", "read"]),
        (
            (
                "ops",
                "--types",
                "Q2_0",
                "--shapes",
                "8x64,2x128",
                "--vectors",
                "3",
                "--bytes",
                "1kB",
            ),
            ["kernel", "read"],
        ),
        (("disk", "--sizes", "4KiB,10000", "--depths", "1,2", "--total", "50kB"), ["disk"]),
    ],
)
def test_every_case_gives_what_the_audit_recomputes(bench, words, sides):
    status, result, out, err = bench(*words, "--quick")
    assert status == 0, err
    assert [run["side"] for run in result["raw"]["runs"]] == sides
    assert list(result["summary"]["sides"]) == sides
    assert refusals(result) == []
    assert audit_result(result).refused  # a quick one
    assert "not to be quoted" in out
    for run in result["raw"]["runs"]:
        assert run["settings"]["quick"] is True
        assert run["guard"]["samples"] > 0 and run["memory"]["before"] and run["exit_status"] == 0


def test_text_runs_record_all_apart(bench, demo_path):
    _, result, _, _ = bench("decode", *SMALL, "--slots", "12", "--quick", "--json")
    (run,) = result["raw"]["runs"]
    phases, tokens = run["phases"], run["tokens"]
    assert None not in phases.values()
    assert phases["prompt_s"] < phases["first_token_s"] == tokens[0]["wall_ns"] / 1e9
    assert len(tokens) == len(run["output"]) == len(run["settings"]["fed_tokens"]) == 4
    assert tokens[-1]["lookups"] == 8 * 6  # layers, experts a token
    span_s = (tokens[-1]["wall_ns"] - tokens[0]["wall_ns"]) / 1e9
    figures = result["summary"]["sides"]["after-6"]
    assert figures["decode_rate"]["median"] == pytest.approx(3 / span_s)
    prompt, filling = result["raw"]["prompts"]  # slots are given: others fill the arena
    assert len(prompt["tokens"]) == 6 and prompt["text"].startswith("On eskers")
    assert len(filling["tokens"]) == 9 and filling["source"] == "eskers.txt, to fill the arena"
    settings = run["settings"]
    assert settings["fill"] == "other" and settings["slots"] == 12 * 8
    assert settings["context"] == 256 and settings["memory_cap_bytes"] is None
    assert settings["usage"]["minor_faults"] > 0
    # Warm; the system may have taken back a page of it.
    assert settings["file_cached_bytes"] > 0.99 * demo_path.stat().st_size


def test_the_tokens_drawn_are_the_models(bench, open_model, demo_path):
    _, result, _, _ = bench("decode", *SMALL, "--quick")
    (run,) = result["raw"]["runs"]
    fed, prompt = run["settings"]["fed_tokens"], result["raw"]["prompts"][0]["tokens"]
    logits = open_model(demo_path).session().evaluate([*prompt, *fed[:-1]])
    assert run["output"] == np.argmax(logits[5:], axis=1).tolist()


def test_ops_and_disk_record_raw_samples(bench):
    words = ("ops", "--types", "F32", "--shapes", "16x32", "--bytes", "20kB", "--quick")
    _, result, _, _ = bench(*words)
    kernel, read = (run["samples"] for run in result["raw"]["runs"])
    assert [sample["bytes"] for sample in kernel] == [10 * 16 * 32 * 4]
    assert kernel[0]["ops"] == 10 and read[0]["bytes"] == kernel[0]["bytes"]
    assert result["summary"]["pairs"]["matvec/F32/16x32:rate"]["of"] == "kernel/read"
    words = ("disk", "--sizes", "8KiB", "--depths", "2", "--total", "60000", "--quick")
    _, result, _, _ = bench(*words)
    (run,) = result["raw"]["runs"]
    assert [sample["name"] for sample in run["samples"]].count("latency/8192B/depth2") == 8
    assert run["cold"] and result["raw"]["model"] is None


def test_json_is_the_summary_and_progress_goes_to_stderr(bench):
    status, result, out, err = bench("decode", *SMALL, "--quick", "--json")
    assert (status, json.loads(out)["quotable"]) == (0, False)
    assert json.loads(out)["summary"] == result["summary"]
    assert "[1/1] after-6 ..." in err and "ms/token" in err


# The peer


def test_peer_does_the_same_work_in_turns(bench, fake_llama):
    log = fake_llama()
    words = ("peer", *SMALL, "--repeats", "3", "--fill", "none", "--threads", "1")
    status, result, out, err = bench(*words)
    assert status == 0, err
    runs = result["raw"]["runs"]
    assert [run["side"] for run in runs] == ["esker", "peer", "peer", "esker", "esker", "peer"]
    assert [run["pair"] for run in runs] == [0, 0, 1, 1, 2, 2]
    verdict = audit_result(result)
    assert verdict.refused == []
    assert not any("went first" in note for note in verdict.notes)
    fed = runs[0]["settings"]["fed_tokens"]
    prompt = result["raw"]["prompts"][0]["tokens"]
    read = [" ".join(f"{token}@{place}" for place, token in enumerate(prompt))]
    read += [f"{token}@{6 + place}" for place, token in enumerate(fed[:-1])]
    assert log.read_text().splitlines() == 3 * read
    for run in runs:
        assert (run["settings"]["threads"], run["settings"]["context"]) == (1, 256)
        assert run["settings"]["fed_tokens"] == fed
        assert run["phases"]["arena_fill_s"] is None
    assert runs[1]["output"] == [prompt[-1], *fed[:-1]]  # what the fake finds likeliest
    assert runs[1]["stdout_tail"] == "" and "noise" in runs[1]["stderr_tail"]
    assert result["raw"]["peer"]["name"] == "llama.cpp"
    assert len(result["summary"]["pairs"]["decode_rate"]["ratios"]) == 3
    assert "same token likeliest at" in out


def test_peer_fills_with_the_same_tokens(bench, fake_llama):
    log = fake_llama()
    assert bench("peer", *SMALL, "--quick")[0] == 0
    lines = log.read_text().splitlines()
    assert len(lines) == 2 * 4 and lines[:4] == lines[4:]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("no model", "did not load the model"),
        ("refuse", "llama_decode returned 7"),
        ("die", "ended with status -9"),
    ],
)
def test_a_peer_that_fails_ends_the_bench(bench, fake_llama, how, message):
    fake_llama(how)
    status, result, _, err = bench("peer", *SMALL, "--quick")
    assert (status, result) == (1, None)
    assert message in err


def test_a_missing_peer_is_told(bench, monkeypatch):
    empty = [sys.executable, "-I", "-c", "import llama_cpp"]
    if subprocess.run(empty, check=False, capture_output=True).returncode == 0:
        pytest.skip("llama_cpp is installed here")
    status, _, _, err = bench("peer", "--quick")
    assert status == 1
    assert "llama_cpp is missing" in err and "--peer-python" in err
    monkeypatch.setenv("ESKER_PEER_PYTHON", "/no/python")
    assert "does not start" in bench("peer", "--quick")[3]


# How runs end


def test_ctrl_c_kills_the_child_and_leaves_no_file(fake_llama, tmp_path):
    log, out = fake_llama("sleep"), tmp_path / "result.json"
    words = ("bench", "peer", *SMALL, "--repeats", "3", "--out", str(out), "--json")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-m", "esker", *words], **pipes)
    for _ in range(600):
        if log.exists() and log.read_text():
            break
        time.sleep(0.05)
    child = int(log.read_text())
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 130, stderr
    assert json.loads(stdout) == {"interrupted": True}
    assert list(tmp_path.glob("*.json")) == []
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_the_guard_ends_the_bench(bench):
    status, result, _, err = bench("decode", *SMALL, "--quick", "--guard-available", "100TB")
    assert (status, result) == (1, None)
    assert "the guard stopped it" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("load", "--repeats", "2"), "repeats: got 2, want at least 3"),
        (("load", "--repeats", "3", "--quick"), "want 1 to 2 with --quick"),
        (("load", "--repeats", "x"), "--repeats: got 'x'"),
        (("load", "--cache", "hot"), "--cache: got 'hot'"),
        (("stream", *SMALL), "stream needs cache sizes"),
        (("stream", "--slots", "1,x"), "--slots: got 'x'"),
        (("decode", "--prefill", ","), "--prefill: got ','"),
        (("decode", "--decode", "1"), "--decode: got '1'"),
        (("decode", "--fill", "half"), "--fill: got 'half'"),
        (("decode", "--prefill", "999999"), "tokens in eskers.txt"),
        (("decode", "--tokens", "x", "--prompt-file", "y"), "at once"),
        (("decode", "--prompt-file", "/no/file"), "cannot read the prompt file"),
        (("decode", "--memory-cap", "1GB", "--cache", "warm"), "want cold"),
        (("ops", "--types", "Q9"), "no matrices of these types"),
        (("ops", "--shapes", "1x2"), "--shapes without --types"),
        (("ops", "--types", "F32", "--shapes", "1by2"), "--shapes: got '1by2'"),
        (("disk", "--file", "/no/file"), "--file: No such file"),
        (("decode", "--guard-available", "lots"), "guard limit"),
    ],
)
def test_wrong_requests_are_refused_before_anything_runs(bench, words, message):
    status, result, _, err = bench(*words)
    assert (status, result) == (1, None)
    assert message in err
    assert "[1/" not in err


# Tokens and the page cache


def test_streams_of_tokens(demo_path, tmp_path):
    model = str(demo_path)
    text = tmp_path / "text.txt"
    text.write_text("An esker is a ridge.")
    stream = prompts.make_stream(model, text_file=str(text))
    record = stream.record(stream.cut(0, 3))
    assert record["text"] and record["source"] == "text.txt"
    given = prompts.make_stream(model, tokens=[1, 2, 3], tokens_file="ids.txt")
    assert given.record([1, 2])["text"] is None
    with pytest.raises(UsageError, match="got 3, want at least 4"):
        given.cut(0, 4)
    with pytest.raises(UsageError, match="got 4096, want 0 to 4095"):
        prompts.make_stream(model, tokens=[4096], tokens_file="ids.txt")
    seeded = [prompts.make_stream(model, seed=seed, count=50).tokens for seed in (1, 1, 2)]
    assert seeded[0] == seeded[1] != seeded[2]
    assert len(seeded[0]) == 50


def test_the_text_of_the_package_is_long_enough(demo_path):
    stream = prompts.make_stream(str(demo_path))
    assert len(stream.tokens) > 2 * (512 + 32)


def test_a_warm_file_is_in_the_page_cache(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(os.urandom(300_001))
    cache.prepare([str(file)], cold=False)
    assert cache.cached_bytes([str(file)]) in (300_001, None)
    cache.prepare([str(file)], cold=True)
    assert (cache.cached_bytes([str(file)]) or 0) <= 300_001
    empty = tmp_path / "empty"
    empty.write_bytes(b"")
    assert cache.cached_bytes([str(empty)]) == 0


# Memory caps

V1_MOUNTS = "tmpfs {0} tmpfs rw 0 0\ncgroup {0}/memory cgroup rw,relatime,memory 0 0\n"
V1_MOUNTS += "cgroup2 {0}/unified cgroup2 rw 0 0\n"
V2_MOUNTS = "cgroup2 {0} cgroup2 rw,nsdelegate 0 0\n"


def tree(root, **files):
    """Files of a made-up cgroup tree: folder__file=text, dots as they come."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_caps_find_version_1(tmp_path):
    (tmp_path / "memory" / "user" / "me").mkdir(parents=True)
    mounts = V1_MOUNTS.format(tmp_path)
    place = caps.find_place(mounts, "3:cpu:/\n2:memory:/user/me\n0::/\n")
    assert (place.version, place.folders) == (1, (tmp_path / "memory" / "user" / "me",))
    # A container's own view of the tree does not have the path that its processes lie in.
    place = caps.find_place(mounts, "2:memory:/docker/abc\n0::/\n")
    assert place.folders == (tmp_path / "memory",)


def test_caps_find_version_2_where_memory_is_shared_out(tmp_path):
    root = tree(
        tmp_path / "with space",
        **{
            "cgroup.subtree_control": "cpu memory\n",
            "a/cgroup.subtree_control": "cpu memory pids\n",
            "a/b/cgroup.subtree_control": "\n",
        },
    )
    mounts = V2_MOUNTS.format(str(root).replace(" ", "\\040"))
    place = caps.find_place(mounts, "0::/a/b\n")
    assert (place.version, place.folders) == (2, (root / "a", root))
    (root / "cgroup.subtree_control").write_text("cpu\n")
    (root / "a" / "cgroup.subtree_control").write_text("\n")
    assert caps.find_place(mounts, "0::/a/b\n") is None
    assert caps.find_place("proc /proc proc rw 0 0\n", "0::/\n") is None


@pytest.mark.parametrize("version", [1, 2])
def test_caps_are_applied_and_reported(tmp_path, monkeypatch, version, capsys):
    monkeypatch.setattr(caps, "_REMOVE_TRIES", 1)
    with caps.MemoryCap(1 << 30, caps.Place(version, (tmp_path / "no", tmp_path))) as cap:
        (folder,) = tmp_path.iterdir()
        files = {
            1: {
                "memory.max_usage_in_bytes": "7000\n",
                "memory.failcnt": "1\n",
                "memory.memsw.failcnt": "2\n",
                "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
            },
            2: {"memory.peak": "7000\n", "memory.events": "low 0\nmax 3\noom 1\noom_kill 1\n"},
        }
        tree(folder, **files[version], **{"cgroup.procs": ""})
        cap.enter()
        report = cap.report()
    limit = {1: "memory.limit_in_bytes", 2: "memory.max"}[version]
    assert (folder / limit).read_text() == f"{1 << 30}\n"
    assert (folder / "cgroup.procs").read_text() == f"{os.getpid()}\n"
    assert report["memory_cap_bytes"] == 1 << 30
    facts = {"peak_bytes": 7000, "limit_hits": 3, "oom_kills": 1, "limit_bytes": 1 << 30}
    assert report["memory_cap"] == {"version": version, **facts}
    assert "left behind" in capsys.readouterr().err  # plain folders hold files


def test_caps_that_cannot_be_are_told(tmp_path):
    with pytest.raises(UsageError, match="cannot make a memory cgroup.*\nhint: memory caps need"):
        caps.MemoryCap(1 << 30, caps.Place(1, (tmp_path / "no",))).__enter__()
    with pytest.raises(UsageError, match="memory cap: got 0"):
        caps.MemoryCap(0, caps.Place(1, (tmp_path,)))


@pytest.fixture
def real_caps():
    try:
        with caps.MemoryCap(64 << 20) as cap:
            assert cap.limit_bytes == 64 << 20
    except UsageError as error:
        pytest.skip(error.message)


def test_a_capped_run_says_what_it_used(real_caps, bench):
    words = ("decode", *SMALL, "--quick", "--memory-cap", "400MB")
    status, result, _, err = bench(*words)
    assert status == 0, err
    (run,) = result["raw"]["runs"]
    cap = run["settings"]["memory_cap"]
    assert run["settings"]["memory_cap_bytes"] == cap["limit_bytes"] <= 400_000_000
    assert 0 < cap["peak_bytes"] <= cap["limit_bytes"] and cap["oom_kills"] == 0
    assert run["cold"] and run["settings"]["fill"] == "other"


def test_a_side_out_of_memory_is_recorded(real_caps, bench, fake_llama):
    fake_llama("eat")
    words = ("peer", *SMALL, "--quick", "--memory-cap", "150MB")
    status, result, out, err = bench(*words)
    assert status == 0, err
    ours, theirs = result["raw"]["runs"]
    assert (ours["exit_status"], theirs["exit_status"]) == (0, -9)
    assert theirs["settings"]["ended"] == OUT_OF_MEMORY
    assert theirs["settings"]["memory_cap"]["oom_kills"] >= 1
    assert theirs["phases"]["load_s"] is not None and theirs["tokens"] == []
    assert "peer: 1 of 1 runs ended early" in out
    assert summarize(result) == result["summary"]


def test_files_are_written_whole(bench, tmp_path):
    assert bench("load", "--cache", "warm", "--quick")[0] == 0
    verdict, result = audit_file(tmp_path / "result.json")
    assert result is not None and verdict.refused
    assert [path.name for path in Path(tmp_path).iterdir()] == ["result.json"]
