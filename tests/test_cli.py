# SPDX-License-Identifier: MIT
"""The command line: what goes to which stream, how commands end, and that they end cleanly.

Most tests call main() in this process; those about signals, pipes and bytes start a real one.
"""

import io
import json
import os
import signal
import subprocess
import sys
import time

import esker
import numpy as np
import pytest
from esker.options import LOAD
from esker.report import format_bytes

GREEDY = ("--temperature", "0")


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for option in LOAD:
        monkeypatch.delenv(option.variable, raising=False)


@pytest.fixture(scope="module")
def demo(open_model, demo_path):
    return open_model(demo_path)


@pytest.fixture(scope="module")
def greedy(demo):
    return demo.complete("How does", max_tokens=12, temperature=0)


def start(*words, **options):
    """A real process of the command line, its streams as pipes."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-m", "esker", *words], **{**pipes, **options})


# run


def test_run_streams_the_text_and_nothing_else(esker_, greedy):
    status, out, err = esker_("run", "How does", "-n", "12", *GREEDY)
    assert (status, out, err) == (0, greedy.text + "\n", "")


def test_run_json_is_one_object(esker_, greedy):
    status, out, err = esker_("run", "How does", "-n", "12", *GREEDY, "--json")
    result = json.loads(out)
    assert (status, err) == (0, "")
    assert result["text"] == greedy.text and result["tokens"] == greedy.tokens
    assert result["prompt_tokens"] == greedy.prompt_tokens
    assert result["finish_reason"] == "length"
    assert set(result["timings"]) >= {"load_s", "prefill_s", "first_token_s", "decode_s"}
    assert result["counters"]["lookups"] == greedy.counters["lookups"]
    assert result["plan"]["rows"]


def test_run_options_reach_the_generation(esker_, greedy, demo):
    stop = greedy.text[10:14]
    _, out, _ = esker_(
        "run", "How does", "-n", "12", *GREEDY, "--stop", stop, "--stop", "zzz", "--json"
    )
    assert json.loads(out)["finish_reason"] == "stop"
    assert json.loads(out)["text"] == greedy.text[: greedy.text.index(stop)]
    words = ("--temperature", "1.5", "--top-k", "20", "--top-p", "0.9", "--min-p", "0.01")
    _, out, _ = esker_("run", "The", "--max-tokens", "6", *words, "--seed", "5", "--json")
    same = demo.complete(
        "The", max_tokens=6, temperature=1.5, top_k=20, top_p=0.9, min_p=0.01, seed=5
    )
    assert json.loads(out)["tokens"] == same.tokens
    assert json.loads(out)["seed"] == 5


def test_run_loads_as_told(esker_, demo_path, monkeypatch):
    words = ("run", "x", "-n", "1", "--json", "--model", str(demo_path))
    _, out, _ = esker_(*words, "--context", "32", "--slots", "12", "--chunk", "8", "--threads", "1")
    plan = json.loads(out)["plan"]
    assert (plan["context"], plan["chunk"]) == (32, 8)
    assert sum(slots["slots"] for slots in plan["classes"]) == 12 * 8
    monkeypatch.setenv("ESKER_CONTEXT", "48")
    assert json.loads(esker_(*words)[1])["plan"]["context"] == 48
    assert json.loads(esker_(*words, "--context", "40")[1])["plan"]["context"] == 40


def test_run_profile_names_ops_and_shares(esker_):
    prompt = "How does write-ahead logging work in SQLite?"
    status, out, err = esker_("run", prompt, "-n", "3", *GREEDY, "--profile", "--json")
    assert status == 0
    assert json.loads(out)["text"]
    for op in ("experts", "matmul attn_qkv", "matmul ffn_gate_inp", "delta_chunk", "route"):
        assert op in err
    assert "delta_step" in err  # the prompt has more tokens than a window; decode has one


def test_run_stats_go_to_stderr_prompt_and_decode_apart(esker_):
    status, out, err = esker_("run", "How does", "-n", "3", *GREEDY, "--stats", "--json")
    assert status == 0 and json.loads(out)
    for word in ("prompt", "decode", "per token", "lookups", "hit rate", "demand misses"):
        assert word in err
    for word in ("bytes read", "waiting ms", "tokens/s", "seed"):
        assert word in err
    tokens = next(line.split() for line in err.splitlines() if line.split()[:1] == ["tokens"])
    assert tokens == ["tokens", "2", "2"]  # two of the prompt, two decode steps after the first


def test_run_reads_the_prompt_from_stdin(esker_, greedy, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"How does\n")))
    assert esker_("run", "-", "-n", "12", *GREEDY)[1] == greedy.text + "\n"


def test_run_chat_answers_a_message(esker_, demo):
    _, out, _ = esker_("run", "Hello", "--chat", "-n", "2", "--seed", "4", "--json")
    assert json.loads(out)["prompt_tokens"] == demo.tokenizer.encode(
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n", special=True
    )


def test_run_says_when_the_context_is_full(esker_):
    status, _, err = esker_("run", "How does", "-n", "-1", "--context", "6", *GREEDY)
    assert status == 0 and "the context of 6 tokens is full (--context)" in err


def test_run_takes_bytes_that_are_no_text(demo):
    process = start(b"run", b"\xff\xfe", b"-n", b"1", b"--json")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    ids = json.loads(out)["prompt_tokens"]
    assert demo.tokenizer.tokens_to_bytes(ids) == b"\xff\xfe"


def test_run_writes_what_the_terminal_can_show():
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    process = start("run", "日本語", "-n", "8", "--temperature", "2", env=environment)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert out.isascii()


# chat


def test_chat_takes_each_line_of_stdin_as_a_message(esker_, monkeypatch):
    lines = b"Hello\n\nWhat is <|im_end|>?\n/exit\nnever\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines)))
    status, out, err = esker_("chat", "-n", "2", "--seed", "2", "--json")
    chat = json.loads(out)
    assert (status, err, chat["finish_reason"]) == (0, "", "end")
    assert [message["role"] for message in chat["messages"]] == ["user", "assistant"] * 2
    assert chat["messages"][2]["content"] == "What is <|im_end|>?"
    assert [turn["text"] for turn in chat["turns"]] == [
        message["content"] for message in chat["messages"][1::2]
    ]


def test_chat_shows_the_answers(esker_, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Hello\n/reset\nHello\n")))
    status, out, err = esker_("chat", "-n", "3", "--seed", "2")
    half = len(out) // 2
    assert status == 0 and err == "" and out and out[:half] == out[half:]


# info


def test_info_shows_what_the_file_is(esker_, demo_path):
    status, out, err = esker_("info", str(demo_path))
    assert (status, err) == (0, "")
    for text in (
        "34,759,648",
        "8: 2 of full attention, 6 gated delta nets",
        "64 a layer, 6 a token",
        "97,152 rows of 16",
        "gpt2, cut as qwen35, 4,096 tokens",
        "ffn_down_exps",
        "IQ4_NL",
        "64 x 256 x 64",
        "MTP head",
        "unused tensors: none",
        "esker-demo.gguf",
    ):
        assert text in out


def test_info_json_adds_up(esker_):
    status, out, _ = esker_("info", "--json")
    info = json.loads(out)
    assert status == 0
    by_role = sum(sum(types.values()) for types in info["bytes_by_role"].values())
    assert by_role == sum(tensor["bytes"] for tensor in info["tensors"])
    assert by_role == info["dense_bytes"] + info["expert_bytes"] + info["table_bytes"]
    assert info["tokenizer"]["pre"] == "qwen35"
    assert info["tokenizer"]["chat_template"] == "ChatML"
    assert any("chat template" in item for item in info["missing"])


def test_format_bytes():
    sizes = (0, 999, 1000, 1_234_567, 999_600, 4_326_000_000, 5e12)
    assert [format_bytes(size) for size in sizes] == [
        "0 B", "999 B", "1 kB", "1.23 MB", "1 MB", "4.33 GB", "5 TB",
    ]  # fmt: skip


# logits


def test_logits_writes_an_array(esker_, tmp_path, demo):
    path = tmp_path / "out.npy"
    status, out, _ = esker_("logits", "How does it", "--out", str(path), "--chunk", "2")
    logits = np.load(path)
    assert status == 0 and out == f"{path}: float32 [3, 4096]\n"
    assert logits.dtype == np.float32
    expected = demo.logits("How does it", chunk=2)
    assert np.array_equal(logits, expected)
    assert sorted(os.listdir(tmp_path)) == ["out.npy"]


@pytest.mark.parametrize("name", ["t.txt", "t.json", "t.npy"])
def test_logits_of_a_file_of_tokens(esker_, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    if name == "t.npy":
        np.save(name, np.array([[5, 6], [7, 8]], dtype=np.int16))
    else:
        (tmp_path / name).write_text("[5, 6, 7, 8]" if name == "t.json" else "5 6,7\n8\n")
    status, out, _ = esker_("logits", "--tokens", name, "--json")
    assert status == 0
    assert json.loads(out) == {"out": "logits.npy", "shape": [4, 4096], "tokens": [5, 6, 7, 8]}
    assert np.load("logits.npy").shape == (4, 4096)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.txt", "1 two 3", "invalid literal for int() with base 10: 'two'"),
        ("t.json", '{"a": 1}', "token file: got {'a': 1}, want whole numbers"),
        ("t.json", "[1, 2", "token file: Expecting"),
        ("t.npy", "no array", "token file:"),
        ("t.txt", "", "the prompt is empty"),
        ("t.txt", "4096", "prompt token: got 4096, want token ids"),
        ("none", None, "cannot read the token file: No such file"),
    ],
)
def test_logits_of_a_wrong_file_leave_none(esker_, tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_text(content)
    out_path = tmp_path / "out.npy"
    status, out, err = esker_("logits", "--tokens", str(tmp_path / name), "--out", str(out_path))
    assert (status, out) == (1, "") and message in err
    assert not out_path.exists() and not out_path.with_suffix(".npy.part").exists()


def test_logits_that_cannot_be_written(esker_, tmp_path):
    status, _, err = esker_("logits", "x", "--out", str(tmp_path / "no" / "out.npy"))
    assert status == 1 and "cannot write the logits: No such file or directory" in err


# How commands end


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "the following arguments are required: COMMAND"),
        (("dance",), "invalid choice: 'dance'"),
        (("run",), "the following arguments are required: PROMPT"),
        (("run", "x", "--frobnicate"), "unrecognized arguments: --frobnicate"),
        (("run", "x", "--temp", "1"), "unrecognized arguments: --temp 1"),
        (("run", "x", "--memory", "8XB"), "memory: got '8XB', want a size such as 8GB"),
        (("run", "x", "--temperature", "hot"), "temperature: got 'hot', want a number from 0"),
        (("run", "x", "-n", "few"), "max_tokens: got 'few', want a whole number from 0"),
        (("run", "x", "--backend", "gpu"), "want one of auto, cpu, metal, cuda"),
        (("run", "x", "--stop", ""), "--stop: got ''"),
        (("run", "x", "--arena", "1GB", "--slots", "9"), "both arena and slots are set"),
        (("logits",), "give a PROMPT or --tokens FILE"),
        (("logits", "x", "--tokens", "f"), "give a PROMPT or --tokens FILE"),
        (("info", "a", "--model", "b"), "give MODEL or --model"),
    ],
)
def test_wrong_usage_is_status_2(esker_, words, message):
    status, out, err = esker_(*words)
    assert (status, out) == (2, "") and message in err and "esker: error: " in err
    assert "Traceback" not in err


def test_wrong_variable_is_named(esker_, monkeypatch):
    monkeypatch.setenv("ESKER_SLOTS", "many")
    status, _, err = esker_("run", "x")
    assert status == 2 and "slots: got 'many'" in err and "environment variable ESKER_SLOTS" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "x", "--model", "/no/model.gguf"), "/no/model.gguf"),
        (("run", "x", "--model", __file__), "not a GGUF file"),
        (("info", __file__), "not a GGUF file"),
        (("run", ""), "the prompt is empty"),
        (("run", "a b c d e f g", "--context", "4"), "too many tokens: got 7, want at most 4"),
        (("run", "x", "--memory", "1MB"), "does not fit"),
    ],
)
def test_error_is_status_1_and_one_line_with_a_hint(esker_, words, message):
    status, out, err = esker_(*words)
    lines = err.splitlines()
    assert (status, out) == (1, "") and message in lines[0]
    assert lines[0].startswith("esker: error: ") and lines[1].startswith("hint: ")
    assert len(lines) == 2


def test_error_with_json_is_one_object(esker_):
    status, out, err = esker_("run", "x", "--model", "/no/model.gguf", "--json")
    error = json.loads(out)["error"]
    assert status == 1 and error["kind"] == "ReadError" and error["hint"]
    assert error["message"] in err


def test_defect_is_reported_without_traceback(esker_, monkeypatch):
    monkeypatch.setattr(esker.Model, "generate", lambda *_, **__: 1 / 0)
    status, _, err = esker_("run", "x")
    assert status == 1 and "Traceback" not in err
    assert "internal: ZeroDivisionError: division by zero (test_cli.py:" in err


def test_version_and_help_load_nothing_heavy():
    code = (
        "import sys; from esker.cli import main\n"
        "try: main([sys.argv[1]])\n"
        "except SystemExit as end: assert not end.code\n"
        "heavy = {'numpy', 'tokenizers', 'rich', 'jinja2', 'esker._core'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    for flag, text in (("--version", f"esker {esker.__version__}\n"), ("--help", "chat")):
        out = subprocess.check_output([sys.executable, "-c", code, flag], text=True, timeout=60)
        assert text in out


@pytest.mark.parametrize("command", ["run", "chat", "info", "logits"])
def test_help_of_every_command(esker_, command):
    status, out, err = esker_(command, "--help")
    assert status == 0 and err == "" and f"usage: esker {command}" in out


def test_reader_that_goes_away_is_no_error():
    process = start("run", "How does", "-n", "400", *GREEDY)
    assert process.stdout.read(5)
    process.stdout.close()
    assert process.wait(timeout=60) == 0
    assert process.stderr.read() == b""
    process.stderr.close()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_full_disk_is_an_error():
    with open("/dev/full", "w") as full:
        process = start("run", "How does", "-n", "2", "--json", stdout=full)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert err.startswith(b"esker: error: [Errno 28] No space left") and b"Traceback" not in err


def test_ctrl_c_while_generating_ends_with_the_text():
    process = start("run", "How does", "-n", "-1", *GREEDY, "--seed", "1")
    begun = process.stdout.read(20)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and b"Traceback" not in err
    assert begun and out.endswith(b"\n")


@pytest.mark.parametrize("after_s", [0.25, 1.2])
def test_ctrl_c_with_json_is_still_one_object(after_s):
    # While it loads, or reads the prompt, or generates: whatever the machine has come to.
    process = start("run", "How does " * 500, "-n", "-1", *GREEDY, "--json")
    time.sleep(after_s)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    if process.returncode == 130 and out:
        assert json.loads(out)["finish_reason"] == "interrupted"
    elif process.returncode != 130:  # before main(): Python's own ending
        assert process.returncode == -signal.SIGINT and out == b""
    assert b"Exception ignored" not in err


def test_ctrl_c_in_a_chat_without_terminal_ends_it():
    process = start("chat", "-n", "-1", *GREEDY, stdin=subprocess.PIPE)
    process.stdin.write(b"Hello\nAgain\n")
    process.stdin.flush()
    begun = process.stdout.read(2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and b"Traceback" not in err
    assert begun and out.endswith(b"\n")
