# SPDX-License-Identifier: MIT
"""The tokenizer: the ids of the tokenizer.json that the demo model was trained with, and the rules
around them (control tokens, bytes that are no text, files that are wrong).

data/tokenizer_vectors.json holds those ids; to make it again, where the tokenizer.json is:

    python tests/test_tokenizer.py TOKENIZER_JSON
"""

import json
import random
import sys
from pathlib import Path

import pytest
from esker import FormatError, Tokenizer, UsageError, _core
from hypothesis import given, settings
from hypothesis import strategies as st

VECTORS = Path(__file__).resolve().parent / "data" / "tokenizer_vectors.json"
DEMO = Path(__file__).resolve().parents[1] / "python" / "esker" / "data" / "esker-demo.gguf"

BYTE_CHARS = [
    chr(b) if 0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or b >= 0xAE else None for b in range(256)
]
_spare = iter(range(0x100, 0x200))
BYTE_CHARS = [char or chr(next(_spare)) for char in BYTE_CHARS]


@pytest.fixture(scope="module")
def demo():
    return Tokenizer(_core.file_metadata(str(DEMO)), "demo")


def metadata(**changes):
    """A small vocabulary: the bytes, two merges, an unused, two control and a user-defined token.

    Keys of `changes` lack their prefix; None takes the key away.
    """
    tokens = [*BYTE_CHARS, "ab", "abc", "[PAD]", "<|im_start|>", "<|im_end|>", "<think>"]
    keys = {
        "model": "gpt2",
        "pre": "qwen35",
        "tokens": tokens,
        "token_type": [1] * 258 + [5, 3, 3, 4],
        "merges": ["a b", "ab c"],
        "eos_token_id": 260,
        **changes,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items() if value is not None}


def small(**changes):
    return Tokenizer(metadata(**changes), "small.gguf")


def vectors():
    return json.loads(VECTORS.read_text(encoding="utf-8"))["vectors"]


def test_ids_are_those_of_training(demo):
    for vector in vectors():
        text = vector["text"]
        assert demo.encode(text) == vector["ids"], text
        assert demo.encode(text, special=True) == vector.get("special", vector["ids"]), text
        assert demo.decode(vector["ids"]) == text


def test_facts_are_those_of_the_file(demo):
    assert (demo.kind, demo.pre, demo.n_vocab) == ("gpt2", "qwen35", 4096)
    assert (demo.bos, demo.eos, demo.add_bos) == (None, 4093, False)
    assert demo.stop_tokens == {4093, 4095}
    assert demo.token_id("<|im_start|>") == 4094
    assert demo.token_text(4095) == "<|im_end|>" and demo.token_text(None) == ""


@settings(deadline=None, max_examples=150)
@given(st.text())
def test_any_text_comes_back(demo, text):
    # Lone surrogates are no text; everything else is.
    text = text.encode("utf-8", "replace").decode()
    assert demo.decode(demo.encode(text)) == text
    assert demo.decode(demo.encode(text, special=True), special=True) == text


@settings(deadline=None, max_examples=150)
@given(st.one_of(st.binary(), st.lists(st.sampled_from([b"\xff", b"\xc3", b"\xa9", b"a", b" "]))))
def test_any_bytes_come_back(demo, data):
    data = data if isinstance(data, bytes) else b"".join(data)
    ids = demo.encode(data)
    assert demo.tokens_to_bytes(ids) == data
    assert demo.decode(ids) == data.decode("utf-8", "replace")
    assert demo.encode(data.decode("utf-8", "surrogateescape")) == ids


def test_surrogate_that_escapes_no_byte_is_replaced(demo):
    assert demo.decode(demo.encode("a\ud800b")) == "a\ufffdb"


def test_control_tokens_stay_text_unless_asked_for():
    tokenizer = small()
    text = "ab<|im_end|>"
    assert tokenizer.encode(text) == [256, *map(ord, "<|im_end|>")]
    assert tokenizer.encode(text, special=True) == [256, 260]
    assert tokenizer.decode([256, 260]) == "ab"
    assert tokenizer.decode([256, 260], special=True) == text


def test_shield_keeps_a_control_token_text():
    tokenizer = small()
    shielded = tokenizer.shield_control("x<|im_end|>y", "\ufdd0")
    assert shielded == "x<\ufdd0|im_end|>y"
    ids = tokenizer.encode(shielded + "<|im_end|>", special=True, shield="\ufdd0")
    assert ids == [*tokenizer.encode("x<|im_end|>y"), 260]


def test_user_defined_tokens_always_count_and_have_text():
    tokenizer = small()
    assert tokenizer.encode("ab<think>abc") == [256, 261, 257]
    assert tokenizer.decode([256, 261, 257]) == "ab<think>abc"


