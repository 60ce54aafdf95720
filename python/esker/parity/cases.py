# SPDX-License-Identifier: MIT
"""What a parity case is: a function that launches kernels on the device under test and compares what
they make with float64, with numpy alone.

A module of cases is an area of kernels; its functions named case_* are its cases, once for every
combination of values that parametrize() gives them.
"""

from __future__ import annotations

import importlib
import itertools
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..errors import EskerError

AREAS = (
    "mixer", "ple", "matvec", "matmat", "experts", "expert_matmat", "route", "delta", "attention",
)  # fmt: skip
# Of the lanes of a threadgroup, where a device can choose; elsewhere the same launch once more.
ORDERS = ("forward", "reverse", "random")

Array = npt.NDArray[Any]
Extent = Sequence[int]


class Failed(AssertionError):
    """A kernel made something else than it should."""


class Skipped(Exception):
    """A combination of values that means nothing, or a kernel that a device was made without."""


class UnderTest(Protocol):
    """A device that cases are run on."""

    def run(
        self,
        area: str,
        kernel: str,
        args: Any,
        buffers: list[Array],
        *,
        groups: Extent,
        threads: Extent,
        constants: Mapping[int, int],
        order: str,
    ) -> None:
        """Runs a kernel; args is buffer 0, the arrays, updated in place, those after it."""


@dataclass
class _Running:
    device: UnderTest
    area: str
    worst: float = 0.0  # error as a share of the limit


_running: ContextVar[_Running] = ContextVar("running")


def launch(
    kernel: str,
    args: Any,
    buffers: list[Array],
    *,
    groups: Extent,
    threads: Extent,
    constants: Mapping[int, int] | None = None,
    order: str = "forward",
) -> None:
    """Runs a kernel on the device under test."""
    now = _running.get()
    now.device.run(
        now.area,
        kernel,
        args,
        buffers,
        groups=groups,
        threads=threads,
        constants=constants or {},
        order=order,
    )


def check(condition: object, what: object = "") -> None:
    """Raises Failed where the condition does not hold."""
    if not condition:
        raise Failed(f"not as it should be {what}".rstrip())


def within(error: float, limit: float) -> None:
    """Raises Failed where an error is above its limit, or not a number."""
    if not error <= limit:
        raise Failed(f"an error of {error:.3g}, at most {limit:.3g} allowed")
    now = _running.get(None)
    if now is not None:
        now.worst = max(now.worst, float(error / limit))


def parametrize(
    names: str | Sequence[str], values: Iterable[Any], ids: Any = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Runs a case for each of the values; several together for each combination.

    names: one, or several separated by commas or in a sequence, then values are sequences.
    ids: how values are called: strings, or a function of a value.
    """
    keys = [n.strip() for n in names.split(",")] if isinstance(names, str) else list(names)
    rows: list[tuple[dict[str, Any], str]] = []
    for i, value in enumerate(values):
        row = [value] if len(keys) == 1 else list(value)
        if callable(ids):
            text = str(ids(value))
        else:
            text = ids[i] if ids is not None else "-".join(map(_short, row))
        rows.append((dict(zip(keys, row, strict=True)), text))

    def mark(function: Callable[..., None]) -> Callable[..., None]:
        marks = getattr(function, "parameters", [])
        function.parameters = [*marks, rows]  # type: ignore[attr-defined]
        return function

    return mark


def _short(value: object) -> str:
    return str(getattr(value, "__name__", value)).replace(" ", "")


@dataclass(frozen=True)
class Case:
    area: str
    name: str  # of the function, and the values
    function: Callable[..., None]
    arguments: Mapping[str, Any]

    def run(self, device: UnderTest) -> float:
        """The largest error, as a share of its limit.  Raises Failed, Skipped, and what the device
        raises."""
        running = _Running(device, self.area)
        token = _running.set(running)
        try:
            self.function(**self.arguments)
        except (Failed, EskerError):
            raise
        except AssertionError as error:  # numpy's
            raise Failed(" ".join(str(error).split())) from error
        except (LookupError, ValueError) as error:  # of sums with what no kernel should have made
            raise Failed(f"{type(error).__name__}: {error}") from error
        finally:
            _running.reset(token)
        return running.worst


def cases_of(module: types.ModuleType) -> Iterator[Case]:
    """The cases of a module, in the order of its text."""
    area = module.__name__.rpartition(".")[2]
    for name, function in vars(module).items():
        if not name.startswith("case_") or function.__module__ != module.__name__:
            continue
        for rows in itertools.product(*getattr(function, "parameters", [])):
            arguments = {key: value for row, _ in rows for key, value in row.items()}
            text = "-".join(text for _, text in rows)
            title = name.removeprefix("case_") + (f"[{text}]" if text else "")
            yield Case(area, title, function, arguments)


def all_cases(areas: Iterable[str] = AREAS) -> list[Case]:
    modules = (importlib.import_module(f".{area}", __package__) for area in areas)
    return [case for module in modules for case in cases_of(module)]


# What cases are made of


def rng_of(*key: int) -> np.random.Generator:
    return np.random.default_rng([*key])


def normal(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape, np.float32)


def nans(*shape: int) -> Array:
    return np.full(shape, np.nan, np.float32)


def ceil(n: int, by: int) -> int:
    return -(-n // by)


def error(got: Array, want: Array, size: npt.ArrayLike | None = None) -> float:
    """L2 relative to what is wanted or to `size`; of a NaN it is NaN, which is within no limit."""
    return float(np.linalg.norm(got - want) / np.linalg.norm(want if size is None else size))


def same_bits(a: Array, b: Array) -> None:
    """Raises Failed where arrays differ in any bit."""
    np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))


def in_every_order(
    make: Callable[[str], Sequence[Array]], orders: Sequence[str] = ORDERS
) -> Sequence[Array]:
    """What make(order) gives: the same bits in every order of lanes."""
    first, *others = [make(order) for order in orders]
    for made in others:
        for a, b in zip(first, made, strict=True):
            same_bits(a, b)
    return first


def run(
    kernel: str,
    args: Any,
    inputs: Sequence[Array],
    outputs: Mapping[int, Array],
    groups: Extent,
    threads: int = 256,
    orders: Sequence[str] = ORDERS,
) -> Sequence[Array]:
    """What a kernel makes of copies of `outputs`, in every order of lanes.

    outputs: by their number among the buffers; inputs: the other buffers, in order.
    """

    def make(order: str) -> list[Array]:
        made = {i: o.copy() for i, o in outputs.items()}
        rest = iter(inputs)
        numbers = range(1, len(inputs) + len(made) + 1)
        buffers = [made[i] if i in made else next(rest) for i in numbers]
        launch(kernel, args, buffers, groups=groups, threads=(threads, 1, 1), order=order)
        return list(made.values())

    return in_every_order(make, orders)
