# SPDX-License-Identifier: MIT
"""Every option: its name, what it takes, its default.  One table serves Python keywords, command
line flags and ESKER_ variables, so the three cannot drift apart.

Owns: the only reading of the environment in Python.  Precedence: argument, environment, default.
Bad values raise UsageError naming the option, what stood there and what is wanted.
"""

from __future__ import annotations

import math
import operator
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from .errors import UsageError, fault

BACKENDS = ("auto", "cpu", "metal", "cuda")
ACTIVATIONS = {"coarse": 1, "fine": 2, "exact": 3}  # bytes a value in the CPU's matrix products

_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", start=1):
    _UNITS[f"{_letter}B"] = 1000**_power
    _UNITS[f"{_letter}IB"] = _UNITS[_letter] = 1024**_power

_BYTES_MAX = 2**63 - 1
_COUNT_MAX = 2**31 - 1


class _Bad(ValueError):
    """A value that does not fit; carries what is wanted, and a hint if there is one."""

    def __init__(self, want: str, hint: str = "") -> None:
        super().__init__(want)
        self.want = want
        self.hint = hint


def _integer(value: object, want: str) -> int:
    """An int from an int, an integral float, a numpy integer or text; never from a bool."""
    if isinstance(value, str):
        try:
            return int(value.strip())
        except ValueError:
            raise _Bad(want) from None
    if isinstance(value, bool):
        raise _Bad(want)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise _Bad(want) from None


def _integer_between(low: int, high: int, want: str) -> Callable[[object], int]:
    def parse(value: object) -> int:
        number = _integer(value, want)
        if not low <= number <= high:
            raise _Bad(want)
        return number

    return parse


def _count(value: object) -> int:
    want = "a whole number from 0 (0 or 'auto' = automatic)"
    if isinstance(value, str) and value.strip().lower() == "auto":
        return 0
    return _integer_between(0, _COUNT_MAX, want)(value)


def _number_between(
    low: float, high: float, want: str, *, low_open: bool = False, high_open: bool = False
) -> Callable[[object], float]:
    def parse(value: object) -> float:
        if isinstance(value, bool):
            raise _Bad(want)
        try:
            number = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            raise _Bad(want) from None
        outside = not low <= number <= high or (low_open and number == low)
        if not math.isfinite(number) or outside or (high_open and number == high):
            raise _Bad(want)
        return number

    return parse


def parse_size(value: object) -> int:
    """Bytes from an int, or from text such as "8GB" (10^9), "512MiB" or "512M" (2^20).

    0 and "auto" mean automatic.  Raises ValueError.
    """
    want = "a size such as 8GB, 512MiB or a number of bytes (0 or 'auto' = automatic)"
    if not isinstance(value, str):
        number = _integer(value, want)
    elif value.strip().lower() == "auto":
        return 0
    else:
        match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+) ?([A-Z]*)", value.strip().upper(), re.ASCII)
        if match is None or match[2] not in _UNITS:
            raise _Bad(want)
        whole = match[1].isdigit()
        number = (int(match[1]) if whole else float(match[1])) * _UNITS[match[2]]  # type: ignore
        number = int(number)
        if not whole and number == 0 and float(match[1]) > 0:
            raise _Bad(want)
    if not 0 <= number <= _BYTES_MAX:
        raise _Bad(want)
    return number


class Arena(NamedTuple):
    """The arena's size: in bytes, or as a share of all expert records; both 0 = automatic."""

    bytes: int = 0
    fraction: float = 0.0


def parse_arena(value: object) -> Arena:
    """As parse_size, or a share of all experts such as "25%"."""
    want = "a size such as 2GB, or a share of all experts such as 25% (above 0, at most 100)"
    if isinstance(value, Arena):
        return value
    if isinstance(value, str) and value.strip().endswith("%"):
        share = _number_between(0, 100, want, low_open=True)(value.strip()[:-1])
        return Arena(fraction=share / 100)
    if isinstance(value, float) and 0 < value < 1:
        raise _Bad(want, f"for a share of all experts write '{100 * value:g}%'")
    try:
        return Arena(bytes=parse_size(value))
    except _Bad:
        raise _Bad(want) from None


def _backend(value: object) -> str:
    name = str(value).strip().lower()
    if f"ESKER_{name.upper()}_LIBRARY" in os.environ:
        return name  # a device that is no part of the build, such as the tests'
    if name not in BACKENDS:
        raise _Bad(f"one of {', '.join(BACKENDS)}")
    return name


