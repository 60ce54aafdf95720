# SPDX-License-Identifier: MIT
"""esker selftest: checks this machine's devices, and prints one report to paste into an issue."""

from __future__ import annotations

import argparse
import contextlib
import sys
from dataclasses import asdict

from .. import _core, devices, selftest
from ..bench.machine import machine_facts, software_facts
from ..errors import EskerError
from .common import print_json


def run(args: argparse.Namespace) -> int:
    asked = args.load.backend

    def progress(text: str) -> None:
        if not args.json:
            print(f"{text} ...", file=sys.stderr, flush=True)

    reports: list[selftest.DeviceReport] = []
    absent: dict[str, str] = {}
    if asked in ("auto", "cpu"):
        reports.append(selftest.test_cpu(progress, args.quick))
    for name in devices.known():
        if asked not in ("auto", name):
            continue
        try:
            device = _core.GpuDevice(name)
        except EskerError as error:
            if asked == name:
                raise
            absent[name] = error.message
            continue
        report = selftest.test_gpu(name, progress, args.quick)
        reports.append(report)
        if not args.quick:
            with contextlib.suppress(OSError):  # then "auto" stays with the cpu
                devices.record(name, device, report.passed)
    if not reports:
        _core.GpuDevice(asked)  # says why not
    facts = _facts()
    passed = all(report.passed for report in reports)
    if args.json:
        print_json(
            {
                "passed": passed,
                "facts": facts,
                "devices": [{**asdict(r), "passed": r.passed} for r in reports],
                "absent": absent,
            }
        )
    else:
        print(selftest.as_text(facts, reports, absent))
    return 0 if passed else 1


def _facts() -> dict[str, str]:
    software, machine = software_facts(), machine_facts()
    return {
        "esker": f"{software['version']}, native {str(software['native_sha256'])[:12]}",
        "machine": f"{machine['cpu']}, {machine['cores']} cores,"
        f" {machine['memory_bytes'] / 1e9:.1f} GB",
        "system": str(machine.get("system", "")),
    }
