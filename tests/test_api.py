# SPDX-License-Identifier: MIT
"""The Python face on the demo model: Model, Session, options, chat templates, errors."""

import os
import pickle
import signal
import threading

import esker
import numpy as np
import pytest
from esker import ChatTemplate, FormatError, UsageError
from esker.options import LOAD, Arena, load_options, parse_arena, parse_size

PROMPT = "How does"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for option in LOAD:
        monkeypatch.delenv(option.variable, raising=False)


@pytest.fixture(scope="module")
def demo(open_model, demo_path):
    return open_model(demo_path)


@pytest.fixture(scope="module")
def greedy(demo):
    """Sixteen greedy tokens of PROMPT."""
    return demo.complete(PROMPT, max_tokens=16, temperature=0)


# Model


def test_default_model_is_the_one_in_the_package():
    with esker.Model() as model:
        assert os.path.basename(model.path) == "esker-demo.gguf"
        assert model.info["config"]["n_layer"] == 8
        assert model.plan["context"] == 4096
        result = model.complete(PROMPT, max_tokens=2, temperature=0)
        assert len(result.tokens) == 2


def test_closed_model_says_so():
    model = esker.Model()
    session = model.session()
    session.prefill("x")
    generation = session.generate("y")
    next(generation)
    model.close()
    model.close()
    for use in (lambda: model.logits([1]), lambda: session.logits(), lambda: next(generation)):
        with pytest.raises(UsageError, match="the model is closed"):
            use()
    assert "closed" in repr(model)


def test_completion_holds_what_was_done(demo, greedy):
    assert greedy.finish_reason == "length"
    assert greedy.prompt_tokens == demo.tokenizer.encode(PROMPT)
    assert greedy.text == demo.tokenizer.decode(greedy.tokens)
    assert 0 < greedy.timings.prefill_s <= greedy.timings.first_token_s
    assert greedy.timings.load_s > 0
    assert greedy.timings.tokens_per_s == pytest.approx(15 / greedy.timings.decode_s)
    assert greedy.plan["total_bytes"] == sum(row["bytes"] for row in greedy.plan["rows"])
    for name, count in greedy.counters.items():
        assert count == greedy.prompt_counters[name] + greedy.decode_counters[name]
    config = demo.info["config"]
    assert greedy.decode_counters["lookups"] == 15 * config["n_layer"] * config["n_expert_used"]
    assert greedy.decode_counters["turns"] == 15 * config["n_layer"]
    assert pickle.loads(pickle.dumps(greedy)) == greedy


def test_tokens_and_text_are_two_ways_to_give_a_prompt(demo, greedy):
    for prompt in (
        greedy.prompt_tokens,
        tuple(greedy.prompt_tokens),
        np.array(greedy.prompt_tokens),
        PROMPT.encode(),
    ):
        assert demo.complete(prompt, max_tokens=4, temperature=0).tokens == greedy.tokens[:4]


def test_generation_stops_at_its_length(demo, greedy):
    assert demo.complete(PROMPT, max_tokens=1, temperature=0).tokens == greedy.tokens[:1]
    nothing = demo.complete(PROMPT, max_tokens=0)
    assert (nothing.text, nothing.tokens, nothing.finish_reason) == ("", [], "length")
    assert list(demo.generate(PROMPT, max_tokens=0)) == []


def test_generation_stops_where_the_context_ends(demo_path, greedy):
    with esker.Model(demo_path, context=8) as model:
        result = model.complete(PROMPT, max_tokens=None, temperature=0)
        # The last token needs no place: nothing is computed from it.
        assert result.tokens == greedy.tokens[:7]
        assert result.finish_reason == "context"
        session = model.session()
        session.complete(PROMPT, max_tokens=None, temperature=0)
        assert session.position == 8
        with pytest.raises(UsageError, match="got 1 after 8 in the session, want at most 8"):
            session.prefill([1])


