# SPDX-License-Identifier: MIT
"""Tokens to text as they come: the detokenizer, stop strings, and what sampling options do.

The properties compare streaming with the same thing done at once.
"""

import pytest
from esker import Detokenizer, StopFilter, Tokenizer, UsageError, _core
from hypothesis import given, settings
from hypothesis import strategies as st

VOCABULARY = [bytes([byte]) for byte in range(256)] + ["é".encode(), b"the", b" \xe2\x82"]


class ByteTokens:
    """What a Detokenizer needs of a tokenizer: the bytes of a token."""

    def token_bytes(self, token, *, special=False):
        return VOCABULARY[token]

    def decode(self, tokens):
        return b"".join(VOCABULARY[token] for token in tokens).decode("utf-8", "replace")


def pushed(tokens):
    detokenizer = Detokenizer(ByteTokens())
    return [detokenizer.push(token) for token in tokens], detokenizer.finish()


utf8_tokens = st.text(min_size=1).map(lambda text: list(text.encode("utf-8", "replace")))
any_tokens = st.lists(st.integers(0, len(VOCABULARY) - 1))


@settings(deadline=None, max_examples=300)
@given(st.one_of(any_tokens, utf8_tokens))
def test_pieces_joined_are_the_text_at_once(tokens):
    pieces, rest = pushed(tokens)
    assert "".join(pieces) + rest == ByteTokens().decode(tokens)


@settings(deadline=None, max_examples=200)
@given(utf8_tokens)
def test_no_piece_holds_part_of_a_character(tokens):
    pieces, rest = pushed(tokens)
    assert rest == "" and "\ufffd" not in "".join(pieces).replace(ByteTokens().decode(tokens), "")
    for count in range(len(tokens)):
        whole = bytes(tokens[: count + 1]).decode("utf-8", "ignore")
        assert "".join(pieces[: count + 1]) == whole


def test_character_comes_with_its_last_byte():
    pieces, rest = pushed([*"é€😀".encode(), ord("x")])
    assert pieces == ["", "é", "", "", "€", "", "", "", "😀", "x"] and rest == ""


def test_character_that_never_ends_is_one_replacement():
    assert pushed([*"😀".encode()[:3]]) == (["", "", ""], "\ufffd")
    assert pushed([*"😀".encode()[:2], ord("a")]) == (["", "", "\ufffda"], "")
    assert pushed([]) == ([], "")


def at_once(text, stops):
    """The text before the stop string that is complete first; of those, the longest."""
    for end in range(1, len(text) + 1):
        matches = [stop for stop in stops if text[:end].endswith(stop)]
        if matches:
            return text[: end - max(map(len, matches))], True
    return text, False


def filtered(pieces, stops):
    stop = StopFilter(stops)
    out = []
    for piece in pieces:
        out.append(stop.push(piece))
        if stop.stopped:
            break
    return out, stop


few_letters = st.text("ab.", max_size=6)


@settings(deadline=None, max_examples=500)
@given(st.lists(few_letters), st.lists(st.text("ab.", min_size=1, max_size=4), max_size=4))
def test_stop_strings_across_pieces_are_as_in_the_whole_text(pieces, stops):
    out, stop = filtered(pieces, stops)
    shown = "".join(out) + stop.finish()
    assert (shown, stop.stopped) == at_once("".join(pieces), stops)


@settings(deadline=None, max_examples=300)
@given(st.lists(few_letters), st.lists(st.text("ab.", min_size=1, max_size=4), max_size=4))
def test_only_what_may_begin_a_stop_string_is_held(pieces, stops):
    out, stop = filtered(pieces, stops)
    if not stop.stopped:
        held = "".join(pieces)[len("".join(out)) :]
        assert held == "" or any(text.startswith(held) and text != held for text in stops)
        assert stop.finish() == held


def test_text_before_the_stop_string_is_let_go():
    out, stop = filtered(["The e", "nd.", "\n\nQ", ": no"], ["\n\nQ:"])
    assert out == ["The e", "nd.", "", ""] and stop.stopped and stop.finish() == ""
    assert stop.push("more") == ""


