# SPDX-License-Identifier: MIT
"""What must not show in the logits: chunks, threads, the arena's size, other sessions, detours.

Where only the order of the same computations differs (threads, arena, sessions, saved states) the
bits are compared; where other kernels run (chunks) the values.
"""

import itertools

import numpy as np
import pytest
from support.compare import assert_bit_equal, assert_close, assert_close_and_same_top
from support.prompts import EOS, prompts, random_tokens
from support.tiny_model import TinyShape

CHUNK_LIMIT = 1e-4
CHUNKS = (1, 2, 3, 7, 64)
# Name -> QSA budget in tokens; past it a query chooses blocks.
BUDGETS = {"micro": 16, "a": 64}
MANY_EXPERTS = TinyShape(seed=5, layers=2, interval=2, experts=64, topk=5)


@pytest.fixture(params=["micro", "a"])
def name(request):
    return request.param


@pytest.fixture
def model(name, model_path, open_model):
    return open_model(model_path(name))


def tokens_with_resets(count, seed=3):
    """Random ids with the n-gram reset token strewn in, some of them side by side."""
    tokens = random_tokens(count, seed)
    for position in (5, 6, 7, 16, 19, 40, 63, 64, 65, count - 2):
        if 0 <= position < count:
            tokens[position] = EOS
    return tokens


def decoded(session, tokens):
    """Logits [T, vocab] of tokens fed one by one."""
    rows = []
    for token in tokens:
        session.decode(token)
        rows.append(session.logits())
    return np.stack(rows)


def chunk_then_decode(model, tokens, split):
    """Logits of a prompt in one go, then of the rest token by token: both graphs."""
    session = model.session()
    return np.concatenate([session.evaluate(tokens[:split]), decoded(session, tokens[split:])])


# ---- chunks --------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", ["eos300", "rep140"])
def test_chunks_give_the_same_logits(prompt, name, model):
    tokens = prompts()[prompt]
    assert len(tokens) > 2 * BUDGETS[name]
    whole = model.logits(tokens)
    for chunk in CHUNKS:
        logits = model.logits(tokens, chunk=chunk)
        assert_close_and_same_top(whole, logits, CHUNK_LIMIT, f"chunk {chunk}")


def test_quantised_chunks_give_the_same_logits(model_path, open_model):
    tokens = tokens_with_resets(150)
    for name in ("mq-mix1", "mq-mix2", "micro-f16"):
        model = open_model(model_path(name))
        whole = model.logits(tokens)
        for chunk in CHUNKS:
            logits = model.logits(tokens, chunk=chunk)
            assert_close_and_same_top(whole, logits, CHUNK_LIMIT, f"{name} chunk {chunk}")


def test_every_length_gives_the_rows_of_the_whole(name, model):
    tokens = tokens_with_resets(304)
    whole = model.logits(tokens)
    # Fewer of the long ones for the larger model: they are most of the time.
    long = range(289, 305) if name == "micro" else (289, 290, 291, 292, 304)
    for length in itertools.chain(range(1, 71), long):
        session = model.session()
        session.prefill(tokens[:length])
        row = session.logits()
        assert_close_and_same_top(whole[length - 1], row, CHUNK_LIMIT, f"length {length}")


def test_uneven_calls_give_the_same_logits(name, model):
    """Calls of every size, cut inside blocks, at resets and around the budget."""
    tokens = tokens_with_resets(260)
    whole = model.logits(tokens)
    session, rows, at = model.session(), [], 0
    for size in itertools.cycle((1, 2, 3, 4, 5, 7, 1, 1, 31, 33)):
        if at >= len(tokens):
            break
        rows.append(session.evaluate(tokens[at : at + size]))
        at += size
    assert_close_and_same_top(whole, np.concatenate(rows), CHUNK_LIMIT)