def test_generation_stops_before_a_stop_string(demo, greedy):
    stop = greedy.text[12:20]
    result = demo.complete(PROMPT, max_tokens=16, temperature=0, stop=[stop, "never this"])
    assert result.text == greedy.text[: greedy.text.index(stop)]
    assert result.finish_reason == "stop"
    assert len(result.tokens) <= len(greedy.tokens)


def test_stop_token_is_no_part_of_the_session(demo, monkeypatch, greedy):
    tokenizer = demo.tokenizer
    monkeypatch.setattr(tokenizer, "stop_tokens", frozenset([greedy.tokens[3]]))
    session = demo.session()
    result = session.complete(PROMPT, max_tokens=16, temperature=0)
    assert result.tokens == greedy.tokens[:4] and result.finish_reason == "stop"
    assert result.text == tokenizer.decode(greedy.tokens[:3])
    assert session.tokens == greedy.prompt_tokens + greedy.tokens[:3]


@pytest.mark.parametrize("prompt", ["", b"", [], np.array([], dtype=int)])
def test_empty_prompt_is_refused_where_no_token_begins_a_text(demo, prompt):
    with pytest.raises(UsageError, match="the prompt is empty"):
        demo.generate(prompt)


def test_prompt_beyond_the_context_names_both_numbers(demo):
    with pytest.raises(UsageError, match="too many tokens: got 5000, want at most 4096"):
        demo.generate([1] * 5000)
    with pytest.raises(UsageError, match="got 5000, want at most 4096"):
        demo.logits([1] * 5000)


@pytest.mark.parametrize("token", [-1, 4096, 1.5, "1", True, None])
def test_token_that_is_none_is_refused(demo, token):
    with pytest.raises(UsageError) as caught:
        demo.logits([1, token])
    assert f"prompt token: got {token!r}, want token ids, whole numbers from 0 to 4095" in str(
        caught.value
    )


@pytest.mark.parametrize("prompt", [3, None, {"a": 1}, object()])
def test_prompt_that_is_none_is_refused(demo, prompt):
    with pytest.raises(UsageError, match=r"\[session\] prompt: got"):
        demo.generate(prompt)


def test_prompt_of_bytes_that_are_no_text_works(demo):
    result = demo.complete("\udcff\udcfe", max_tokens=2, temperature=0)
    assert demo.tokenizer.tokens_to_bytes(result.prompt_tokens) == b"\xff\xfe"


def test_logits_are_one_row_a_token(demo, greedy):
    tokens = greedy.prompt_tokens + greedy.tokens
    logits = demo.logits(tokens)
    assert logits.shape == (len(tokens), 4096) and logits.dtype == np.float32
    rows = logits[len(greedy.prompt_tokens) - 1 : -1]
    assert rows.argmax(axis=1).tolist() == greedy.tokens
    by_chunks = demo.logits(tokens, 5)
    assert np.abs(by_chunks - logits).max() < 1e-3 * logits.std()
    assert np.array_equal(demo.logits(PROMPT), demo.logits(greedy.prompt_tokens))


def test_special_decides_what_control_tokens_in_a_prompt_are(demo):
    text = "a<|im_end|>"
    assert demo.complete(text, max_tokens=1, special=True).prompt_tokens[-1] == 4095
    assert 4095 not in demo.complete(text, max_tokens=1).prompt_tokens


