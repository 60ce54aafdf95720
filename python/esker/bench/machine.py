# SPDX-License-Identifier: MIT
"""Facts of the machine and the software, and readings of memory and swap.

Owns: where the system tells such things (/proc, /sys, sysctl; on macOS also the native module, in
csrc/base/machine_macos.cpp).  None where it does not.
No host names, no user names: absolute paths lose their folders.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .hashes import sha256_bytes, sha256_file

_PACKAGE = Path(__file__).resolve().parent.parent
_ABSOLUTE = re.compile(r"(?<![\w.~/-])(?:~|/)[^\s:=,;'\"]*/(?=[^\s/:=,;'\"]+)")
_TOOL_TIMEOUT_S = 10
# Root, controller, files of usage and limit: version 2, version 1.
_CGROUPS = (
    ("/sys/fs/cgroup", "", "memory.current", "memory.max"),
    ("/sys/fs/cgroup/memory", "memory", "memory.usage_in_bytes", "memory.limit_in_bytes"),
)


def scrub(text: str) -> str:
    """The text with absolute paths cut down to their last part: "/home/me/a.gguf" -> "a.gguf"."""
    return _ABSOLUTE.sub("", text)


def esker_variables(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Every ESKER_ variable that is set.  For the record: options.py reads them as options."""
    environ = os.environ if environ is None else environ
    return {
        name: scrub(value) for name, value in sorted(environ.items()) if name.startswith("ESKER_")
    }


def software_facts() -> dict[str, Any]:
    """What is measured: version, hash of the native library and of the Python files, commit."""
    try:
        version = importlib.metadata.version("esker")
    except importlib.metadata.PackageNotFoundError:
        version = None
    return {
        "version": version,
        "native_sha256": _native_sha256(),
        "package_sha256": _package_sha256(),
        "source": source_facts(_PACKAGE),
    }


def _native_sha256() -> str | None:
    try:
        spec = importlib.util.find_spec("esker._core")
        return sha256_file(spec.origin) if spec and spec.origin else None
    except (ImportError, OSError):
        return None


def _package_sha256() -> str:
    names = sorted(path.relative_to(_PACKAGE).as_posix() for path in _PACKAGE.rglob("*.py"))
    hashes = (f"{sha256_file(_PACKAGE / name)}  {name}\n" for name in names)
    return sha256_bytes("".join(hashes).encode())


def source_facts(folder: Path) -> dict[str, Any] | None:
    """Commit and dirtiness of the git checkout that holds a folder, None where there is none.

    Result files themselves do not make it dirty.
    """
    top = git(folder, "rev-parse", "--show-toplevel")
    if top is None or git(Path(top), "ls-files", "--error-unmatch", str(_PACKAGE)) is None:
        return None
    commit = git(folder, "rev-parse", "HEAD")
    changes = git(Path(top), "status", "--porcelain", "--", ".", ":(exclude)bench/results")
    if commit is None or changes is None:
        return None
    return {"commit": commit, "dirty": bool(changes)}


def git(folder: Path, *words: str) -> str | None:
    """What git says in a folder; None if it fails or is not there."""
    return _output("git", "-C", str(folder), *words)