def test_prefill_and_decode_equal_evaluate(name, model):
    tokens, split = tokens_with_resets(2 * BUDGETS[name] + 30), BUDGETS[name] - 3
    whole = model.session().evaluate(tokens)
    session = model.session()
    session.prefill(tokens[:split])
    rows = [session.logits()]
    for token in tokens[split:]:
        session.decode(token)
        rows.append(session.logits())
    assert session.position == len(tokens) and list(session.tokens) == tokens
    assert_close_and_same_top(whole[split - 1 :], np.stack(rows), CHUNK_LIMIT)


# ---- threads and arena ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ["micro", "micro-f16", "a", "mq-mix1", "mq-mix2"])
def test_threads_do_not_show(name, model_path, open_model):
    tokens = tokens_with_resets(130)
    want = None
    for threads in (1, 2, 3):
        model = open_model(model_path(name), threads=threads)
        got = chunk_then_decode(model, tokens, 90)
        want = got if want is None else want
        assert_bit_equal(want, got, f"{threads} threads")


# Layers share the arena, so that a prompt meets fewer slots than a layer has experts, and comes in
# rounds, only where slots * layers is less than their number.
@pytest.mark.parametrize(
    "name, slots",
    [
        ("micro", (1, 2, 3, 4, 6)),
        ("a", (1, 4, 5, 9, 16)),
        ("mq-mix1", (1, 2, 3, 4)),
        ("b", (3, 10, 17, 32)),
        ("many", (3, 5, 11, 30, 64)),
    ],
)
def test_arena_size_does_not_show(name, slots, model_path, tiny_model):
    """From room for little more than one token's experts up to room for all."""
    import esker

    path = tiny_model(name, MANY_EXPERTS) if name == "many" else model_path(name)
    tokens = tokens_with_resets(110)
    want = None
    for count in reversed(slots):
        with esker.Model(str(path), slots=count) as model:
            got = chunk_then_decode(model, tokens, 70)
        want = got if want is None else want
        assert_bit_equal(want, got, f"{count} slots a layer")


def test_arena_share_does_not_show(model_path, open_model):
    import esker

    tokens = tokens_with_resets(110)
    want = chunk_then_decode(open_model(model_path("a")), tokens, 70)
    for share in ("25%", "60%", "100%"):
        with esker.Model(str(model_path("a")), arena=share) as model:
            assert_bit_equal(want, chunk_then_decode(model, tokens, 70), share)


# ---- sessions ------------------------------------------------------------------------------


def test_long_prompt_between_leaves_no_trace(name, model):
    short, long = tokens_with_resets(9), random_tokens(10 * BUDGETS[name] + 1, seed=8)
    first = model.logits(short)
    model.logits(long)
    assert_bit_equal(first, model.logits(short))


@pytest.mark.parametrize("arena", [{}, {"slots": 2}], ids=["all", "small"])
def test_interleaved_sessions_equal_separate_ones(arena, name, model, model_path, open_model):
    shared = open_model(model_path(name), **arena)
    count = 2 * BUDGETS[name] + 21
    texts = tokens_with_resets(count), random_tokens(count, seed=9)
    alone = [chunk_then_decode(model, text, 10) for text in texts]
    sessions = [shared.session(), shared.session()]
    rows = [[s.evaluate(text[:10])] for s, text in zip(sessions, texts)]
    for pair in zip(*(text[10:] for text in texts)):
        for session, token, out in zip(sessions, pair, rows):
            session.decode(token)
            out.append(session.logits()[None])
    for want, got in zip(alone, rows):
        assert_bit_equal(want, np.concatenate(got))


@pytest.mark.parametrize("offset", [-6, 1, 22])
def test_fork_goes_on_by_itself(offset, name, model):
    split = BUDGETS[name] + offset
    start, one, other = (random_tokens(n, seed) for n, seed in ((split, 1), (40, 2), (40, 4)))

    def alone(rest):
        session = model.session()
        session.prefill(start)
        return decoded(session, rest)

    session = model.session()
    session.prefill(start)
    twin = session.fork()
    assert twin.position == split and list(twin.tokens) == start
    assert_bit_equal(session.logits(), twin.logits())
    # Alternately, so that anything shared would be overwritten.
    rows, twin_rows = [], []
    for a, b in zip(one, other):
        session.decode(a)
        twin.decode(b)
        rows.append(session.logits())
        twin_rows.append(twin.logits())
    assert_bit_equal(alone(one), np.stack(rows), "the session")
    assert_bit_equal(alone(other), np.stack(twin_rows), "its fork")


