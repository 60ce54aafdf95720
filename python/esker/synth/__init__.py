# SPDX-License-Identifier: MIT
"""Random models that run: a valid qwen4exp GGUF of any shape and any mix of weight types, written
at the speed of the disk in constant memory.  For measuring: what such a model says means nothing.

    from esker.synth import PRESETS, synthesize, token_stream

    preset = PRESETS["tiny"]
    synthesize("tiny.gguf", preset.shape, types=preset.rules, zipf=0.7, sticky=0.3)

Names are imported on first use, because the command line's parser asks for presets only.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # typing.TYPE_CHECKING without the import
if TYPE_CHECKING:
    from .presets import PRESETS, Preset
    from .routing import STAY, TOPICS, token_stream
    from .shape import Shape
    from .write import SynthResult, synthesize

__all__ = [
    "PRESETS", "STAY", "TOPICS", "Preset", "Shape", "SynthResult", "synthesize", "token_stream",
]  # fmt: skip

_HOME = {
    "PRESETS": "presets",
    "Preset": "presets",
    "STAY": "routing",
    "Shape": "shape",
    "SynthResult": "write",
    "TOPICS": "routing",
    "synthesize": "write",
    "token_stream": "routing",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
