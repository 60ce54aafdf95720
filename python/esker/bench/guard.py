# SPDX-License-Identifier: MIT
"""The guard: watches memory while a bench runs, and stops it before the machine suffers.

    limits = GuardLimits.for_machine()
    with Guard(limits) as guard:                       # work in this process: PlanError if stopped
        ...
    with Guard(limits, child=process) as guard:        # a subprocess.Popen: it is killed
        status = process.wait()
    run["guard"], run["memory"] = guard.report(), guard.memory()

Owns: the limits, all of them in GuardLimits.  A thread reads memory at an interval; what it read
is what result files keep of a run's memory.
"""

from __future__ import annotations

import _thread
import argparse
import math
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..errors import PlanError, UsageError, fault
from ..options import parse_size
from .machine import read_memory

if TYPE_CHECKING:
    from typing_extensions import Self

Reading = dict[str, Any]

PRESSURE_CRITICAL = 4  # macOS is about to end processes
READINGS_MAX = 256  # kept of one run; beyond it every second one goes


@dataclass(frozen=True)
class GuardLimits:
    """Where the guard stops a run.  None = not watched."""

    available_min_bytes: int | None  # of the machine
    swap_rise_max_bytes: int | None  # swap in use, above what was in use at the start
    rss_max_bytes: int | None  # of the process watched
    interval_s: float

    @classmethod
    def for_machine(cls, total_bytes: int | None = None) -> GuardLimits:
        """Defaults that grow with the machine: a sixteenth of memory stays available (256 MiB to
        2 GiB), swap may grow by a hundredth of it (at most 256 MiB)."""
        total = total_bytes or read_memory()["total_bytes"] or (8 << 30)
        return cls(
            available_min_bytes=min(max(total // 16, 256 << 20), 2 << 30),
            swap_rise_max_bytes=min(total // 100, 256 << 20),
            rss_max_bytes=None,
            interval_s=0.1,
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags that override the defaults, for limits_from()."""
    flags = (
        ("--guard-available", "SIZE", "stop when less memory than this is available"),
        ("--guard-swap", "SIZE", "stop when swap in use has grown by more than this"),
        ("--guard-rss", "SIZE", "stop when the process is larger than this (default: any size)"),
        ("--guard-interval", "S", "seconds between two readings of memory"),
    )
    for flag, metavar, text in flags:
        parser.add_argument(flag, metavar=metavar, help=text)


def limits_from(args: argparse.Namespace, total_bytes: int | None = None) -> GuardLimits:
    """The machine's defaults with what the flags say; a size of 0 does not watch it."""
    limits = GuardLimits.for_machine(total_bytes)
    sizes = {
        "available_min_bytes": args.guard_available,
        "swap_rise_max_bytes": args.guard_swap,
        "rss_max_bytes": args.guard_rss,
    }
    changes: dict[str, Any] = {}
    try:
        for name, text in sizes.items():
            if text is not None:
                changes[name] = parse_size(text) or None
    except ValueError as error:
        raise UsageError(fault("bench", f"guard limit: want {error}")) from None
    if args.guard_interval is not None:
        changes["interval_s"] = _interval(args.guard_interval)
    return replace(limits, **changes)


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0.001 <= seconds <= 60:
        raise UsageError(fault("bench", "guard interval", got=text, want="0.001 to 60 seconds"))
    return seconds


class Guard:
    """Watches from __enter__ to __exit__.

    Beyond a limit it kills `child` (its whole group if it leads one), or calls `on_stop(reason)`
    in its own thread, or, with neither, interrupts the main thread as Ctrl-C does; the `with` then
    ends with PlanError.  A reading that fails counts as beyond a limit: a blind guard is none.

    Attributes:
        stopped: whether it did.  reason: why, or None.
    """

    def __init__(
        self,
        limits: GuardLimits,
        *,
        child: subprocess.Popen[Any] | None = None,
        on_stop: Callable[[str], object] | None = None,
        read: Callable[[int | None], Reading] = read_memory,
    ) -> None:
        self.limits = limits
        self.stopped = False
        self.reason: str | None = None
        self._child, self._on_stop, self._read = child, on_stop, read
        self._interrupted = False
        self._entered = False
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="esker-guard", daemon=True)
        self._before: Reading | None = None
        self._after: Reading | None = None
        self._during: list[Reading] = []
        self._stride = 1  # every how many readings one is kept
        self._samples = 0
        self._extremes: dict[str, int | None] = {
            "available_min_bytes": None,
            "swap_rise_bytes": None,
            "rss_peak_bytes": None,
        }

    def __enter__(self) -> Self:
        """Raises PlanError if the machine is beyond a limit already (without a child)."""
        self._before = self._sample()
        if self.stopped and self._child is None:
            raise self.error()
        self._entered = True
        try:
            self._thread.start()
        except KeyboardInterrupt:  # the guard's own, sent before its thread was seen to run
            self._done.set()
            if not self._interrupted:
                raise
            raise self.error() from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._done.set()
            self._thread.join()
            self._after = self._sample(final=True)
        except KeyboardInterrupt:  # the guard's own, sent in the last moment
            if not self._interrupted:
                raise
            kind = KeyboardInterrupt
        if self._interrupted and kind is KeyboardInterrupt:
            raise self.error() from None

    def error(self) -> PlanError:
        """What stopped it, as an error."""
        hint = "leave the bench more memory, or set the limits (--guard-available and others)"
        return PlanError(fault("bench", f"the guard stopped it: {self.reason}", hint=hint))

    def check(self) -> None:
        """Raises PlanError if the guard has stopped the run; for loops that own their end."""
        if self.stopped:
            raise self.error()

    def report(self) -> dict[str, Any]:
        """Limits as applied, and what was seen."""
        return {
            "limits": asdict(self.limits),
            "samples": self._samples,
            **self._extremes,
            "stopped": self.stopped,
            "reason": self.reason,
        }

    def memory(self) -> dict[str, Any]:
        """Readings before, during (thinned out evenly) and after."""
        return {"before": self._before, "during": list(self._during), "after": self._after}

    def _watch(self) -> None:
        while not self.stopped and not self._done.wait(self.limits.interval_s):
            reading = self._sample()
            if reading is not None and self._samples % self._stride == 0:
                self._during.append(reading)
            if len(self._during) > READINGS_MAX:
                self._during = self._during[1::2]
                self._stride *= 2

    def _sample(self, final: bool = False) -> Reading | None:
        """One reading, judged.  At the end nothing is left to stop."""
        try:
            reading = self._read(self._child.pid if self._child else None)
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody watches
            if not final:
                self._stop(f"memory cannot be read ({error})")
            return None
        self._samples += 1
        reason = self._judge(reading)
        if reason and not final:
            self._stop(reason)
        return reading

    def _judge(self, reading: Reading) -> str | None:
        """Keeps the extremes; why the run has to stop, if it has to."""
        limits, seen = self.limits, self._extremes
        available, swap = reading.get("available_bytes"), reading.get("swap_used_bytes")
        rss = reading.get("rss_bytes")
        low, rise, peak = seen.values()
        if available is not None:
            seen["available_min_bytes"] = available if low is None else min(low, available)
        start = swap if self._before is None else self._before.get("swap_used_bytes")
        if swap is not None and start is not None:
            seen["swap_rise_bytes"] = max(rise or 0, swap - start)
        if rss is not None:
            seen["rss_peak_bytes"] = max(peak or 0, rss)
        if limits.available_min_bytes is not None:
            if available is None:
                return "how much memory is available cannot be read"
            if available < limits.available_min_bytes:
                return f"{available} bytes available, limit {limits.available_min_bytes}"
            if reading.get("pressure_level") == PRESSURE_CRITICAL:
                return "the system calls its memory critical"
        growth = 0 if swap is None or start is None else swap - start
        if limits.swap_rise_max_bytes is not None and growth > limits.swap_rise_max_bytes:
            return f"swap grew by {growth} bytes, limit {limits.swap_rise_max_bytes}"
        if rss is not None and limits.rss_max_bytes is not None and rss > limits.rss_max_bytes:
            return f"the process has {rss} bytes, limit {limits.rss_max_bytes}"
        return None

    def _stop(self, reason: str) -> None:
        if self.stopped:
            return
        self.reason, self.stopped = reason, True
        if self._child is not None:
            _kill(self._child)
        elif self._on_stop is not None:
            self._on_stop(reason)
        elif self._entered:
            self._interrupted = True
            _thread.interrupt_main()


def _kill(child: subprocess.Popen[Any]) -> None:
    """Kills a child, with its group where it leads one; no other process is in that."""
    if child.poll() is not None:
        return
    try:
        if hasattr(os, "killpg") and os.getpgid(child.pid) == child.pid:
            os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()
    except ProcessLookupError:
        pass