def test_one_stop_string_need_not_be_in_a_list():
    assert filtered(["one STOP two"], "STOP")[0] == ["one "]


@pytest.mark.parametrize("stop", ["", [""], ["a", ""], [3], [None], 3])
def test_stop_string_must_be_text(stop):
    with pytest.raises(UsageError, match=r"\[options\] stop: got .*, want texts of one char"):
        StopFilter(stop)


@pytest.fixture(scope="module")
def demo(open_model, demo_path):
    return open_model(demo_path)


def test_greedy_takes_the_likeliest_token(demo):
    session = demo.session()
    for piece in session.generate("The table", max_tokens=6, temperature=0):
        session_again = demo.session()
        session_again.prefill(session.tokens[:-1])
        assert piece.token == session_again.logits().argmax()


def test_top_k_of_one_is_greedy(demo):
    greedy = demo.complete("The LORD", max_tokens=8, temperature=0)
    assert demo.complete("The LORD", max_tokens=8, top_k=1, temperature=3).tokens == greedy.tokens
    assert demo.complete("The LORD", max_tokens=8, min_p=1, seed=7).tokens == greedy.tokens


def test_seed_repeats_and_differs(demo):
    first = demo.complete("The", max_tokens=12, seed=11, temperature=1.5)
    again = demo.complete("The", max_tokens=12, seed=11, temperature=1.5)
    other = demo.complete("The", max_tokens=12, seed=12, temperature=1.5)
    assert first.tokens == again.tokens and first.seed == 11
    assert first.tokens != other.tokens


def test_seed_that_was_drawn_is_reported(demo):
    drawn = demo.complete("The", max_tokens=8, temperature=1.5)
    assert drawn.seed != demo.complete("The", max_tokens=1).seed
    again = demo.complete("The", max_tokens=8, temperature=1.5, seed=drawn.seed)
    assert again.tokens == drawn.tokens


@pytest.mark.parametrize(
    ("option", "value", "want"),
    [
        ("temperature", -0.1, "a number from 0"),
        ("temperature", float("nan"), "a number from 0"),
        ("temperature", "warm", "a number from 0"),
        ("top_k", -1, "a whole number from 0"),
        ("top_k", 2.5, "a whole number from 0"),
        ("top_p", 0, "a number above 0, at most 1"),
        ("top_p", 1.5, "a number above 0, at most 1"),
        ("min_p", -0.5, "a number from 0 to 1"),
        ("min_p", True, "a number from 0 to 1"),
        ("seed", -1, "a whole number from 0 to 2"),
        ("seed", 2**64, "a whole number from 0 to 2"),
        ("max_tokens", -2, "a whole number from 0, or -1"),
    ],
)
def test_sampling_option_out_of_range_is_named(demo, option, value, want):
    with pytest.raises(UsageError) as caught:
        demo.generate("x", **{option: value})
    assert f"[options] {option}: got {value!r}, want {want}" in str(caught.value)


def test_pieces_joined_are_the_completion(demo):
    tokenizer = demo.tokenizer
    generation = demo.generate("Unicode", max_tokens=12, seed=3, temperature=2, top_p=1, min_p=0)
    pieces = list(generation)
    result = generation.result()
    assert "".join(piece.text for piece in pieces) == result.text
    assert result.text == tokenizer.decode(result.tokens)
    assert [piece.index for piece in pieces] == list(range(len(result.tokens)))
    assert [piece.finish_reason for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
    assert pieces[-1].finish_reason == result.finish_reason


def test_detokenizer_gives_the_text_of_the_real_vocabulary(demo_path):
    tokenizer = Tokenizer(_core.file_metadata(str(demo_path)))
    text = "naïve 日本語 🎉 e\u0301 <|im_end|>"
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.push(token) for token in tokenizer.encode(text)]
    assert "".join(pieces) + detokenizer.finish() == text
