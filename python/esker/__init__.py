# SPDX-License-Identifier: MIT
"""Esker runs mixture-of-experts language models that are larger than memory.

    import esker

    with esker.Model() as model:
        for piece in model.generate("How does", max_tokens=64, temperature=0):
            print(piece.text, end="")

Names are imported on first use, so that `import esker` and `esker --help` load neither the native
module nor numpy.
"""

from __future__ import annotations

import importlib

from .errors import (
    DeviceError,
    EskerError,
    FormatError,
    NumericError,
    PlanError,
    ReadError,
    UsageError,
)

TYPE_CHECKING = False  # typing.TYPE_CHECKING without the import
if TYPE_CHECKING:
    from .chat import ChatTemplate
    from .model import Model
    from .session import Completion, Generation, Piece, Session, Timings
    from .tokenizer import Detokenizer, StopFilter, Tokenizer

    __version__: str

__all__ = [
    "ChatTemplate",
    "Completion",
    "Detokenizer",
    "DeviceError",
    "EskerError",
    "FormatError",
    "Generation",
    "Model",
    "NumericError",
    "Piece",
    "PlanError",
    "ReadError",
    "Session",
    "StopFilter",
    "Timings",
    "Tokenizer",
    "UsageError",
    "__version__",
]

_HOME = {
    "ChatTemplate": "chat",
    "Completion": "session",
    "Detokenizer": "tokenizer",
    "Generation": "session",
    "Model": "model",
    "Piece": "session",
    "Session": "session",
    "StopFilter": "tokenizer",
    "Timings": "session",
    "Tokenizer": "tokenizer",
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        value: object = version("esker")
    elif name in _HOME:
        value = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