def machine_facts() -> dict[str, Any]:
    """What the numbers were measured on."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cpu": _cpu_name(),
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "cores_usable": usable,
        "memory_bytes": read_memory()["total_bytes"],
        "system": platform.system(),
        "kernel": platform.release(),
        "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "python": platform.python_version(),
        **_system_facts(),
    }


def _system_facts() -> dict[str, Any]:
    """What macOS says of itself: Low Power Mode, limits of wired memory."""
    if sys.platform != "darwin":
        return {}
    from .. import _core

    return _core.system_facts()


def _cpu_name() -> str | None:
    if sys.platform == "darwin":
        return _output("sysctl", "-n", "machdep.cpu.brand_string")
    match = re.search(r"^model name\s*:\s*(.+)$", _read("/proc/cpuinfo") or "", re.MULTILINE)
    return match[1].strip() if match else None


READING = (
    "total_bytes",
    "free_bytes",
    "available_bytes",
    "cached_bytes",
    "swap_total_bytes",
    "swap_used_bytes",
    "swap_in_pages",  # these five count since the system started
    "swap_out_pages",
    "major_faults",
    "page_in_kib",
    "decompressions",
    "pressure_level",  # macOS: 1 none, 2 warning, 4 critical
    "rss_bytes",  # the process
    "rss_peak_bytes",
    "footprint_bytes",  # without mapped files, with what is swapped or compressed
    "process_major_faults",
    "cgroup_usage_bytes",
    "cgroup_limit_bytes",
)


def read_memory(pid: int | None = None) -> dict[str, Any]:
    """One reading: the machine, the process (default this one) and the cgroup it lies in."""
    reading: dict[str, Any] = {"time_ns": time.monotonic_ns(), **dict.fromkeys(READING)}
    if sys.platform == "darwin":
        from .. import _core

        reading.update(_core.memory_reading(pid or 0))
    else:
        _read_linux(reading, pid)
    return reading


def _read_linux(reading: dict[str, Any], pid: int | None) -> None:
    info = _fields("/proc/meminfo", scale=1024)
    stat = _fields("/proc/vmstat")
    reading["total_bytes"] = info.get("MemTotal")
    reading["free_bytes"] = info.get("MemFree")
    reading["available_bytes"] = info.get("MemAvailable")
    reading["cached_bytes"] = info.get("Cached")
    reading["swap_total_bytes"] = info.get("SwapTotal")
    if "SwapTotal" in info and "SwapFree" in info:
        reading["swap_used_bytes"] = info["SwapTotal"] - info["SwapFree"]
    reading["swap_in_pages"] = stat.get("pswpin")
    reading["swap_out_pages"] = stat.get("pswpout")
    reading["major_faults"] = stat.get("pgmajfault")
    reading["page_in_kib"] = stat.get("pgpgin")
    process = "self" if pid is None else str(pid)
    status = _fields(f"/proc/{process}/status", scale=1024)
    reading["rss_bytes"] = status.get("VmRSS")
    reading["rss_peak_bytes"] = status.get("VmHWM")
    if "RssAnon" in status:
        own = ("RssAnon", "RssShmem", "VmSwap")
        reading["footprint_bytes"] = sum(status.get(name, 0) for name in own)
    words = (_read(f"/proc/{process}/stat") or "").rpartition(")")[2].split()
    if len(words) > 9:
        reading["process_major_faults"] = int(words[9])
    reading["cgroup_usage_bytes"], reading["cgroup_limit_bytes"] = _read_cgroup(process)


def _read_cgroup(process: str) -> tuple[int | None, int | None]:
    """Usage and the lowest limit on the way up to the root; version 2, else version 1."""
    groups = {}
    for line in (_read(f"/proc/{process}/cgroup") or "").splitlines():
        _, controllers, place = line.split(":", 2)
        groups.update(dict.fromkeys(controllers.split(","), place))
    for root, controller, usage_name, limit_name in _CGROUPS:
        if controller not in groups:
            continue
        folder = Path(root + groups[controller])
        usage = _integer(_read(str(folder / usage_name)))
        if usage is None:
            continue
        limits = []
        while folder != Path(root).parent:
            limit = _integer(_read(str(folder / limit_name)))
            if limit is not None and limit < 1 << 60:  # version 1 writes no limit as 2^63
                limits.append(limit)
            folder = folder.parent
        return usage, min(limits, default=None)
    return None, None


def drop_page_cache(path: str | os.PathLike[str]) -> bool:
    """Asks the system to forget a file's cached pages; whether it could be asked."""
    if not hasattr(os, "posix_fadvise"):
        return False
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return True


def _fields(path: str, scale: int = 1) -> dict[str, int]:
    """Lines such as "MemFree:  12 kB" or "pswpin 3"; a unit kB scales."""
    found = {}
    for line in (_read(path) or "").splitlines():
        words = line.replace(":", " ").split()
        if len(words) >= 2 and words[1].isdigit():
            found[words[0]] = int(words[1]) * (scale if words[-1] == "kB" else 1)
    return found


def _integer(text: str | None) -> int | None:
    text = (text or "").strip()
    return int(text) if text.isdigit() else None


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return None


def _output(*words: str) -> str | None:
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=_TOOL_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
