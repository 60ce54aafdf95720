# SPDX-License-Identifier: MIT
"""Runs the parity cases on a device of the installed wheel, several processes at a time.

    python tests/gpu/parity_in_parallel.py DEVICE PROCESSES [--record FILE | --cover FILE]

--record FILE: writes which kernels every case runs.
--cover FILE: of what was recorded, only cases that run every kernel once: for tools that make each of
    them slow, as compute-sanitizer does.
"""

from __future__ import annotations

import argparse
import collections
import json
import multiprocessing
import sys
import time
from pathlib import Path

Kernels = dict[str, list[str]]  # by the name of a case


class Recording:
    """A device that notes what is run on it."""

    def __init__(self, device):
        self.device = device
        self.kernels = set()

    def run(self, area, kernel, args, buffers, **how):
        self.kernels.add(kernel)
        self.device.run(area, kernel, args, buffers, **how)


def run_share(device: str, share: int, shares: int, wanted: set[str] | None) -> list[tuple]:
    """[case, "ok" | "skipped" | "FAILED", share of the limit or error, kernels]"""
    from esker import EskerError, _core
    from esker.files import cache_folder
    from esker.parity import Failed, GpuUnderTest, Skipped, all_cases

    under_test = GpuUnderTest(_core.GpuDevice(device, cache_folder()))
    results = []
    cases = [(f"{case.area}: {case.name}", case) for case in all_cases()]
    for name, case in [c for c in cases if wanted is None or c[0] in wanted][share::shares]:
        recording = Recording(under_test)
        try:
            result = ("ok", case.run(recording))
        except Skipped:
            result = ("skipped", 0.0)
        except (Failed, EskerError) as error:
            result = ("FAILED", str(error))
        results.append((name, *result, sorted(recording.kernels)))
    return results


def covering(kernels: Kernels) -> set[str]:
    """Few cases that run every kernel, the one that adds most first."""
    missing = {kernel for of_case in kernels.values() for kernel in of_case}
    chosen = set()
    while missing:
        best = max(kernels, key=lambda name: len(missing.intersection(kernels[name])))
        chosen.add(best)
        missing.difference_update(kernels[best])
    return chosen


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("device")
    parser.add_argument("processes", type=int)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--cover", type=Path)
    asked = parser.parse_args()
    wanted = covering(json.loads(asked.cover.read_text())) if asked.cover else None
    begin = time.perf_counter()
    shares = [(asked.device, i, asked.processes, wanted) for i in range(asked.processes)]
    with multiprocessing.get_context("spawn").Pool(asked.processes) as pool:
        results = [result for share in pool.starmap(run_share, shares) for result in share]
    counts = collections.Counter(status for _, status, _, _ in results)
    kernels = {kernel for *_, of_case in results for kernel in of_case}
    print(f"{len(results)} cases, {len(kernels)} kernels, {time.perf_counter() - begin:.0f} s")
    print(", ".join(f"{n} {status}" for status, n in counts.items()))
    for name, status, detail, _ in results:
        if status == "FAILED":
            print(f"{name}: {detail}")
    if asked.record:
        asked.record.write_text(json.dumps({name: of_case for name, *_, of_case in results}))
    return 1 if counts["FAILED"] else 0


if __name__ == "__main__":
    sys.exit(main())
