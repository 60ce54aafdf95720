# SPDX-License-Identifier: MIT
"""Session, Generation and what they return.

Owns: the state of one text, the generation loop with its timings and counters, and the
conversation of a chat.  The mathematics and the streaming are the native module's.
One caller at a time: sessions of one model may not be used from two threads at once.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from . import _core
from .chat import SHIELD, Message
from .errors import UsageError, fault
from .options import SamplingOptions, sampling_options
from .tokenizer import Detokenizer, StopFilter

if TYPE_CHECKING:
    from .model import Model

Progress = Callable[[int, int], None]  # (tokens done, tokens in all)
Prompt = str | bytes | Sequence[int] | npt.NDArray[Any]

DEFAULT = sampling_options({})


@dataclass(frozen=True)
class Piece:
    """One generated token.

    text: the characters that are certain now; may be empty (half a character, the possible
        beginning of a stop string, a control token).
    token: its id.  index: counts from 0.
    finish_reason: None, and on the last piece "stop" (a token or string that ends the text),
        "length" (max_tokens reached) or "context" (no room left).
    """

    text: str
    token: int
    index: int
    finish_reason: str | None = None


@dataclass(frozen=True)
class Timings:
    """Seconds: load_s opening the model, prefill_s reading the prompt, first_token_s from the
    start to the first token, decode_s computing the tokens after the first one.
    tokens_per_s counts those tokens; 0 if there were none."""

    load_s: float
    prefill_s: float
    first_token_s: float
    decode_s: float
    tokens_per_s: float


@dataclass(frozen=True)
class Completion:
    """What a generation gave.

    text: up to the stop string, if one was met.  tokens: every token drawn, the one that ended
    the text included.  prompt_tokens: the ids that were read for it.
    finish_reason: as Piece's, or "interrupted", or "error".
    seed: gives the same tokens again.
    counters: of the expert stream, for this run; prompt_counters and decode_counters are its
    parts.  plan: the memory plan as applied.
    """

    text: str
    tokens: list[int]
    prompt_tokens: list[int]
    finish_reason: str
    seed: int
    timings: Timings
    counters: dict[str, int]
    prompt_counters: dict[str, int]
    decode_counters: dict[str, int]
    plan: dict[str, Any]


class Generation(Iterator[Piece]):
    """Pieces as they are generated.  Nothing is computed before the first is asked for.

    Attributes:
        seed: what the tokens are drawn with.
        finish_reason: None until the end.
    """

    def __init__(
        self,
        session: Session,
        tokens: list[int],
        options: SamplingOptions,
        stop: str | Sequence[str] | None,
        progress: Progress | None,
    ) -> None:
        session._check_room(len(tokens))
        self.seed = secrets.randbits(63) if options.seed is None else options.seed
        self.finish_reason: str | None = "interrupted"  # until all is checked
        self._session = session
        self._prompt = tokens
        self._max_tokens = options.max_tokens
        self._progress = progress
        self._sampler = _core.Sampler(
            options.temperature, options.top_k, options.top_p, options.min_p, self.seed
        )
        self._detokenizer = Detokenizer(session.model.tokenizer)
        self._stop = StopFilter(stop)
        self._texts: list[str] = []
        self._tokens: list[int] = []
        self._on_end: Callable[[Generation], None] | None = None
        self._prefill_s = self._first_token_s = self._decode_s = 0.0
        self._counters: list[dict[str, int]] = []  # at the start, after the prompt, at the end
        self._started = self._prompt_read = False
        self.finish_reason = None

    def __next__(self) -> Piece:
        if self.finish_reason is not None:
            raise StopIteration
        try:
            piece = self._step()
        except KeyboardInterrupt:
            self._end("interrupted")
            raise
        except BaseException:
            self._end("error")
            raise
        if piece is None:
            raise StopIteration
        return piece

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the model may be closed already
            self.close()

    @property
    def text(self) -> str:
        """The text so far, without what is held back."""
        return "".join(self._texts)

    def close(self) -> None:
        """Ends the generation; the session keeps what was generated."""
        if self.finish_reason is None:
            self._end("interrupted")

    def exhaust(self) -> Completion:
        """Generates to the end."""
        for _ in self:
            pass
        return self.result()

    def result(self) -> Completion:
        """What was generated.  Ends the generation if it is not at its end."""
        self.close()
        start, prompt, end = self._counters
        decoded = max(len(self._tokens) - 1, 0)
        return Completion(
            text=self.text,
            tokens=list(self._tokens),
            prompt_tokens=list(self._prompt),
            finish_reason=self.finish_reason or "",
            seed=self.seed,
            timings=Timings(
                load_s=self._session.model.load_s,
                prefill_s=self._prefill_s,
                first_token_s=self._first_token_s,
                decode_s=self._decode_s,
                tokens_per_s=decoded / self._decode_s if self._decode_s > 0 else 0.0,
            ),
            counters=_difference(end, start),
            prompt_counters=_difference(prompt, start),
            decode_counters=_difference(end, prompt),
            plan=self._session.model.plan,
        )

    def _step(self) -> Piece | None:
        begin = time.perf_counter()
        session = self._session
        first = not self._started
        if first:
            self._started = True
            self._count()
            session._prefill(self._prompt, 0, self._progress)
            self._prompt_read = True
            self._prefill_s = time.perf_counter() - begin
            self._count()
            if self._max_tokens == 0:
                self._end("length")
                return None
        token = self._sampler.sample(session.logits())
        session._pending = token
        reason, text = self._take(token)
        if reason:
            text += self._end(reason)
        spent = time.perf_counter() - begin
        if first:
            self._first_token_s = spent
        else:
            self._decode_s += spent
        return Piece(text, token, len(self._tokens) - 1, self.finish_reason)

    def _take(self, token: int) -> tuple[str | None, str]:
        """Adds a token: why it is the last one, if it is, and the text that it completes."""
        session = self._session
        self._tokens.append(token)
        if token in session.model.tokenizer.stop_tokens:
            session._pending = None  # ends the text, is no part of it
            return "stop", ""
        text = self._stop.push(self._detokenizer.push(token))
        self._texts.append(text)
        room = session._native.position < session.context
        if not room:
            session._pending = None
        if self._stop.stopped:
            return "stop", text
        if len(self._tokens) == self._max_tokens:
            return "length", text
        return (None if room else "context"), text

    def _end(self, reason: str) -> str:
        """Ends the generation; returns the text that was held back."""
        text = self._stop.push(self._detokenizer.finish())
        text += self._stop.finish()
        self._texts.append(text)
        self.finish_reason = reason
        while len(self._counters) < 3:
            self._count()
        if self._on_end:
            self._on_end(self)
        return text

    def _count(self) -> None:
        self._counters.append(self._session.model._engine.counters())


class Session:
    """The state of one text: what has been read, and what the model makes of it.

    Made by Model.session().  A session that an error or Ctrl-C interrupted is as it was before
    the call (prefill: before the chunk that was not finished), and usable.

    Attributes:
        model: the Model it belongs to.
        messages: the conversation so far, of generate(..., chat=True).
    """

    def __init__(self, model: Model, native: _core.Session | None = None) -> None:
        self.model = model
        self.messages: list[Message] = []
        self._held: _core.Session | None = native or model._engine.new_session()
        model._sessions.add(self)
        self._pending: int | None = None  # drawn, and not computed yet
        self._chat_text = ""  # what of the conversation the state has read
        self._chat_broken = False  # a turn was cut off while it was read
        self._running: weakref.ref[Generation] | None = None
        self._marks: dict[int, tuple[list[Message], str, bool]] = {}

    @property
    def tokens(self) -> list[int]:
        """Every token of the text so far, prompt and generated."""
        pending = [] if self._pending is None else [self._pending]
        return self._native.tokens + pending

    @property
    def position(self) -> int:
        """Number of tokens so far."""
        return self._native.position + (self._pending is not None)

    @property
    def context(self) -> int:
        """Most tokens that the session can hold."""
        return self._native.context

    def prefill(
        self,
        prompt: Prompt,
        *,
        special: bool = False,
        chunk: int = 0,
        progress: Progress | None = None,
    ) -> None:
        """Reads a prompt.  `chunk` tokens are computed together (0 = as the model was opened).

        Raises UsageError if the text grows beyond the context, or is empty.
        """
        self._stop()
        self._prefill(self.encode(prompt, special=special), chunk, progress)

    def decode(self, token: int) -> npt.NDArray[np.float32]:
        """Reads one token.  Returns the logits after it: float32 [vocab]."""
        self._stop()
        self._settle()
        self._native.decode(*self.model._token_ids([token]))
        return self._native.logits()

    def logits(self) -> npt.NDArray[np.float32]:
        """The logits after the last token: float32 [vocab].  UsageError if there is none yet."""
        self._settle()
        return self._native.logits()

    def evaluate(
        self, tokens: Prompt, *, special: bool = False, chunk: int = 0
    ) -> npt.NDArray[np.float32]:
        """Reads tokens, or a text.  Returns the logits after each: float32 [T, vocab]."""
        self._stop()
        ids = self.encode(tokens, special=special)
        self._settle()
        return self._native.evaluate(ids, chunk)

    def generate(
        self,
        prompt: Prompt | Sequence[Message] = "",
        *,
        max_tokens: int | None = DEFAULT.max_tokens,
        temperature: float = DEFAULT.temperature,
        top_k: int = DEFAULT.top_k,
        top_p: float = DEFAULT.top_p,
        min_p: float = DEFAULT.min_p,
        seed: int | None = None,
        stop: str | Sequence[str] | None = (),
        chat: bool = False,
        special: bool = False,
        progress: Progress | None = None,
    ) -> Generation:
        """Reads a prompt and continues it; see Model.generate.

        An empty prompt continues the text as it stands.  With `chat`, a str is the user's next
        message in this session's conversation, and a list of messages is the whole of it; what
        the session has read of it is not read again.
        """
        options = sampling_options(
            {
                "max_tokens": max_tokens,
                "temperature": temperature,
                "top_k": top_k,
                "top_p": top_p,
                "min_p": min_p,
                "seed": seed,
            }
        )
        self._stop()
        if chat:
            return self._generate_chat(prompt, options, stop, progress)
        tokens = self.encode(prompt, special=special)
        return self._start(tokens, options, stop, progress)

    def complete(self, prompt: Prompt | Sequence[Message] = "", **options: Any) -> Completion:
        """As generate, at once."""
        return self.generate(prompt, **options).exhaust()

    def fork(self) -> Session:
        """A session in the same state that goes its own way."""
        self._settle()
        other = Session(self.model, self._native.fork())
        other.messages = list(self.messages)
        other._chat_text, other._chat_broken = self._chat_text, self._chat_broken
        return other

    def checkpoint(self) -> int:
        """Remembers the state; rewind() with the number returned comes back to it."""
        self._settle()
        number = self._native.checkpoint()
        self._marks[number] = (list(self.messages), self._chat_text, self._chat_broken)
        return number

    def rewind(self, checkpoint: int) -> None:
        """Back to a checkpoint of this session, any number of times.  UsageError if there is no
        such checkpoint."""
        self._stop()
        self._native.rewind(checkpoint)
        self._pending = None
        messages, self._chat_text, self._chat_broken = self._marks[checkpoint]
        self.messages = list(messages)

    def reset(self) -> None:
        """Empties the session."""
        self._stop()
        self._restart()
        self.messages = []

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the state to a file.  Raises ReadError if that fails."""
        self._settle()
        self._native.save(os.fspath(path))

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Takes the state from a file that save() wrote, of the same model.

        Raises FormatError for another model's file or a damaged one; the session is then as it
        was.  The file holds tokens and state; `messages` is empty afterwards.
        """
        self._stop()
        self._native.restore(os.fspath(path))
        self._pending = None
        self.messages, self._chat_text, self._chat_broken = [], "", False
        self._marks.clear()

    def __repr__(self) -> str:
        return f"<esker.Session, {self.position} of {self.context} tokens>"

    @property
    def _native(self) -> _core.Session:
        if self._held is None:
            raise self.model._closed()
        return self._held

    def _settle(self) -> None:
        """Computes the token that was drawn last, if that has not been done."""
        if self._pending is not None:
            self._native.decode(self._pending)
            self._pending = None

    def _prefill(self, tokens: list[int], chunk: int, progress: Progress | None) -> None:
        self._settle()
        if tokens:
            self._native.prefill(tokens, chunk, progress)

    def _check_room(self, count: int) -> None:
        if self.position + count > self.context:
            before = f" after {self.position} in the session" if self.position else ""
            raise UsageError(
                fault(
                    "session",
                    f"too many tokens: got {count}{before}, want at most {self.context} in all",
                    hint="shorten the prompt or raise the context",
                )
            )

    def encode(self, prompt: Prompt | Sequence[Message], *, special: bool = False) -> list[int]:
        """Token ids of a prompt as they would be read here.

        At the beginning of a text they start with the bos token if the model wants one.  Raises
        UsageError for an empty prompt (there) and for one that does not fit into the context.
        """
        fresh = self.position == 0
        if isinstance(prompt, (str, bytes)):
            tokenizer = self.model.tokenizer
            tokens = tokenizer.encode(prompt, special=special, bos=fresh)
            if not tokens and fresh and tokenizer.bos is not None:
                tokens = [tokenizer.bos]
        else:
            tokens = self.model._token_ids(prompt)
        if not tokens and fresh:
            raise UsageError(
                fault(
                    "session",
                    "the prompt is empty",
                    want="at least one token",
                    hint="this model has no token that begins a text; give it a word to start with",
                )
            )
        self._check_room(len(tokens))
        return tokens

    def _generate_chat(
        self,
        prompt: Prompt | Sequence[Message],
        options: SamplingOptions,
        stop: str | Sequence[str] | None,
        progress: Progress | None,
    ) -> Generation:
        if isinstance(prompt, bytes):
            prompt = prompt.decode("utf-8", "surrogateescape")
        if isinstance(prompt, str):
            messages = [*self.messages, {"role": "user", "content": prompt}]
        else:
            messages = list(prompt)  # type: ignore[arg-type]
        template, tokenizer = self.model.chat_template, self.model.tokenizer
        text = template.render(messages)
        if self._chat_broken or not text.startswith(self._chat_text):
            # A turn was not read to its end, or the template does not merely append.
            self._restart()
        bos = tokenizer.token_text(tokenizer.bos)
        begins = self.position == 0 and not (bos and text.startswith(bos))
        news = text[len(self._chat_text) :]
        tokens = tokenizer.encode(news, special=True, bos=begins, shield=SHIELD)
        if not tokens:
            raise UsageError(fault("chat", "the conversation is empty", want="a message"))
        generation = self._start(tokens, options, stop, progress)
        self._chat_broken = True  # until the generation has ended

        def on_end(ended: Generation) -> None:
            self._chat_broken = ended._started and not ended._prompt_read
            if ended._prompt_read:
                self.messages = [*messages, {"role": "assistant", "content": ended.text}]
                self._chat_text = text + template.shielded(ended.text)

        generation._on_end = on_end
        return generation

    def _start(
        self,
        tokens: list[int],
        options: SamplingOptions,
        stop: str | Sequence[str] | None,
        progress: Progress | None,
    ) -> Generation:
        generation = Generation(self, tokens, options, stop, progress)
        self._running = weakref.ref(generation)
        return generation

    def _stop(self) -> None:
        """Ends the generation that is still going on, if there is one."""
        running = self._running() if self._running else None
        if running:
            running.close()

    def _restart(self) -> None:
        """Empties the state; what the conversation needs is read again."""
        self._held = None  # its memory goes before the new one's comes
        self._held = self.model._engine.new_session()
        self._pending = None
        self._chat_text, self._chat_broken = "", False
        self._marks.clear()


def _difference(after: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    return {name: count - before.get(name, 0) for name, count in after.items()}