def _one_of(*names: str) -> Callable[[object], str]:
    def parse(value: object) -> str:
        name = str(value).strip().lower()
        if name not in names:
            raise _Bad(f"one of {', '.join(names)}")
        return name

    return parse


def _switch(value: object) -> bool:
    if isinstance(value, bool):
        return value
    words = {"on": True, "1": True, "true": True, "off": False, "0": False, "false": False}
    word = str(value).strip().lower()
    if word not in words:
        raise _Bad("on or off")
    return words[word]


def _path(value: object) -> str:
    want = "a path"
    try:
        path = os.fspath(value)  # type: ignore[call-overload]
    except TypeError:
        raise _Bad(want) from None
    path = os.fsdecode(path)
    if not path or "\0" in path:
        raise _Bad(want)
    try:
        path.encode()
    except UnicodeEncodeError:
        raise _Bad("a path that is valid UTF-8") from None
    return str(path)


def _max_tokens(value: object) -> int | None:
    number = _integer_between(-1, _COUNT_MAX, "a whole number from 0, or -1 for no limit")(value)
    return None if number == -1 else number


@dataclass(frozen=True)
class Option:
    """One option: keyword `name`, flag --name, and (load options) variable ESKER_NAME."""

    name: str
    parse: Callable[[object], object]
    default: object
    metavar: str
    help: str

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return "ESKER_" + self.name.upper()

    def read(self, value: object, where: str = "") -> object:
        """The checked value.  Raises UsageError."""
        try:
            return self.parse(value)
        except _Bad as bad:
            raise UsageError(
                fault("options", self.name, got=value, want=bad.want, where=where, hint=bad.hint)
            ) from None


LOAD = (
    Option(
        "model",
        _path,
        None,
        "FILE",
        "a GGUF file, or the first shard of one (default: the demo model in the package)",
    ),
    Option("backend", _backend, "auto", "NAME", "auto, cpu, metal or cuda"),
    Option("memory", parse_size, 0, "SIZE", "limit of all memory, such as 8GB or 512MiB"),
    Option(
        "arena",
        parse_arena,
        Arena(),
        "SIZE",
        "memory for experts: a size, or a share of all experts such as 25%%",
    ),
    Option("slots", _count, 0, "N", "slots per layer for experts, instead of --arena"),
    Option(
        "class_waste",
        _number_between(0, 1, "a number from 0, less than 1", high_open=True),
        0.15,
        "X",
        "layers whose records differ by at most this share have slots of one size (default 0.15)",
    ),
    Option("min_slots", _count, 0, "N", "least slots of each size (default: what one token needs)"),
    Option(
        "keep_free",
        parse_size,
        0,
        "SIZE",
        "memory to leave free (default: 7/24 of the machine's, 1/16 of a container's limit)",
    ),
    Option(
        "context", _count, 0, "N", "longest text, in tokens (default: the model's, at most 4096)"
    ),
    Option("threads", _count, 0, "N", "compute threads (default: one per core)"),
    Option(
        "activations",
        _one_of(*ACTIVATIONS),
        "exact",
        "NAME",
        "how finely products read activations: exact (22 bits, the default), fine (15), coarse (8)",
    ),
    Option("chunk", _count, 0, "N", "tokens of a prompt computed together"),
    Option(
        "read_ahead",
        _integer_between(-1, _COUNT_MAX, "a whole number from 0 (0 = off), or -1 for the default"),
        -1,
        "K",
        "experts a token that are guessed and read ahead for the next layer (0 = off; default: 8"
        " for every 5 that it uses, none where experts are smaller than 128 KiB)",
    ),
    Option(
        "read_ahead_2",
        _integer_between(0, _COUNT_MAX, "a whole number from 0 (0 = off)"),
        0,
        "K",
        "the same for the layer after the next (default 0)",
    ),
    Option(
        "touch_guesses",
        _switch,
        False,
        "SWITCH",
        "whether a guess makes a resident expert recent: on or off (default off)",
    ),
    Option(
        "split_turn",
        _switch,
        True,
        "SWITCH",
        "whether read-ahead is seen to after the device has gone on: on (default) or off",
    ),
    Option(
        "cache_prior",
        _number_between(0, 80, "a number from 0 to 80, in logits (0 = exact)"),
        0.0,
        "B",
        "bonus, in logits, of experts in memory when a decode step picks: faster, and another"
        " text; 0 = exact (default)",
    ),
    Option("protect", _count, 3, "J", "first ranks that are picked without that bonus (default 3)"),
    Option(
        "starvation",
        _count,
        16,
        "N",
        "an expert that the bonus displaced N times in a row gets it too (default 16, 0 = never)",
    ),
    Option(
        "wire",
        _switch,
        False,
        "SWITCH",
        "ask the system to keep weights and arena in memory: on or off (default off)",
    ),
    Option(
        "governor",
        _switch,
        False,
        "SWITCH",
        "give arena back while the system is short of memory: on or off (default off)",
    ),
    Option(
        "expert_profile",
        _path,
        None,
        "FILE",
        "experts to read in at the start, the most picked first (see Model.save_profile)",
    ),
    Option(
        "ngram_table",
        _path,
        None,
        "FILE",
        "a GGUF file that holds the n-gram table, where the model's does not",
    ),
)

