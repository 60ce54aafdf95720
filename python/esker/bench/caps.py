# SPDX-License-Identifier: MIT
"""Memory caps: a run in a memory cgroup of its own, version 1 or 2, whichever the system has.

    with MemoryCap(limit_bytes) as cap:
        process = subprocess.Popen(..., preexec_fn=cap.enter)
        process.wait()
        run["settings"].update(cap.report())

The group lies below this process's own where that works, so that what is capped above stays so;
version 2 lets only groups without processes share out memory, so there the nearest one above that
does so is taken.  What the group held in the page cache goes with it.
Owns: how cgroups are found and written.  Linux only; elsewhere UsageError.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..errors import UsageError, fault

if TYPE_CHECKING:
    from typing_extensions import Self

_NO_LIMIT = 1 << 60  # version 1 writes no limit as a number above this, version 2 as "max"
_REMOVE_TRIES = 50  # a group can be removed once its last process is gone: a moment after its end
_REMOVE_WAIT_S = 0.1
CAP_HINT = (
    "memory caps need the right to make cgroups: run as root, or in a delegated group"
    " (systemd-run --user --scope -p Delegate=yes ...)"
)
_UNESCAPE = re.compile(r"\\([0-7]{3})")  # how /proc/self/mounts writes spaces


@dataclass(frozen=True)
class Place:
    """Where groups with a memory limit can be made: version, and folders to try in order."""

    version: int
    folders: tuple[Path, ...]


def find_place(mounts: str, groups: str) -> Place | None:
    """From the texts of /proc/self/mounts and /proc/self/cgroup; None where there is no memory
    controller.  Version 1 has a file system of its own for memory; version 2 has one for all."""
    own = {}
    for line in groups.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for controller in controllers.split(",") if controllers else [f"unified {number}"]:
            own[controller] = path.lstrip("/")
    unified = None
    for line in mounts.splitlines():
        words = line.split()
        if len(words) < 4:
            continue
        root = Path(_UNESCAPE.sub(lambda match: chr(int(match[1], 8)), words[1]))
        if words[2] == "cgroup" and "memory" in words[3].split(",") and "memory" in own:
            return Place(1, tuple(_existing(root, own["memory"])))
        if words[2] == "cgroup2" and unified is None:
            unified = root
    if unified is None or "unified 0" not in own:
        return None
    folders = (f for f in _upwards(unified, own["unified 0"]) if _shares_memory(f))
    found = tuple(folders)
    return Place(2, found) if found else None


def _existing(root: Path, path: str) -> Iterator[Path]:
    """The own group, and the root for containers that see another tree than the paths say."""
    if (root / path).is_dir():
        yield root / path
    elif root.is_dir():
        yield root


def _upwards(root: Path, path: str) -> Iterator[Path]:
    folder = root / path
    while folder != root:
        if folder.is_dir():
            yield folder
        folder = folder.parent
    yield root


def _shares_memory(folder: Path) -> bool:
    return "memory" in (_read(folder / "cgroup.subtree_control") or "").split()


class MemoryCap:
    """A memory cgroup from __enter__ to __exit__.

    Attributes:
        version: 1 or 2.  limit_bytes: as the kernel applies it (whole pages).
    """

    def __init__(self, limit_bytes: int, place: Place | None = None) -> None:
        """Raises UsageError where caps are not possible."""
        if limit_bytes <= 0:
            raise UsageError(
                fault("bench", "memory cap", got=limit_bytes, want="more than nothing")
            )
        self._place = place or _system_place()
        self._asked = limit_bytes
        self._folder: Path | None = None
        self.version = self._place.version
        self.limit_bytes = limit_bytes

    def __enter__(self) -> Self:
        self._folder = self._make()
        try:
            self._limit(self._folder)
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._remove()

    def enter(self) -> None:
        """Moves the calling process into the group; for preexec_fn, so it only writes a file."""
        assert self._folder is not None
        handle = os.open(self._folder / "cgroup.procs", os.O_WRONLY)
        try:
            os.write(handle, b"%d\n" % os.getpid())
        finally:
            os.close(handle)

    def report(self) -> dict[str, Any]:
        """What a run's settings record: the cap as applied, and what happened in the group.

        limit_hits: how often an allocation met the limit (the kernel then takes pages back).
        oom_kills: processes that it killed.
        """
        assert self._folder is not None
        if self.version == 1:
            peak = _number(self._folder / "memory.max_usage_in_bytes")
            # With swap limited too it is that limit which is met first.
            counts = ("memory.failcnt", "memory.memsw.failcnt")
            hits: int | None = sum(_number(self._folder / name) or 0 for name in counts)
            kills = _fields(self._folder / "memory.oom_control").get("oom_kill")
        else:
            events = _fields(self._folder / "memory.events")
            peak = _number(self._folder / "memory.peak")
            hits, kills = events.get("max"), events.get("oom_kill")
        facts = {
            "version": self.version,
            "limit_bytes": self.limit_bytes,
            "peak_bytes": peak,
            "limit_hits": hits,
            "oom_kills": kills,
        }
        return {"memory_cap_bytes": self.limit_bytes, "memory_cap": facts}

    def _make(self) -> Path:
        refused = None
        for folder in self._place.folders:
            new = folder / f"esker-bench-{os.getpid()}-{time.monotonic_ns()}"
            try:
                new.mkdir()
                return new
            except OSError as error:
                refused = error
        why = refused.strerror if refused else "there is no group to make it in"
        raise UsageError(fault("bench", f"cannot make a memory cgroup: {why}", hint=CAP_HINT))

    def _limit(self, folder: Path) -> None:
        name, swap = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
        if self.version == 2:
            name, swap = ("memory.max", "memory.swap.max")
        try:
            (folder / name).write_text(f"{self._asked}\n")
        except OSError as error:
            why = f"cannot limit a memory cgroup: {error.strerror}"
            raise UsageError(fault("bench", why, hint=CAP_HINT)) from None
        with contextlib.suppress(OSError):  # a kernel without swap accounting has no such file
            if (folder / swap).exists():
                # Version 1 limits memory and swap together, version 2 swap alone.
                (folder / swap).write_text(f"{self._asked if self.version == 1 else 0}\n")
        applied = _number(folder / name)
        if applied is None or applied >= _NO_LIMIT:
            raise UsageError(fault("bench", "the memory cap was not taken", got=applied))
        self.limit_bytes = applied

    def _remove(self) -> None:
        folder, self._folder = self._folder, None
        if folder is None:
            return
        with contextlib.suppress(OSError):  # drops its page cache, which nobody else would
            (folder / "memory.force_empty").write_text("0\n")
        for attempt in range(_REMOVE_TRIES):
            try:
                return folder.rmdir()
            except FileNotFoundError:
                return
            except OSError:
                if attempt + 1 < _REMOVE_TRIES:
                    time.sleep(_REMOVE_WAIT_S)
        print(f"esker: a memory cgroup is left behind: {folder.name}", file=sys.stderr)


def _system_place() -> Place:
    if not sys.platform.startswith("linux"):
        raise UsageError(fault("bench", "memory caps need Linux cgroups", got=sys.platform))
    mounts, groups = (_read(Path("/proc/self") / name) for name in ("mounts", "cgroup"))
    place = find_place(mounts or "", groups or "")
    if place is None or not place.folders:
        raise UsageError(fault("bench", "no cgroup here can limit memory", hint=CAP_HINT))
    return place


def _fields(path: Path) -> dict[str, int]:
    """Lines such as "oom_kill 1"."""
    pairs = (line.split() for line in (_read(path) or "").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _number(path: Path) -> int | None:
    text = (_read(path) or "").strip()
    return int(text) if text.isdigit() else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None
