# SPDX-License-Identifier: MIT
"""What `esker selftest` checks on a machine: every kernel compiled, every parity case run, the demo
model's text, and how fast the decode kernels are next to plain streaming of memory.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

import numpy as np

from . import _core
from .errors import EskerError
from .files import cache_folder

Progress = Callable[[str], None]

_TIMED = (
    ("matvec", "Q8_0", 10240, 2560), ("matvec", "Q6_K", 10240, 2560), ("matvec", "Q4_K", 10240, 2560),
    ("matvec", "IQ4_XS", 10240, 2560), ("matvec", "IQ3_S", 10240, 2560), ("matvec", "IQ2_S", 10240, 2560),
    ("matvec", "Q2_0", 10240, 2560), ("gate_up", "IQ2_S", 640, 2560), ("gate_up", "IQ2_XXS", 640, 2560),
    ("down", "Q2_0", 2560, 640),
)  # fmt: skip
_TOP_K = 10
_TIMED_BYTES = 512 << 20  # of weights gone through, so that no cache holds them
_READ = ("matvec", "F32", 65536, 2560)  # of which nothing is decoded: how fast memory can be read
_LINES_MAX = 12  # of failures shown of one check


@dataclass
class Check:
    name: str
    passed: bool
    detail: str
    seconds: float
    failures: list[str] = field(default_factory=list)


@dataclass
class DeviceReport:
    backend: str
    description: str
    checks: list[Check] = field(default_factory=list)
    rates: list[dict[str, Any]] = field(default_factory=list)  # of decode kernels, see rates()

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)


def test_cpu(progress: Progress, quick: bool = False) -> DeviceReport:
    """The CPU backend: every weight type's product against its scalar decoder, the demo's text."""
    info = _core.cpu_info()
    report = DeviceReport("cpu", f"{info['instruction_set']}, {info['cores']} cores")
    report.checks.append(_checked("products", progress, _cpu_products))
    report.checks.append(_checked("demo text", progress, lambda: _demo("cpu", quick)))
    return report


def test_gpu(name: str, progress: Progress, quick: bool = False) -> DeviceReport:
    """A GPU.  Raises EskerError where it cannot be opened."""
    device = _core.GpuDevice(name, cache_folder())
    report = DeviceReport(name, f"{device.description} ({device.family})")
    report.checks.append(_checked("kernels compile", progress, lambda: _compiled(device)))
    report.checks += _parity(device, progress, quick)
    report.checks.append(_checked("demo text", progress, lambda: _demo(name, quick)))
    if name != "simt" and not quick:  # an emulator's speed says nothing
        progress("decode kernels")
        report.rates = rates(name)
    return report


def rates(name: str) -> list[dict[str, Any]]:
    """GB/s of the decode kernels, and as share of what a large matrix of floats is read at, which
    needs no decoding.  The first entry is that."""
    found: list[dict[str, Any]] = []
    family = _core.GpuDevice(name).family
    for use, kind, rows, cols in (_READ, *_TIMED):
        lanes, r, simds, split, table, stage = _core.gpu_tile(family, use, kind, rows, cols)
        tile = (lanes, r, simds, split, table, stage)
        times = _core.gpu_tune(name, use, kind, rows, cols, [tile], _TIMED_BYTES, 16, 5, _TOP_K)
        rate = times["bytes"] / statistics.median(times["tile_ns"][0])
        kernel = f"{use} {kind} {cols}x{rows}"
        peak = found[0]["gb_per_s"] if found else rate
        found.append({"kernel": kernel, "gb_per_s": rate, "share": rate / peak})
    return found


def _checked(name: str, progress: Progress, check: Callable[[], tuple[str, list[str]]]) -> Check:
    """Runs a check that gives a sentence and what failed; what it raises is a failure too."""
    progress(name)
    begin = time.perf_counter()
    try:
        detail, failures = check()
    except EskerError as error:
        detail, failures = "", [str(error)]
    return Check(name, not failures, detail, time.perf_counter() - begin, failures)


def _cpu_products() -> tuple[str, list[str]]:
    failures, n = [], 0
    for kind, columns in _types():
        for tokens in (1, 5):
            n += 1
            try:
                _core.probe_matmul(kind, 96, columns, tokens=tokens)
            except EskerError as error:
                failures.append(f"{kind}, {tokens} tokens: {error}")
    return f"{n} products", failures


def _types() -> Iterator[tuple[str, int]]:
    """Every weight type that kernels know, and a number of columns in whole blocks."""
    for name in _core.gpu_kernel_names():
        if name.startswith("embed_"):
            yield name.removeprefix("embed_"), 512


def _compiled(device: _core.GpuDevice) -> tuple[str, list[str]]:
    names = _core.gpu_kernel_names()
    try:
        device.compile(names)
    except EskerError:
        failures = []
        for name in names:  # which of them
            try:
                device.compile([name])
            except EskerError as error:
                failures.append(f"{name}: {error}")
        return f"{len(names) - len(failures)} of {len(names)}", failures
    return f"{len(names)} kernels", []


def _parity(device: _core.GpuDevice, progress: Progress, quick: bool) -> Iterator[Check]:
    """One check an area of kernels."""
    from .parity import Failed, GpuUnderTest, Skipped, all_cases

    under_test = GpuUnderTest(device)
    areas: dict[str, list[Any]] = {}
    for case in all_cases():
        areas.setdefault(case.area, []).append(case)
    for area, cases in areas.items():

        def check(cases: list[Any] = cases[:: 10 if quick else 1]) -> tuple[str, list[str]]:
            failures, worst = [], 0.0
            for case in cases:
                try:
                    worst = max(worst, case.run(under_test))
                except Skipped:
                    continue
                except (Failed, EskerError) as error:
                    failures.append(f"{case.name}: {error}")
            detail = f"{len(cases)} cases"
            if worst:
                detail += f", at most {100 * worst:.0f} % of the error allowed"
            return detail, failures

        yield _checked(f"parity: {area}", progress, check)


def _demo(backend: str, quick: bool) -> tuple[str, list[str]]:
    """Greedy text of the demo model, resident and streamed, against float32 transformers."""
    from .model import Model

    file = resources.files(__package__) / "data" / "demo-greedy.json"
    texts = json.loads(file.read_text(encoding="utf-8"))["texts"]
    n = 8 if quick else 64
    failures, checked = [], 0
    for arena in ("100%", "25%"):
        with Model(backend=backend, arena=arena) as model:
            for number, text in enumerate(texts[: 1 if quick else None]):
                session = model.session()
                session.prefill(text["prompt"])
                logits = session.logits()
                for place, want in enumerate(text["tokens"][:n]):
                    got = int(np.argmax(logits))
                    checked += 1
                    if got != want:
                        where = f"arena {arena}, text {number}, token {place}"
                        failures.append(f"{where}: got {got}, want {want}")
                        break
                    logits = session.decode(got)
    return f"{checked} tokens", failures


def as_text(facts: dict[str, str], reports: list[DeviceReport], absent: dict[str, str]) -> str:
    """The report as people paste it."""
    lines = [f"{name:<9}{value}" for name, value in facts.items()]
    for report in reports:
        lines += ["", f"{report.backend}: {report.description}"]
        width = max(len(check.name) for check in report.checks)
        for check in report.checks:
            mark = "ok    " if check.passed else "FAILED"
            lines.append(
                f"  {mark} {check.name:<{width}}  {check.seconds:6.1f} s  {check.detail}".rstrip()
            )
            lines += [f"         {text}" for text in check.failures[:_LINES_MAX]]
            if len(check.failures) > _LINES_MAX:
                lines.append(f"         and {len(check.failures) - _LINES_MAX} more")
        for rate in report.rates:
            lines.append(
                f"  {rate['kernel']:<28}{rate['gb_per_s']:8.1f} GB/s{100 * rate['share']:6.0f} %"
            )
    lines += ["", *(f"{name}: not here: {why}" for name, why in absent.items())]
    verdict = "passed" if all(r.passed for r in reports) else "FAILED"
    return "\n".join([*lines, f"selftest {verdict}"])