def test_progress_of_the_prompt_is_reported(demo):
    seen = []
    demo.complete([1] * 600, max_tokens=1, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (600, 600) and [done for done, _ in seen] == sorted(d for d, _ in seen)


# Session


def test_generating_in_parts_is_generating_at_once(demo, greedy):
    session = demo.session()
    tokens = session.complete(PROMPT, max_tokens=5, temperature=0).tokens
    tokens += demo.complete("", max_tokens=4, temperature=0, session=session).tokens
    tokens += [piece.token for piece in session.generate(max_tokens=7, temperature=0)]
    assert tokens == greedy.tokens
    assert session.tokens == greedy.prompt_tokens + greedy.tokens
    assert session.position == len(session.tokens)


def test_leaving_a_generation_keeps_what_was_generated(demo, greedy):
    session = demo.session()
    for piece in session.generate(PROMPT, temperature=0):
        if piece.index == 2:
            break
    assert session.tokens == greedy.prompt_tokens + greedy.tokens[:3]
    rest = session.complete(max_tokens=13, temperature=0)
    assert rest.tokens == greedy.tokens[3:]


def test_result_of_an_unfinished_generation(demo, greedy):
    generation = demo.generate(PROMPT, temperature=0)
    next(generation)
    result = generation.result()
    assert (result.finish_reason, result.tokens) == ("interrupted", greedy.tokens[:1])
    assert list(generation) == []


def test_session_of_another_model_is_refused(demo):
    with esker.Model() as other, pytest.raises(UsageError, match="belongs to another model"):
        demo.generate("x", session=other.session())


def test_decode_and_logits_step_by_step(demo, greedy):
    session = demo.session()
    session.prefill(PROMPT)
    token = int(session.logits().argmax())
    for expected in greedy.tokens[:4]:
        assert token == expected
        token = int(session.decode(token).argmax())
    with pytest.raises(UsageError):
        demo.session().logits()


def test_fork_goes_its_own_way(demo, greedy):
    session = demo.session()
    session.complete(PROMPT, max_tokens=4, temperature=0)
    other = session.fork()
    other.prefill(" the Lord")
    assert session.complete(max_tokens=4, temperature=0).tokens == greedy.tokens[4:8]
    assert other.tokens[: len(greedy.prompt_tokens) + 4] == session.tokens[:-4]
    assert len(other.tokens) > len(greedy.prompt_tokens) + 4


def test_rewind_comes_back_as_often_as_wanted(demo, greedy):
    session = demo.session()
    session.complete(PROMPT, max_tokens=4, temperature=0)
    mark = session.checkpoint()
    for _ in range(2):
        assert session.complete(max_tokens=6, temperature=0).tokens == greedy.tokens[4:10]
        session.rewind(mark)
        assert session.tokens == greedy.prompt_tokens + greedy.tokens[:4]
    with pytest.raises(UsageError):
        session.rewind(mark + 17)
    assert session.complete(max_tokens=6, temperature=0).tokens == greedy.tokens[4:10]


def test_reset_empties_a_session(demo, greedy):
    session = demo.session()
    session.complete("Hello", chat=True, max_tokens=2)
    session.reset()
    assert (session.tokens, session.position, session.messages) == ([], 0, [])
    assert session.complete(PROMPT, max_tokens=3, temperature=0).tokens == greedy.tokens[:3]


def test_saved_session_goes_on_as_it_would_have(demo, greedy, tmp_path):
    session = demo.session()
    session.complete(PROMPT, max_tokens=6, temperature=0)
    session.save(tmp_path / "state.bin")
    restored = demo.session()
    restored.prefill("something else")
    restored.restore(tmp_path / "state.bin")
    assert restored.tokens == session.tokens
    assert restored.complete(max_tokens=10, temperature=0).tokens == greedy.tokens[6:]
    with pytest.raises(esker.ReadError):
        restored.restore(tmp_path / "none.bin")
    (tmp_path / "bad.bin").write_bytes(b"no session at all")
    with pytest.raises(FormatError):
        restored.restore(tmp_path / "bad.bin")
    assert restored.tokens == greedy.prompt_tokens + greedy.tokens


def test_session_survives_an_interrupted_prompt(demo):
    session = demo.session()
    session.prefill("In the beginning")
    before = session.tokens

    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        session.prefill([5] * 40, chunk=8, progress=interrupt)
    # Whole chunks are kept, and nothing of the one at hand.
    kept = session.position - len(before)
    assert session.tokens == before + [5] * kept and kept % 8 == 0 and kept < 40
    session.prefill([5] * (40 - kept))
    whole = demo.session()
    whole.prefill(before + [5] * 40)
    assert session.tokens == whole.tokens
    assert np.abs(session.logits() - whole.logits()).max() < 1e-3 * whole.logits().std()


def test_ctrl_c_ends_a_generation_with_what_there_is(demo):
    generation = demo.generate(PROMPT, max_tokens=None, temperature=0)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        for piece in generation:
            if piece.index == 0:
                timer.start()
    timer.join()
    result = generation.result()
    assert result.finish_reason == "interrupted" and result.tokens
    assert result.text == demo.tokenizer.decode(result.tokens)


# Chat


def test_chat_keeps_the_conversation_and_reads_it_once(demo):
    session = demo.session()
    first = session.complete("Hello", chat=True, max_tokens=3, seed=1)
    read = session.tokens
    second = session.complete("And <|im_end|>?", chat=True, max_tokens=3, seed=2)
    assert session.tokens[: len(read)] == read
    assert [message["role"] for message in session.messages] == ["user", "assistant"] * 2
    assert session.messages[1]["content"] == first.text
    text = demo.tokenizer.decode(session.tokens, special=True)
    assert text == (
        f"<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n{first.text}<|im_end|>\n"
        f"<|im_start|>user\nAnd <|im_end|>?<|im_end|>\n<|im_start|>assistant\n{second.text}"
    )
    # What the user wrote as <|im_end|> is text, not the control token.
    assert session.tokens.count(4095) == 3


def test_chat_takes_a_whole_conversation(demo):
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "Why?"},
    ]
    result = demo.complete(messages, chat=True, max_tokens=1)
    text = demo.tokenizer.decode(result.prompt_tokens, special=True)
    assert text.startswith(
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>"
    )
    session = demo.session()
    session.complete(messages[:2], chat=True, max_tokens=0)
    rest = session.complete(messages, chat=True, max_tokens=0)
    assert len(rest.prompt_tokens) < len(result.prompt_tokens)
    assert demo.tokenizer.decode(session.tokens, special=True) == text
    # Another past is read from its beginning.
    messages[1] = {"role": "user", "content": "Ho"}
    other = session.complete(messages, chat=True, max_tokens=0)
    assert other.prompt_tokens == session.tokens