# Counted from the budget: well before it, inside a block, at a block's end, after it.
@pytest.mark.parametrize("offset", [-10, -3, 0, 1, 2, 25])
def test_rewind_forgets_the_detour(offset, name, model):
    split = BUDGETS[name] + offset
    start, rest = tokens_with_resets(split, seed=1), random_tokens(30, seed=2)
    detours = random_tokens(3 * BUDGETS[name], seed=4), random_tokens(1, seed=5), [EOS] * 5
    session = model.session()
    session.prefill(start)
    at_split = session.logits()
    want = decoded(session, rest)

    session = model.session()
    session.prefill(start)
    point = session.checkpoint()
    for detour in detours:
        session.prefill(detour)
        session.rewind(point)
        assert session.position == split and list(session.tokens) == start
        assert_bit_equal(at_split, session.logits())
    assert_bit_equal(want, decoded(session, rest))
    session.rewind(point)
    assert_bit_equal(want, decoded(session, rest), "the second time")


def test_rewind_and_fork_work_before_the_first_token(model):
    tokens = tokens_with_resets(40)
    want = model.session().evaluate(tokens)
    session = model.session()
    start, twin = session.checkpoint(), session.fork()
    session.prefill(random_tokens(70, seed=2))
    session.rewind(start)
    assert session.position == 0 and list(session.tokens) == []
    assert_bit_equal(want, session.evaluate(tokens))
    assert_bit_equal(want, twin.evaluate(tokens))


def test_rewind_inside_a_chunk_goes_on_in_chunks(name, model):
    """The point lies where no chunk of the uninterrupted prompt ends."""
    tokens = tokens_with_resets(3 * BUDGETS[name] + 40)
    whole = model.logits(tokens)
    session = model.session()
    session.prefill(tokens[:37], chunk=16)
    point = session.checkpoint()
    session.prefill(random_tokens(50, seed=6), chunk=16)
    session.rewind(point)
    got = session.evaluate(tokens[37:], chunk=16)
    assert_close_and_same_top(whole[37:], got, CHUNK_LIMIT)


def test_rewind_to_an_earlier_point_drops_the_later(model):
    import esker

    session = model.session()
    session.prefill(random_tokens(20, seed=1))
    early = session.checkpoint()
    session.prefill(random_tokens(20, seed=2))
    want = session.logits()
    late = session.checkpoint()
    session.decode(3)
    session.rewind(late)
    assert_bit_equal(want, session.logits())
    session.rewind(early)
    assert session.position == 20
    with pytest.raises(esker.EskerError):
        session.rewind(late)
    assert session.position == 20


@pytest.mark.parametrize("offset", [-9, 2, 30])
def test_saved_session_goes_on_elsewhere(offset, name, model, model_path, tmp_path):
    """In the same model, and in one opened anew with other threads and another arena."""
    import esker

    start, rest = tokens_with_resets(BUDGETS[name] + offset), random_tokens(40, seed=2)
    session = model.session()
    session.prefill(start)
    session.save(str(tmp_path / "session"))
    at_split, want = session.logits(), decoded(session, rest)

    used = model.session()
    used.prefill(random_tokens(50, seed=3))
    with esker.Model(str(model_path(name)), threads=1, slots=5) as other:
        for restored in (used, model.session(), other.session()):
            restored.restore(str(tmp_path / "session"))
            assert list(restored.tokens) == start
            assert_bit_equal(at_split, restored.logits())
            assert_bit_equal(want, decoded(restored, rest))


def test_repeated_runs_are_bit_equal(model):
    tokens = prompts()["n300"]
    first = model.logits(tokens)
    assert_bit_equal(first, model.logits(tokens))
    assert_close(first, model.session().evaluate(tokens), 0.0)