def test_longest_of_overlapping_tokens_wins():
    base = metadata()
    tokens = [*base["tokenizer.ggml.tokens"], "<think>er"]
    tokenizer = small(tokens=tokens, token_type=[1] * 258 + [5, 3, 3, 4, 4])
    assert tokenizer.encode("<think>er<think>e") == [262, 261, *tokenizer.encode("e")]


def test_unused_and_padding_tokens_have_no_text():
    tokenizer = small()
    assert tokenizer.decode([258, 262, 100000]) == ""
    assert 258 not in tokenizer.encode("[PAD]", special=True)
    with pytest.raises(UsageError, match="token id: got -1"):
        tokenizer.decode([-1])


def test_bos_is_put_in_front_where_the_file_wants_it():
    assert small(bos_token_id=259, add_bos_token=True).encode("ab", bos=True) == [259, 256]
    assert small(bos_token_id=259, add_bos_token=True).encode("ab") == [256]
    assert small(bos_token_id=259, add_bos_token=False).encode("ab", bos=True) == [256]
    assert small(bos_token_id=259).encode("ab", bos=True) == [256]
    assert small(bos_token_id=259, pre="llama-bpe").encode("ab", bos=True) == [259, 256]


def test_stop_tokens_are_eos_eot_and_the_known_control_tokens():
    assert small().stop_tokens == {260}
    assert small(eos_token_id=258, eot_token_id=259).stop_tokens == {258, 259, 260}
    assert small(eos_token_id=None, token_type=None).stop_tokens == set()


TEXT = "I'VE  1234 deja\u0300 vu!!\n\n (x)"
SPLITS = {
    "qwen35": ["I", "'VE", " ", " ", "1", "2", "3", "4", " deja\u0300", " vu", "!!\n\n", " (", "x", ")"],
    "qwen2": ["I", "'VE", " ", " ", "1", "2", "3", "4", " deja", "\u0300", " vu", "!!\n\n", " (", "x", ")"],
    "llama-bpe": ["I", "'VE", " ", " ", "123", "4", " deja", "\u0300", " vu", "!!\n\n", " (", "x", ")"],
    "gpt-2": ["I", "'", "VE", " ", " 1234", " deja", "\u0300", " vu", "!!", "\n\n", " (", "x", ")"],
    "default": ["I", "'", "VE", " ", " ", "123", "4", " deja", "\u0300", " vu", "!!", "\n\n ", "(", "x", ")"],
}  # fmt: skip


@pytest.mark.parametrize("pre", SPLITS)
def test_pre_tokenizer_cuts_as_its_name_says(pre):
    tokenizer = small(pre=pre)
    cuts = tokenizer._bpe.pre_tokenizer.pre_tokenize_str(TEXT)
    assert [TEXT[begin:end] for _, (begin, end) in cuts] == SPLITS[pre]


def test_whole_cuts_are_tokens_where_merges_are_ignored():
    changes = {"merges": ["a b"]}
    assert small(pre="llama-bpe", **changes).encode("abc") == [257]
    assert small(pre="qwen35", **changes).encode("abc") == [256, *small().encode("c")]


def test_byte_without_token_is_named_or_unknown():
    tokens = ["zz" if token == "z" else token for token in metadata()["tokenizer.ggml.tokens"]]
    tokenizer = small(tokens=tokens)
    assert tokenizer.encode("ab") == [256]
    with pytest.raises(UsageError, match=r"no token for byte 0x7A \(small.gguf\)"):
        tokenizer.encode("abz")
    assert small(tokens=tokens, unknown_token_id=258).encode(b"\xffz") == [0xFF, 258]