def test_chat_reads_anew_after_a_turn_that_was_cut_off(demo):
    session = demo.session()
    session.complete("One", chat=True, max_tokens=2, seed=1)

    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        session.complete("Two", chat=True, progress=interrupt)
    assert len(session.messages) == 2
    session.complete("Three", chat=True, max_tokens=1, seed=1)
    text = demo.tokenizer.decode(session.tokens, special=True)
    assert "Two" not in text and text.count("<|im_start|>") == 4


def test_chat_turn_that_was_left_is_part_of_the_conversation(demo):
    session = demo.session()
    generation = session.generate("One", chat=True, max_tokens=None, temperature=2, seed=5)
    text = next(generation).text + next(generation).text
    session.complete("Two", chat=True, max_tokens=1)
    assert session.messages[1]["content"] == text


def test_rewind_and_fork_keep_the_conversation_right(demo):
    session = demo.session()
    session.complete("One", chat=True, max_tokens=2, seed=1)
    mark = session.checkpoint()
    fork = session.fork()
    session.complete("Two", chat=True, max_tokens=2, seed=1)
    session.rewind(mark)
    assert len(session.messages) == 2 == len(fork.messages)
    again = session.complete("Three", chat=True, max_tokens=2, seed=1)
    assert fork.complete("Three", chat=True, max_tokens=2, seed=1).tokens == again.tokens
    assert fork.tokens == session.tokens


@pytest.fixture(scope="module")
def vocabulary(demo):
    return demo.tokenizer


