# SPDX-License-Identifier: MIT
"""What a result file has to look like: every field, and what may stand in it.

A shape is a type or a tuple of types, a list of one shape, or a dict of name -> shape, each of
them required.  Maybe(shape) allows None.  Other fields are allowed in Open places only, where a
bench case adds facts: settings, counters, memory readings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

NUMBER = (int, float)
NUMBER_MAX = 1e18  # 31 years in ns, an exabyte: sums of such numbers stay finite


@dataclass(frozen=True)
class Maybe:
    """The shape, or None."""

    shape: Any


@dataclass(frozen=True)
class Open:
    """The fields, and any others that hold `rest`."""

    fields: dict[str, Any]
    rest: Any = object


_COUNT = Maybe(int)
_MEMORY = {
    "before": Maybe(Open({}, Maybe(NUMBER))),
    "during": [Open({}, Maybe(NUMBER))],
    "after": Maybe(Open({}, Maybe(NUMBER))),
}
_GUARD = Maybe(
    Open(
        {
            "limits": Open({}, Maybe(NUMBER)),
            "samples": int,
            "available_min_bytes": _COUNT,
            "stopped": bool,
            "reason": Maybe(str),
        }
    )
)
_RUN = {
    "side": str,
    "pair": _COUNT,
    "order": int,
    "cold": bool,
    "warmup": bool,
    "prompt_sha256": Maybe(str),
    "settings": Open({}),
    "phases": Open(
        {
            "load_s": Maybe(NUMBER),
            "arena_fill_s": Maybe(NUMBER),
            "prompt_s": Maybe(NUMBER),
            "first_token_s": Maybe(NUMBER),
        },
        Maybe(NUMBER),
    ),
    "tokens": [Open({"wall_ns": int}, int)],
    "output": [int],
    "samples": [Open({"name": str, "ns": int})],
    "exit_status": object,  # below 0 after a signal
    "stdout_tail": str,
    "stderr_tail": str,
    "memory": _MEMORY,
    "guard": _GUARD,
}
_RAW = {
    "case": str,
    "argv": [str],
    "environ": Open({}, str),
    "software": Open(
        {
            "version": Maybe(str),
            "native_sha256": Maybe(str),
            "source": Maybe(Open({"commit": str, "dirty": bool})),
        }
    ),
    "machine": Open({"cpu": Maybe(str), "cores": _COUNT, "memory_bytes": _COUNT}),
    "model": Maybe(Open({"name": Maybe(str), "sha256": str, "bytes": int, "files": [dict]})),
    "peer": Maybe(Open({"name": str, "version": Maybe(str)})),
    "prompts": [
        {
            "source": str,
            "text": Maybe(str),
            "text_sha256": Maybe(str),
            "tokens": [int],
            "tokens_sha256": str,
        }
    ],
    "compare": Maybe([str]),
    "varies": [str],
    "quality": Maybe(Open({})),
    "guard": _GUARD,
    "memory": _MEMORY,
    "runs": [_RUN],
}
_RESULT = {
    "format": str,
    "version": int,
    "raw": _RAW,
    "raw_sha256": str,
    "summary": dict,
}


def faults(result: Any) -> list[str]:
    """What is wrong with the form of a result, one line each; none means that it can be judged."""
    found: list[str] = []
    _check(result, _RESULT, "", found)
    return found


def _check(value: Any, shape: Any, place: str, found: list[str]) -> None:
    if isinstance(shape, Maybe):
        if value is not None:
            _check(value, shape.shape, place, found)
    elif isinstance(shape, list):
        if not isinstance(value, list):
            found.append(f"{place}: want a list")
            return
        for index, item in enumerate(value):
            _check(item, shape[0], f"{place}.{index}", found)
    elif isinstance(shape, (dict, Open)):
        _check_fields(value, shape, place, found)
    elif not _is(value, shape):
        names = " or ".join(t.__name__ for t in (shape if isinstance(shape, tuple) else (shape,)))
        found.append(f"{place}: got {str(value)[:40]!r}, want {names}")


def _check_fields(value: Any, shape: Any, place: str, found: list[str]) -> None:
    if not isinstance(value, dict):
        found.append(f"{place or 'the file'}: want an object")
        return
    fields = shape.fields if isinstance(shape, Open) else shape
    prefix = place + "." if place else ""
    for name, inner in fields.items():
        if name in value:
            _check(value[name], inner, prefix + name, found)
        else:
            found.append(f"{prefix}{name} is missing")
    for name in value.keys() - fields.keys():
        if isinstance(shape, Open):
            _check(value[name], shape.rest, prefix + name, found)
        else:
            found.append(f"{prefix}{name} is no field of a result")


def _is(value: Any, kinds: Any) -> bool:
    """isinstance, but true is no number, and numbers are from 0 to NUMBER_MAX."""
    if kinds is object:
        return True
    wanted = kinds if isinstance(kinds, tuple) else (kinds,)
    if isinstance(value, bool):
        return bool in wanted
    if isinstance(value, (int, float)):
        return isinstance(value, wanted) and 0 <= value <= NUMBER_MAX
    return isinstance(value, wanted)
