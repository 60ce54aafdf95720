# SPDX-License-Identifier: MIT
"""The native module.  Errors arrive as the exceptions of esker.errors; Ctrl-C inside a call raises
KeyboardInterrupt and leaves the session as it was before (prefill: before the unfinished chunk)."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

class Engine:
    def __init__(
        self,
        path: str,
        ngram_table: str | None = None,
        context: int = 0,
        threads: int = 0,
        activation_bytes: int = 3,
        memory_bytes: int = 0,
        arena_bytes: int = 0,
        arena_fraction: float = 0.0,
        slots: int = 0,
        chunk: int = 0,
        reader_threads: int = 0,
        class_waste: float = 0.15,
        min_slots: int = 0,
        keep_free_bytes: int = 0,
        read_ahead: int = 16,
        read_ahead_2: int = 0,
        touch_guesses: bool = False,
        split_turn: bool = True,
    ) -> None: ...
    @property
    def info(self) -> dict[str, Any]: ...
    @property
    def plan(self) -> dict[str, Any]: ...
    def metadata(self) -> dict[str, Any]: ...
    def new_session(self) -> Session: ...
    def counters(self) -> dict[str, int]: ...
    def op_times(self) -> list[dict[str, Any]]: ...
    def graph(self, prompt: bool = False) -> str: ...

class Session:
    @property
    def position(self) -> int: ...
    @property
    def tokens(self) -> list[int]: ...
    @property
    def context(self) -> int: ...
    def prefill(
        self,
        tokens: list[int],
        chunk: int = 0,
        progress: Callable[[int, int], None] | None = None,
    ) -> None: ...
    def decode(self, token: int) -> None: ...
    def logits(self) -> npt.NDArray[np.float32]: ...
    def evaluate(self, tokens: list[int], chunk: int = 0) -> npt.NDArray[np.float32]: ...
    def fork(self) -> Session: ...
    def checkpoint(self) -> int: ...
    def rewind(self, checkpoint: int) -> None: ...
    def save(self, path: str) -> None: ...
    def restore(self, path: str) -> None: ...

class Sampler:
    def __init__(
        self, temperature: float, top_k: int, top_p: float, min_p: float, seed: int
    ) -> None: ...
    def sample(self, logits: npt.NDArray[np.float32]) -> int: ...

def file_info(path: str, ngram_table: str | None = None) -> dict[str, Any]: ...
def file_metadata(path: str) -> dict[str, Any]: ...
def plan_file(
    path: str,
    ngram_table: str | None = None,
    header: bool = False,
    what_if_bytes: int = 0,
    context: int = 0,
    memory_bytes: int = 0,
    keep_free_bytes: int = 0,
    arena_bytes: int = 0,
    arena_fraction: float = 0.0,
    slots: int = 0,
    min_slots: int = 0,
    class_waste: float = 0.15,
    chunk: int = 0,
    read_ahead: int = 16,
    read_ahead_2: int = 0,
) -> dict[str, Any]: ...
def decode_weights(type_id: int, data: bytes, n: int) -> npt.NDArray[np.float32]: ...
def quantize_weights(type_id: int, weights: npt.NDArray[np.float32]) -> bytes: ...
def cpu_info() -> dict[str, Any]: ...
def probe_matmul(
    type: str,
    rows: int,
    cols: int,
    tokens: int = 1,
    copies: int = 1,
    repeats: int = 1,
    threads: int = 0,
    activation_bytes: int = 3,
) -> dict[str, Any]: ...
def probe_read(bytes: int, repeats: int = 1, threads: int = 0) -> list[int]: ...
def probe_disk(
    path: str,
    read_bytes: int,
    depth: int,
    total_bytes: int,
    readers: int = 0,
    seed: int = 1,
) -> dict[str, Any]: ...