def rendered(source, vocabulary, content="<b>é</b>"):
    template = ChatTemplate(source, vocabulary, "model.gguf")
    return template.render([{"role": "user", "content": content}])


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ messages[0].content | tojson }}", '"<b>é</b>"'),
        ("{% for m in messages %}\n  {% if true %}\nx\n  {% endif %}\n{% endfor %}\ny", "x\ny"),
        ("{% for m in messages %}{{ m.role }}{% break %}{% endfor %}", "user"),
        ("{{ bos_token }}|{{ eos_token }}|{{ add_generation_prompt }}", "|<|endoftext|>|True"),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{% if tools %}tools{% else %}none{% endif %}", "none"),
    ],
)
def test_template_has_what_templates_use(vocabulary, source, text):
    assert rendered(source, vocabulary) == text


@pytest.mark.parametrize(
    ("source", "kind", "message"),
    [
        ("{% for %}", FormatError, "tokenizer.chat_template is not a valid template"),
        (3, FormatError, "tokenizer.chat_template: got 3, want text"),
        ("{{ a.b.c }}", FormatError, "the chat template fails on the messages: UndefinedError"),
        ("{{ 1 / 0 }}", FormatError, "ZeroDivisionError: division by zero"),
        ("{{ ''.__class__.__mro__ }}", FormatError, "does what it may not"),
        ("{{ messages.append(1) }}", FormatError, "does what it may not"),
        ("{{ raise_exception('roles\nmust') }}", UsageError, "refuses the messages: roles must"),
    ],
)
def test_template_that_fails_says_so_in_one_line(vocabulary, source, kind, message):
    with pytest.raises(kind) as caught:
        rendered(source, vocabulary)
    assert message in caught.value.message and "model.gguf" in caught.value.message
    assert "\n" not in str(caught.value).partition("\nhint: ")[0]


def test_control_tokens_in_messages_are_text_whatever_the_template_does(vocabulary):
    text = rendered("<|im_start|>{{ messages[0].content | upper }}", vocabulary, "a<|im_end|>b")
    ids = vocabulary.encode(text, special=True, shield="\ufdd0")
    assert ids[0] == 4094 and 4095 not in ids
    assert vocabulary.decode(ids) == "A<|IM_END|>B"


def test_model_without_template_and_chatml_tokens_cannot_chat(vocabulary, monkeypatch):
    monkeypatch.setattr(vocabulary, "_marked", {})
    with pytest.raises(UsageError, match="the model has no chat template"):
        ChatTemplate(None, vocabulary)


@pytest.mark.parametrize("message", ["hi", {"content": "x"}, {"role": 3, "content": "x"}, 3])
def test_message_must_have_a_role(demo, message):
    with pytest.raises(UsageError, match=r"\[chat\] message: got"):
        demo.generate([message], chat=True)


# Options


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8GB", 8_000_000_000),
        ("8gb", 8_000_000_000),
        ("8 GB", 8_000_000_000),
        ("512MiB", 512 << 20),
        ("512M", 512 << 20),
        ("1.5GB", 1_500_000_000),
        (".5KiB", 512),
        ("1TB", 10**12),
        ("123", 123),
        ("123B", 123),
        (456, 456),
        (8e9, 8_000_000_000),
        (np.int64(7), 7),
        ("auto", 0),
    ],
)
def test_size(text, size):
    assert parse_size(text) == size and isinstance(parse_size(text), int)


@pytest.mark.parametrize(
    "text",
    ["", "GB", "8XB", "8 G B", "-1", -1, "1e9", "٣GB", 1.5, True, None, "9" * 30, [1], "0.1"],
)
def test_size_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match="a size such as 8GB"):
        parse_size(text)


def test_arena_is_a_size_or_a_share():
    assert parse_arena("2GB") == Arena(bytes=2_000_000_000)
    assert parse_arena("25%") == Arena(fraction=0.25)
    for wrong in ("0%", "101%", "x%", "%", "nan%", 0.25, "2XB"):
        with pytest.raises(ValueError, match="or a share of all experts such as 25%"):
            parse_arena(wrong)