WHAT_IF = Option("what_if", parse_size, 0, "SIZE", "plan for an idle machine with that much memory")

SAMPLING = (
    Option(
        "max_tokens",
        _max_tokens,
        128,
        "N",
        "most tokens to generate, -1 = as the context allows (default 128)",
    ),
    Option(
        "temperature",
        _number_between(0, math.inf, "a number from 0 (0 = greedy)"),
        0.8,
        "X",
        "0 = always the likeliest token (default 0.8)",
    ),
    Option(
        "top_k",
        _integer_between(0, _COUNT_MAX, "a whole number from 0 (0 = off)"),
        40,
        "N",
        "sample among the N likeliest tokens, 0 = off (default 40)",
    ),
    Option(
        "top_p",
        _number_between(0, 1, "a number above 0, at most 1 (1 = off)", low_open=True),
        0.95,
        "X",
        "sample among the likeliest tokens that together reach X, 1 = off (default 0.95)",
    ),
    Option(
        "min_p",
        _number_between(0, 1, "a number from 0 to 1 (0 = off)"),
        0.05,
        "X",
        "drop tokens below X times the likeliest, 0 = off (default 0.05)",
    ),
    Option(
        "seed",
        _integer_between(0, 2**64 - 1, "a whole number from 0 to 2^64 - 1"),
        None,
        "N",
        "makes sampling repeatable (default: another every run)",
    ),
)


@dataclass(frozen=True)
class LoadOptions:
    """What a model is loaded with; 0 and None mean automatic."""

    model: str | None
    backend: str
    memory: int
    arena: Arena
    slots: int
    class_waste: float
    min_slots: int
    keep_free: int
    context: int
    threads: int
    activations: str
    chunk: int
    read_ahead: int
    read_ahead_2: int
    touch_guesses: bool
    split_turn: bool
    cache_prior: float
    protect: int
    starvation: int
    wire: bool
    governor: bool
    expert_profile: str | None
    ngram_table: str | None


@dataclass(frozen=True)
class SamplingOptions:
    """How tokens are drawn; max_tokens None = as many as the context allows."""

    max_tokens: int | None
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int | None


def load_options(
    given: Mapping[str, object], environ: Mapping[str, str] | None = None
) -> LoadOptions:
    """Load options from arguments (None = not given), else the environment, else the defaults.

    An empty variable counts as unset.  Raises UsageError.
    """
    environ = os.environ if environ is None else environ
    values: dict[str, object] = {}
    for option in LOAD:
        value = given.get(option.name)
        text = environ.get(option.variable, "")
        if value is not None:
            values[option.name] = option.read(value)
        elif text.strip():
            values[option.name] = option.read(text, f"environment variable {option.variable}")
        else:
            values[option.name] = option.default
    # Arena and slots are two ways to say one thing: what was given beats the environment.
    if values["slots"] and values["arena"] != Arena():
        by_argument = [name for name in ("arena", "slots") if given.get(name) is not None]
        if len(by_argument) != 1:
            raise UsageError(fault("options", "both arena and slots are set", want="one of them"))
        values.update({"slots": 0} if by_argument == ["arena"] else {"arena": Arena()})
    return LoadOptions(**values)  # type: ignore[arg-type]


def sampling_options(given: Mapping[str, object]) -> SamplingOptions:
    """Checked sampling options; a key that is absent takes its default.  Raises UsageError."""
    values: dict[str, object] = {}
    for option in SAMPLING:
        value = given.get(option.name, option.default)
        # None is "no limit" and "another seed every run"; for the others it is the default.
        if value is None and option.name not in ("max_tokens", "seed"):
            value = option.default
        values[option.name] = None if value is None else option.read(value)
    return SamplingOptions(**values)  # type: ignore[arg-type]