WRONG = [
    ({"model": None}, "tokenizer.ggml.model: the file has no such key"),
    ({"model": "llama"}, "tokenizer.ggml.model: got 'llama', want gpt2"),
    ({"model": 3}, "tokenizer.ggml.model: got 3, want text"),
    ({"pre": None}, "tokenizer.ggml.pre: the file has no such key"),
    ({"pre": "quux"}, "tokenizer.ggml.pre: got 'quux', want one of default, gpt-2"),
    ({"tokens": None}, "tokenizer.ggml.tokens: the file has no such key"),
    ({"tokens": []}, "tokenizer.ggml.tokens: got [], want at least one token"),
    ({"tokens": "abc"}, "tokenizer.ggml.tokens: got 'abc', want an array of texts"),
    ({"tokens": ["a", 1]}, "tokenizer.ggml.tokens[1]: got 1, want an array of texts"),
    ({"token_type": [1]}, "length of tokenizer.ggml.token_type: got 1, want 262, one a token"),
    ({"token_type": [1] * 261 + [9]}, "tokenizer.ggml.token_type[261]: got 9, want 0 to 6"),
    ({"token_type": [1.0] * 262}, "tokenizer.ggml.token_type[0]: got 1.0, want an array of int"),
    ({"merges": None}, "tokenizer.ggml.merges: the file has no such key"),
    ({"merges": [1, 2]}, "tokenizer.ggml.merges[0]: got 1, want an array of texts"),
    ({"merges": ["ab"]}, "tokenizer.ggml.merges[0]: got 'ab', want two tokens with a space"),
    ({"merges": ["a b c"]}, "tokenizer.ggml.merges[0]: got 'a b c', want two tokens"),
    ({"merges": ["a b", "ab q"]}, "merges[1]: got 'ab q', want tokens of the vocabulary, 'abq' is"),
    ({"merges": ["a bb"]}, "merges[0]: got 'a bb', want tokens of the vocabulary, 'bb' is not one"),
    ({"eos_token_id": 262}, "tokenizer.ggml.eos_token_id: got 262, want a token id, 0 to 261"),
    ({"bos_token_id": "x"}, "tokenizer.ggml.bos_token_id: got 'x', want a token id"),
    ({"add_bos_token": "yes"}, "tokenizer.ggml.add_bos_token: got 'yes', want true or false"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG)
def test_wrong_file_names_key_got_and_want(changes, message):
    with pytest.raises(FormatError) as caught:
        small(**changes)
    assert message in str(caught.value)
    assert "small.gguf" in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_token_that_is_not_utf8_is_refused():
    tokens = ["\udcff" if t == "[PAD]" else t for t in metadata()["tokenizer.ggml.tokens"]]
    with pytest.raises(FormatError, match=r"tokens\[258\]: got '\\udcff', want UTF-8"):
        small(tokens=tokens)


def sample_texts():
    """Texts that find differences: every kind of character, at every kind of border."""
    fixed = [
        "",
        " ",
        "  ",
        "\n",
        "\r\n",
        "\t\tif x:\n\t\t\treturn 1\n",
        "Hello, world!",
        "How does SQLite store a table?  It uses a B-tree.\n\nEach page holds rows.",
        "I've we'll they're it's I'm he'd can't",
        "I'VE WE'LL THEY'RE IT'S I'M HE'D CAN'T",
        "'s 'S 'ſ ’s",
        "0 1 12 123 1234 12345 1,234.56 -7 0x1F 1e-9 ٣٤ ½ ² Ⅷ",
        "SELECT a, b FROM t WHERE a >= 10 AND b != 'x' -- comment",
        'def f(x: int) -> str:\n    return f"{x!r}"  # ok\n',
        "In the beginning God created the heaven and the earth.",
        "naïve café déjà vu Ångström Straße İstanbul",
        "e\u0301a\u0300o\u0302 \u0301 x\u0323\u0307y",
        "你好，世界！今天是星期三。",
        "こんにちは世界、カタカナ ｶﾀｶﾅ",
        "안녕하세요 세계",
        "Привет, мир! Ελληνικά עברית العربية",
        "हिन्दी में कि क्षि বাংলা ไทยภาษา",
        "🎉 👍🏽 👩‍👩‍👧‍👦 🇩🇪🇫🇷 ❤️ 🤷🏾‍♀️",
        "a\u00a0b\u2003c\u3000d\u200be\ufefff\u2028g",
        "trailing spaces   \nnext   \n   indented\n\n\n\nend   ",
        "a  b   c    d     e",
        "\n \n  \n   \n",
        "!!! ... --- === ??? @#$%^&*()",
        "http://example.org/path?x=1&y=%20#frag",
        "<|endoftext|>",
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
        "text with <|im_end|> inside, <|im_end|<|im_end|>> and <|nothing|>",
        "\x00\x01\x7f\x80\u0378",
        "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 𒀀",
        "a" * 100,
        "ab" * 50 + " " * 33 + "\n" * 9,
    ]
    rng = random.Random(20260401)
    borders = list("abZé日🎉\u0301٣7 \n\r\t'’.-_\u00a0") + ["'ll", "'S", "  ", " the", "<|im_end|>"]
    for _ in range(60):
        fixed.append("".join(rng.choice(borders) for _ in range(rng.randint(2, 24))))
    planes = [(0x20, 0x7F), (0xA0, 0x600), (0x900, 0xE00), (0x3000, 0xA000), (0x1F300, 0x1FA00)]
    for _ in range(30):
        low, high = rng.choice(planes)
        fixed.append("".join(chr(rng.randrange(low, high)) for _ in range(rng.randint(4, 16))))
    return fixed


def write_vectors(source):
    from tokenizers import Tokenizer as Trained

    trained = Trained.from_file(source)
    lines = []
    for text in sample_texts():
        trained.encode_special_tokens = True
        vector = {"text": text, "ids": trained.encode(text).ids}
        trained.encode_special_tokens = False
        special = trained.encode(text).ids
        if special != vector["ids"]:
            vector["special"] = special
        lines.append(json.dumps(vector))
    head = '{"source": "tokenizer.json of the demo model, as trained", "vectors": [\n'
    VECTORS.write_text(head + ",\n".join(lines) + "\n]}\n", encoding="utf-8")


if __name__ == "__main__":
    write_vectors(sys.argv[1])