def test_argument_beats_environment_beats_default():
    environment = {"ESKER_CONTEXT": "100", "ESKER_MEMORY": "1GB", "ESKER_THREADS": " "}
    options = load_options({"context": 200, "memory": None}, environment)
    assert (options.context, options.memory, options.threads) == (200, 10**9, 0)
    assert load_options({}, {}).backend == "auto"
    slots = load_options({"slots": 4}, {"ESKER_ARENA": "25%"})
    assert slots.slots == 4 and slots.arena == Arena()
    arena = load_options({"arena": "25%"}, {"ESKER_SLOTS": "4"})
    assert arena.slots == 0 and arena.arena.fraction == 0.25
    with pytest.raises(UsageError, match="both arena and slots"):
        load_options({"arena": "25%", "slots": 4}, {})


def test_every_option_is_a_variable(monkeypatch, demo_path, tmp_path):
    copy = tmp_path / "copy.gguf"
    copy.symlink_to(demo_path)
    monkeypatch.setenv("ESKER_MODEL", str(copy))
    monkeypatch.setenv("ESKER_CONTEXT", "64")
    monkeypatch.setenv("ESKER_CHUNK", "16")
    monkeypatch.setenv("ESKER_SLOTS", "16")
    with esker.Model() as model:
        assert model.path == str(copy)
        assert (model.plan["context"], model.plan["chunk"]) == (64, 16)
        assert sum(c["slots"] for c in model.plan["classes"]) == 16 * 8


@pytest.mark.parametrize(
    ("name", "value", "want"),
    [
        ("memory", "8XB", "a size such as 8GB"),
        ("context", -5, "a whole number from 0"),
        ("threads", "two", "a whole number from 0"),
        ("slots", 1.5, "a whole number from 0"),
        ("backend", "gpu", "one of auto, cpu, metal, cuda"),
        ("ngram_table", "", "a path"),
        ("chunk", True, "a whole number from 0"),
    ],
)
def test_bad_option_names_option_got_and_want(monkeypatch, name, value, want):
    with pytest.raises(UsageError) as caught:
        esker.Model(**{name: value})
    assert f"[options] {name}: got {value!r}, want {want}" in str(caught.value)
    if value:
        monkeypatch.setenv(f"ESKER_{name.upper()}", str(value).replace("True", "yes"))
        with pytest.raises(UsageError, match=rf"environment variable ESKER_{name.upper()}\)"):
            esker.Model()


# Errors and names


def test_errors_are_the_builtins_they_resemble(tmp_path):
    with pytest.raises(esker.ReadError) as caught:
        esker.Model(tmp_path / "none.gguf")
    assert isinstance(caught.value, OSError) and isinstance(caught.value, esker.EskerError)
    (tmp_path / "bad.gguf").write_bytes(b"this is no model")
    with pytest.raises(esker.FormatError) as caught:
        esker.Model(tmp_path / "bad.gguf")
    assert isinstance(caught.value, ValueError) and "bad.gguf" in caught.value.message
    with pytest.raises(esker.PlanError) as caught:
        esker.Model(memory="1MB")
    assert isinstance(caught.value, MemoryError) and caught.value.hint
    assert issubclass(esker.DeviceError, RuntimeError)
    assert issubclass(esker.NumericError, ArithmeticError)


def test_every_public_name_is_there():
    for name in esker.__all__:
        assert getattr(esker, name) is not None
    assert set(esker.__all__) <= set(dir(esker))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = esker.nothing


def test_stub_names_what_the_native_module_has():
    import ast
    from pathlib import Path

    from esker import _core

    stub = ast.parse((Path(esker.__file__).parent / "_core.pyi").read_text())
    for node in stub.body:
        if isinstance(node, ast.FunctionDef):
            assert callable(getattr(_core, node.name))
        elif isinstance(node, ast.ClassDef):
            members = {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
            there = {name for name in dir(getattr(_core, node.name)) if not name.startswith("_")}
            assert members - {"__init__"} == there
