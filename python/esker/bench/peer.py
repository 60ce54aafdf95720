# SPDX-License-Identifier: MIT
"""llama.cpp's side of a comparison: one measured run, in the interpreter that has llama_cpp.

    PEER_PYTHON peer.py --facts            # what llama_cpp is there
    PEER_PYTHON peer.py < job.json         # as child.py: job in, events out

Run by its path, so it imports nothing of esker.  The same work as child.py's, step for step: open,
a pass that brings the weights into memory, prompt, then the stated tokens one by one; after every
token the logits are read and the likeliest is taken.  Protocol: see child.py.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import os
import resource
import sys
import time
from typing import Any


def main() -> int:
    sys.path[:] = [path for path in sys.path if path != os.path.dirname(os.path.abspath(__file__))]
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the library prints is no event

    def tell(event: str, **facts: Any) -> None:
        output.write(json.dumps({"event": event, **facts}) + "\n")
        output.flush()

    try:
        import llama_cpp  # type: ignore[import-not-found]
    except ImportError as error:
        tell("error", kind="UsageError", message=f"llama_cpp is missing: {error}")
        return 1
    if sys.argv[1:] == ["--facts"]:
        tell("facts", **facts(llama_cpp))
        return 0
    job = json.load(sys.stdin)
    try:
        run(llama_cpp, job, tell)
    except Failure as error:
        tell("error", kind="DeviceError", message=str(error))
        return 1
    return 0


class Failure(Exception):
    """llama.cpp refused something."""


def facts(L: Any) -> dict[str, Any]:
    version: str | None
    try:
        version = importlib.metadata.version("llama-cpp-python")
    except importlib.metadata.PackageNotFoundError:
        version = getattr(L, "__version__", None)
    system = L.llama_print_system_info()
    return {
        "name": "llama.cpp",
        "package": "llama-cpp-python",
        "version": version,
        "system": system.decode() if isinstance(system, bytes) else str(system),
        "python": sys.version.split()[0],
    }


def run(L: Any, job: dict[str, Any], tell: Any) -> None:
    begin = time.perf_counter_ns()
    peer = Peer(L, job)
    tell("phase", name="load_s", seconds=seconds_since(begin))
    prompt, fed, fill = job["prompt"], job["fed"], job["fill"]
    if fill:
        begin = time.perf_counter_ns()
        peer.evaluate(fill[: len(prompt)])
        for token in fill[len(prompt) :]:
            peer.evaluate([token])
        peer.clear()
        tell("phase", name="arena_fill_s", seconds=seconds_since(begin))
    tokens, drawn = [], []
    if prompt:
        begin = time.perf_counter_ns()
        logits = peer.evaluate(prompt)
        prompt_s = seconds_since(begin)
        drawn.append(int(logits.argmax()))
        tokens.append({"wall_ns": time.perf_counter_ns() - begin})
        tell("phase", name="prompt_s", seconds=prompt_s)
        for token in fed[:-1]:
            drawn.append(int(peer.evaluate([token]).argmax()))
            tokens.append({"wall_ns": time.perf_counter_ns() - begin})
    tell("done", tokens=tokens, output=drawn, settings={**peer.settings, "usage": usage()})


def usage() -> dict[str, int]:
    """As child.py's."""
    counted = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "major_faults": counted.ru_majflt,
        "minor_faults": counted.ru_minflt,
        "blocks_read": counted.ru_inblock,
        "user_ms": round(counted.ru_utime * 1000),
        "system_ms": round(counted.ru_stime * 1000),
    }


def seconds_since(begin_ns: int) -> float:
    return (time.perf_counter_ns() - begin_ns) / 1e9


class Peer:
    """A model and one context, as close to esker's settings as llama.cpp comes."""

    def __init__(self, L: Any, job: dict[str, Any]) -> None:
        self._lib, self._position = L, 0
        L.llama_backend_init()
        options = L.llama_model_default_params()
        options.n_gpu_layers = 0
        self._model = L.llama_model_load_from_file(job["model"].encode(), options)
        if not self._model:
            raise Failure("llama.cpp did not load the model")
        self._n_vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(self._model))
        batch = max(len(job["prompt"]), 32)
        params = L.llama_context_default_params()
        params.n_ctx, params.n_batch = job["context"], batch
        params.n_threads = params.n_threads_batch = job["threads"]
        params.type_k = params.type_v = 0  # float32, as esker keeps them
        params.flash_attn_type = 0
        params.n_seq_max = 1
        params.no_perf = True
        self._context = L.llama_init_from_model(self._model, params)
        if not self._context:
            raise Failure("llama.cpp made no context")
        self._batch = L.llama_batch_init(batch, 0, 1)
        self.settings = {
            "threads": int(params.n_threads),
            "context": int(L.llama_n_ctx(self._context)),
            "batch": batch,
            "micro_batch": int(params.n_ubatch),
            "kv_type": "F32",
            "flash_attention": False,
            # How the weights come into memory; the library's own choice (mapped) is left alone.
            "load_mode": getattr(options, "load_mode", None),
        }

    def evaluate(self, tokens: list[int]) -> Any:
        """The logits after the last token: float32 [V], valid until the next call."""
        lib, batch = self._lib, self._batch
        batch.n_tokens = len(tokens)
        for index, token in enumerate(tokens):
            batch.token[index], batch.pos[index] = token, self._position + index
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, 0
            batch.logits[index] = index + 1 == len(tokens)
        status = lib.llama_decode(self._context, batch)
        if status != 0:
            raise Failure(f"llama_decode returned {status}")
        self._position += len(tokens)
        import numpy

        logits = lib.llama_get_logits_ith(self._context, -1)
        pointer = ctypes.cast(logits, ctypes.POINTER(ctypes.c_float))
        return numpy.ctypeslib.as_array(pointer, shape=(self._n_vocab,))

    def clear(self) -> None:
        """Forgets the text; the weights stay where they are."""
        lib = self._lib
        lib.llama_memory_clear(lib.llama_get_memory(self._context), True)
        self._position = 0


if __name__ == "__main__":
    sys.exit(main())
