# SPDX-License-Identifier: MIT
"""Model: an open file, its vocabulary, its memory plan, and short ways to its sessions.

One caller at a time: neither a model nor its sessions may be used from two threads at once.
"""

from __future__ import annotations

import operator
import os
import time
import weakref
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from . import _core, devices, disk, profile, tiles
from .chat import ChatTemplate, Message
from .errors import FormatError, UsageError, fault
from .files import cache_folder
from .options import ACTIVATIONS, LoadOptions, load_options
from .session import DEFAULT, Completion, Generation, Progress, Prompt, Session
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    from typing_extensions import Self


class Model:
    """An open model.

    Use it in a `with`, or close() it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        memory: int | str | None = None,
        arena: int | str | None = None,
        slots: int | None = None,
        context: int | None = None,
        threads: int | None = None,
        activations: str | None = None,
        ngram_table: str | os.PathLike[str] | None = None,
        backend: str | None = None,
        chunk: int | None = None,
        class_waste: float | None = None,
        min_slots: int | None = None,
        keep_free: int | str | None = None,
        read_ahead: int | None = None,
        read_ahead_2: int | None = None,
        touch_guesses: bool | None = None,
        split_turn: bool | None = None,
        cache_prior: float | None = None,
        protect: int | None = None,
        starvation: int | None = None,
        wire: bool | None = None,
        governor: bool | None = None,
        expert_profile: str | os.PathLike[str] | None = None,
    ) -> None:
        """Opens a GGUF file, or the first shard of one; None is the demo model in the package.

        Args (each also a variable ESKER_<NAME>, which an argument beats; 0 = automatic):
            memory: limit of all memory, in bytes or as "8GB", "512MiB".
            arena: memory for experts, likewise, or a share of all experts as "25%".
            slots: the same as slots per layer.
            context: longest text in tokens; default the model's, at most 4096.
            threads: compute threads; default one per core.
            activations: how finely matrix products read their activations: "exact" (22 bits,
                the default), "fine" (15 bits) or "coarse" (8 bits). Routing and the choice of
                attention blocks always read them exactly.
            ngram_table: GGUF file with the n-gram table, where the model's has none.
            backend: "auto", "cpu", "metal" or "cuda".
            chunk: tokens of a prompt computed together.
            class_waste: layers whose expert records differ by at most this share have slots of
                one size; default 0.15.
            min_slots: least slots of each size.
            keep_free: memory to leave free, as `memory`; default 7/24 of the
                machine's, 1/16 of a container's limit.
            read_ahead: experts a token that are guessed for the next layer and read ahead,
                where the arena does not hold all; 0 = off, default 8 for every 5 that a token
                uses, none where experts are smaller than 128 KiB. No text depends on it.
            read_ahead_2: the same for the layer after the next; default 0.
            touch_guesses: whether a guess makes a resident expert recent; default no.
            split_turn: whether read-ahead is seen to after the device has gone on; default yes.
            cache_prior: bonus in logits that experts in memory get from rank `protect` on when
                up to four tokens are computed together (decode); the weights stay unperturbed.
                0, the default, is exact; otherwise the text depends on what is in memory.
            protect: ranks that are picked without it; default 3.
            starvation: an expert displaced so many times in a row gets the bonus too; default
                16, 0 = never.
            wire: ask the system to keep weights and arena in memory; `wired` says how it went.
            governor: give slots of the arena back to the system while less memory is available
                than the plan keeps free, and take them again later. No text depends on it.
            expert_profile: file of save_profile(); its experts are read in at once, the most
                picked first, as far as the arena goes.

        Raises ReadError, FormatError (the file), PlanError (memory does not suffice) or
        UsageError (an option).
        """
        options = load_options(
            {
                "model": path,
                "memory": memory,
                "arena": arena,
                "slots": slots,
                "context": context,
                "threads": threads,
                "activations": activations,
                "ngram_table": ngram_table,
                "backend": backend,
                "chunk": chunk,
                "class_waste": class_waste,
                "min_slots": min_slots,
                "keep_free": keep_free,
                "read_ahead": read_ahead,
                "read_ahead_2": read_ahead_2,
                "touch_guesses": touch_guesses,
                "split_turn": split_turn,
                "cache_prior": cache_prior,
                "protect": protect,
                "starvation": starvation,
                "wire": wire,
                "governor": governor,
                "expert_profile": expert_profile,
            }
        )
        self.path = options.model or demo_path()
        self.options = options
        self._open: _core.Engine | None = None
        self._sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        begin = time.perf_counter()
        backend = devices.choose() if options.backend == "auto" else options.backend
        self._open = _core.Engine(
            self.path,
            options.ngram_table,
            options.context,
            options.threads,
            ACTIVATIONS[options.activations],
            options.memory,
            options.arena.bytes,
            options.arena.fraction,
            options.slots,
            options.chunk,
            class_waste=options.class_waste,
            min_slots=options.min_slots,
            keep_free_bytes=options.keep_free,
            read_ahead=options.read_ahead,
            read_ahead_2=options.read_ahead_2,
            touch_guesses=options.touch_guesses,
            split_turn=options.split_turn,
            cache_prior=options.cache_prior,
            protect=options.protect,
            starvation=options.starvation,
            wire=options.wire,
            governor=options.governor,
            backend=backend,
            tiles=tiles.load(backend) if backend != "cpu" else [],
            cache_folder=cache_folder(),
        )
        self._prepare_reads(options)
        self.load_s = time.perf_counter() - begin

    def _prepare_reads(self, options: LoadOptions) -> None:
        """Fits the readers to the disk, and fills the arena from a profile."""
        self.disk: disk.DiskChoice | None = None
        try:
            left = (1 - self.plan["share_of_experts"]) * self.plan["disk"]["expert_bytes"]
            if left >= disk.WORTH_BYTES:
                self.disk = disk.choose(self.path)
                self._engine.set_readers(self.disk.readers, self.disk.chunk_bytes)
            if options.expert_profile is not None:
                config = self.info["config"]
                ranked = profile.read(
                    options.expert_profile, config["n_layer"], config["n_expert"]
                ).ranked
                self._engine.fill(ranked)
        except BaseException:
            self.close()
            raise

    def save_profile(self, path: str | os.PathLike[str], text_sha256: str = "") -> int:
        """Writes which experts decode has picked since the model was opened, the most picked first.

        text_sha256: hash of the text that they come from, for whoever measures with the file.
        Returns the number of experts.  The path holds the old file or the whole new one.
        Raises UsageError when nothing was picked yet, ReadError when it cannot be written.
        """
        config = self.info["config"]
        counts = self._engine.pick_counts()
        return profile.write(path, counts, config["n_layer"], config["n_expert"], text_sha256)

    @cached_property
    def wired(self) -> list[dict[str, Any]]:
        """With `wire`: what, bytes that are wired, and the system's error if it refused any."""
        return self._engine.wired()

    @cached_property
    def info(self) -> dict[str, Any]:
        """What the file is: shapes, tensors, weight types, bytes by role."""
        return self._engine.info

    @cached_property
    def plan(self) -> dict[str, Any]:
        """The memory plan as applied: rows of what and bytes, slot classes, totals."""
        return self._engine.plan

    @property
    def counters(self) -> dict[str, int]:
        """Counters of the expert stream and of the n-gram rows since the model was opened."""
        return self._engine.counters()

    @property
    def op_times(self) -> list[dict[str, Any]]:
        """Where the computing went since the model was opened: op, role of the weight if it is a
        matrix product, calls, ns."""
        return self._engine.op_times()

    @property
    def tokenizer(self) -> Tokenizer:
        """The vocabulary.  Raises FormatError if the file's is not one we can use."""
        return self._text[0]

    @property
    def chat_template(self) -> ChatTemplate:
        """The chat template.  Raises UsageError if the model has none."""
        return self._chat_template

    def session(self) -> Session:
        """A new, empty session."""
        return Session(self)

    def generate(
        self,
        prompt: Prompt | Sequence[Message],
        *,
        max_tokens: int | None = DEFAULT.max_tokens,
        temperature: float = DEFAULT.temperature,
        top_k: int = DEFAULT.top_k,
        top_p: float = DEFAULT.top_p,
        min_p: float = DEFAULT.min_p,
        seed: int | None = None,
        stop: str | Sequence[str] | None = (),
        chat: bool = False,
        session: Session | None = None,
        special: bool = False,
        progress: Progress | None = None,
    ) -> Generation:
        """Continues a prompt, a text or token ids; an iterator of Piece.

        Args:
            max_tokens: most tokens to generate; None = as many as the context allows.
            temperature: 0 takes the likeliest token, and always gives the same text.
            top_k, top_p, min_p: which tokens are drawn from; 0, 1 and 0 switch them off.
            seed: the same seed gives the same text; None draws one (see Generation.seed).
            stop: strings that end the text, which ends before them.
            chat: the prompt is a user's message, or a list of messages ({"role", "content"}).
            session: goes on in this session; None starts a new one.
            special: control tokens written in the prompt count as such.
            progress: called as progress(done, total) while the prompt is read.

        The defaults are llama.cpp's.  Raises UsageError for an empty prompt, for one that is
        longer than the context, or for an option that makes no sense.
        """
        session = self._own(session)
        return session.generate(
            prompt,
            max_tokens=max_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            seed=seed,
            stop=stop,
            chat=chat,
            special=special,
            progress=progress,
        )

    def complete(self, prompt: Prompt | Sequence[Message], **options: Any) -> Completion:
        """As generate (the same keywords), at once: text, tokens, timings, counters, plan."""
        return self.generate(prompt, **options).exhaust()

    def logits(
        self, tokens: Prompt, chunk: int | None = None, *, special: bool = False
    ) -> npt.NDArray[np.float32]:
        """The logits after each token of a text: float32 [T, vocab].

        `chunk` tokens are computed together; any number gives the same logits.
        """
        return self.session().evaluate(tokens, special=special, chunk=chunk or 0)

    def close(self) -> None:
        """Gives the memory and the files back.  The model and its sessions are then unusable."""
        for session in self._sessions:
            session._held = None
        self._open = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<esker.Model {self.path}{'' if self._open else ', closed'}>"

    @property
    def _engine(self) -> _core.Engine:
        if self._open is None:
            raise self._closed()
        return self._open

    def _closed(self) -> UsageError:
        return UsageError(fault("model", "the model is closed", hint="open it again"))

    @cached_property
    def _text(self) -> tuple[Tokenizer, str | None]:
        """Tokenizer and template source; the rest of the metadata is large and not kept."""
        metadata = self._engine.metadata()
        tokenizer = Tokenizer(metadata, self.path)
        n_vocab = self._n_vocab
        if tokenizer.n_vocab > n_vocab:
            raise FormatError(
                fault(
                    "tokenizer",
                    "length of tokenizer.ggml.tokens",
                    got=tokenizer.n_vocab,
                    want=f"at most {n_vocab}, the rows of token_embd.weight",
                    where=self.path,
                )
            )
        return tokenizer, metadata.get("tokenizer.chat_template")

    @cached_property
    def _chat_template(self) -> ChatTemplate:
        tokenizer, source = self._text
        return ChatTemplate(source, tokenizer, self.path)

    @cached_property
    def _n_vocab(self) -> int:
        return int(self.info["config"]["n_vocab"])

    def _own(self, session: Session | None) -> Session:
        if session is None:
            return self.session()
        if session.model is not self:
            raise UsageError(fault("model", "the session belongs to another model"))
        return session

    def _token_ids(self, tokens: Any) -> list[int]:
        """Checked token ids."""
        want = f"token ids, whole numbers from 0 to {self._n_vocab - 1}"
        if isinstance(tokens, np.ndarray):
            tokens = tokens.tolist()
        if isinstance(tokens, Mapping) or not hasattr(tokens, "__iter__"):
            raise UsageError(fault("session", "prompt", got=tokens, want=f"text or {want}"))
        ids = []
        for token in tokens:
            try:
                if isinstance(token, bool):
                    raise TypeError
                index = operator.index(token)
            except TypeError:
                index = -1
            if not 0 <= index < self._n_vocab:
                raise UsageError(fault("session", "prompt token", got=token, want=want))
            ids.append(index)
        return ids


def demo_path() -> str:
    """Where the demo model lies."""
    return str(Path(__file__).parent / "data" / "esker-demo.gguf")
