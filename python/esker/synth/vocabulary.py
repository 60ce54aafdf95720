# SPDX-License-Identifier: MIT
"""A vocabulary for a model that never saw a text: every byte, a few merges, pseudo-words that no
text is cut into but that can be shown, and the control tokens."""

from __future__ import annotations

from itertools import count

_NORMAL, _CONTROL, _UNUSED = 1, 3, 5
_MERGES = ("t h", "th e", "i n", "a n", "e r", "o n", "Ġ t", "Ġ a")
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_REAL_VOCAB, _REAL_END = 248320, 248044
_SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]


def end_of_text(vocab: int) -> int:
    """The first control token: where the real model has it, else 16 from the end."""
    return _REAL_END if vocab == _REAL_VOCAB else vocab - 16


def _byte_chars() -> list[str]:
    """The characters that stand for the 256 bytes, in the order of GPT-2's vocabularies."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    spare = count(0x100)
    chars = {byte: chr(byte) for byte in plain}
    for byte in range(256):
        if byte not in chars:
            chars[byte] = chr(next(spare))
    return sorted(chars.values())


def _word(index: int) -> str:
    """A space and two or more syllables; another word for every index."""
    index += len(_SYLLABLES)
    text = ""
    while index:
        index, rest = divmod(index, len(_SYLLABLES))
        text = _SYLLABLES[rest] + text
    return "Ġ" + text


def vocabulary(vocab: int) -> tuple[list[str], list[int], list[str]]:
    """Tokens, their types, merges."""
    end = end_of_text(vocab)
    tokens = _byte_chars() + [merge.replace(" ", "") for merge in _MERGES]
    tokens += [_word(i) for i in range(end - len(tokens))]
    types = [_NORMAL] * len(tokens)
    tokens += CONTROL
    types += [_CONTROL] * len(CONTROL)
    types += [_UNUSED] * (vocab - len(tokens))
    tokens += [f"[PAD{i}]" for i in range(len(tokens), vocab)]
    return tokens, types, list(_MERGES)
