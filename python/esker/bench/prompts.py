# SPDX-License-Identifier: MIT
"""The tokens that a bench reads: real text, a file of ids, or a seeded stream of them.

The tokens after the prompt are stated too: decoding feeds them whatever the model would say, so
that every run, and the peer, does the same work.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import _core
from ..errors import EskerError, ReadError, UsageError, fault
from ..tokenizer import Tokenizer
from .records import new_prompt

TEXT = Path(__file__).parent / "data" / "eskers.txt"
SYNTHETIC = "esker.synth.plain_tokens"  # esker synth's files say how many ids stand for words


@dataclass(frozen=True)
class Stream:
    """Tokens and where they come from; with a tokenizer they are a text."""

    tokens: list[int]
    source: str
    tokenizer: Tokenizer | None = None

    def cut(self, begin: int, end: int, why: str = "") -> list[int]:
        """tokens[begin:end].  Raises UsageError if there are not so many."""
        if end > len(self.tokens):
            hint = "a longer text (--prompt-file, --tokens), or fewer tokens (--prefill, --decode)"
            raise UsageError(
                fault(
                    "bench",
                    f"tokens{why} in {self.source}",
                    got=len(self.tokens),
                    want=f"at least {end}",
                    hint=hint,
                )
            )
        return self.tokens[begin:end]

    def record(self, tokens: Sequence[int], note: str = "") -> dict[str, Any]:
        """For the result file: ids in full, and the text where they are one."""
        text = self.tokenizer.decode(tokens, special=True) if self.tokenizer else None
        return new_prompt(tokens, source=self.source + note, text=text)


def make_stream(
    model: str,
    *,
    text_file: str | None = None,
    tokens: Sequence[int] | None = None,
    tokens_file: str = "",
    seed: int | None = None,
    count: int = 0,
) -> Stream:
    """What was asked for; else the package's text, or where a model has no words for it (a
    synthetic one, or no usable vocabulary) a seeded stream of `count` tokens."""
    n_vocab = int(_core.file_info(model)["config"]["n_vocab"])
    if tokens is not None:
        for token in tokens:
            if not 0 <= token < n_vocab:
                want = f"0 to {n_vocab - 1}, the model's vocabulary"
                raise UsageError(fault("bench", "token", got=token, want=want, where=tokens_file))
        return Stream(list(tokens), tokens_file)
    metadata = _core.file_metadata(model)
    if seed is not None or (SYNTHETIC in metadata and text_file is None):
        return _seeded_stream(n_vocab, metadata.get(SYNTHETIC), seed or 0, count)
    try:
        tokenizer = Tokenizer(metadata, model)
    except EskerError:
        if text_file is not None:
            raise
        return _seeded_stream(n_vocab, None, 0, count)
    return Stream(tokenizer.encode(_read(text_file or TEXT)), text_file or TEXT.name, tokenizer)


def _seeded_stream(n_vocab: int, n_words: int | None, seed: int, count: int) -> Stream:
    """Evenly drawn ids; for a model of esker synth ids that stay in a topic as texts do."""
    if n_words is None:
        draw = random.Random(seed)
        tokens = [draw.randrange(n_vocab) for _ in range(count)]
        return Stream(tokens, f"random ids below {n_vocab}, seed {seed}")
    from ..synth.routing import STAY, token_stream

    tokens = [int(token) for token in token_stream(count, seed, n_vocab=n_words)]
    return Stream(tokens, f"ids below {n_words} that stay in a topic for {STAY}, seed {seed}")


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        why = f"cannot read the prompt file: {error.strerror}"
        raise ReadError(fault("bench", why, where=str(path))) from None
    except UnicodeDecodeError:
        raise UsageError(fault("bench", "the prompt file is not UTF-8", where=str(path))) from None
