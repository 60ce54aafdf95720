# SPDX-License-Identifier: MIT
"""faults.metal's kernels with inputs and truth, and the faults with how each must be found.

Run as a program it runs the sound kernels in all three orders, then every fault in a process of its
own, which a sanitizer may end, and says on stderr when each begins.
"""

import dataclasses
import os
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parent))

import simt

# Ways of finding a fault: the runtime's own checks raise (a pattern of the message); a result is
# wrong in some order; a sanitizer reports (a pattern of the report).
WRONG = "wrong result"


@dataclasses.dataclass
class Fault:
    kernel: str
    number: int
    what: str
    plain: str = ""  # how without a sanitizer, "" when it is not found so
    address: str = ""  # with address,undefined
    thread: str = ""

    @property
    def name(self):
        return f"{self.kernel}-{self.number}"


RACE = r"data race.*faults\.metal:\d+"
OVERFLOW = r"heap-buffer-overflow.*faults\.metal:\d+"
FAULTS = [
    Fault("row_squares", 1, "no barrier after staging", WRONG, thread=RACE),
    Fault("row_squares", 2, "no barrier before the next chunk", WRONG, thread=RACE),
    Fault(
        "row_squares", 3, "no barrier before other simdgroups' sums are read", WRONG, thread=RACE
    ),
    Fault("row_squares", 4, "a simdgroup's barrier for a threadgroup's", WRONG, thread=RACE),
    Fault("row_squares", 5, "a read behind a buffer", "not the kernel's", address=OVERFLOW),
    Fault("row_squares", 6, "a write behind a buffer", "a write right behind", address=OVERFLOW),
    Fault(
        "row_squares",
        7,
        "a write behind a threadgroup array",
        "outside threadgroup memory",
        address="out of bounds",
    ),
    Fault("row_squares", 8, "threadgroup memory that nobody wrote", WRONG),
    Fault(
        "row_squares",
        9,
        "a simd operation of some lanes",
        r"lanes .* diverge: .* simd_sum \(\S*faults\.metal:\d+\)",
    ),
    Fault(
        "row_squares",
        10,
        "a lane returns before a simd operation",
        r"diverge: .*lane 31 has returned",
    ),
    Fault(
        "row_squares",
        11,
        "a barrier in a branch",
        r"simdgroups diverge: .*threadgroup_barrier .*returned",
    ),
    Fault(
        "row_squares",
        13,
        "two barriers at once",
        r"simdgroups diverge: 0 is at \S+ \(.*\), 2 is at",
    ),
    Fault("row_squares", 16, "a barrier that orders no memory", thread=RACE),
    Fault(
        "row_squares",
        17,
        "a simdgroup returns before a barrier",
        r"simdgroups diverge: .*3 has returned",
    ),
    Fault("tile_product", 1, "no barrier before the next step", WRONG, thread=RACE),
    Fault("tile_product", 2, "a fragment's offset", WRONG),
    Fault("tile_product", 3, "a stored fragment read without a barrier", WRONG, thread=RACE),
    Fault("count_values", 1, "threadgroup memory counted in without an atomic", thread=RACE),
    Fault("count_values", 2, "device memory added to without an atomic", thread=RACE),
    Fault("count_values", 3, "a division by zero", address="division by zero"),
    Fault("chain", 1, "threadgroups that read each other's results", WRONG, thread=RACE),
]
KERNELS = ("row_squares", "tile_product", "count_values", "chain")


def close(got, want):
    """NaN is not close to anything."""
    return bool((np.abs(got - want) <= 1e-4 * (1 + np.abs(want))).all())


def run_row_squares(run):
    rows, cols = 5, 700
    x = np.random.default_rng(1).standard_normal((rows, cols)).astype(np.float32)
    out = np.full(rows, np.nan, np.float32)
    run("row_squares", np.array([rows, cols], np.uint32), [x, out], groups=(rows,), threads=(128,))
    return out, (x.astype(np.float64) ** 2).sum(axis=1)


def run_tile_product(run):
    n = 64
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal((n, n)).astype(np.float16) for _ in range(2))
    out = np.full((n, n), np.nan, np.float32)
    run("tile_product", np.array([n], np.uint32), [a, b, out], groups=(2, 2), threads=(128,))
    return out, a.astype(np.float64) @ b.astype(np.float64)


def run_count_values(run):
    n, per_group = 1000, 300
    values = np.random.default_rng(3).integers(0, 16, n).astype(np.uint32)
    out = np.arange(16, dtype=np.uint32)
    run(
        "count_values",
        np.array([n, per_group], np.uint32),
        [values, out],
        groups=(4,),
        threads=(64,),
    )
    return out.astype(np.float64), np.bincount(values, minlength=16) + np.arange(16.0)


def run_chain(run):
    n = 96
    x = np.random.default_rng(4).standard_normal(n).astype(np.float32)
    out = np.zeros(n, np.float32)
    run("chain", np.array([n], np.uint32), [x, out], groups=(3,), threads=(32,))
    return out, x.astype(np.float64)


def attempt(device, kernel, fault, order, **options):
    """What came of it: "right", WRONG, or the error's text; and the bits of the result."""

    def run(name, args, buffers, **sizes):
        device.run(name, args, buffers, constants={0: fault}, order=order, **sizes, **options)

    try:
        got, want = globals()[f"run_{kernel}"](run)
    except simt.SimtError as error:
        return str(error), b""
    return "right" if close(got, want) else WRONG, got.tobytes()


def load(sanitize=simt.SANITIZE):
    return simt.Device(HERE / "faults.metal", sanitize=sanitize)


def main():
    device = load()
    for kernel in KERNELS:
        for order in simt.ORDERS:
            print(f"begin {kernel}-0 {order}", file=sys.stderr, flush=True)
            print(f"result {attempt(device, kernel, 0, order)[0]}", file=sys.stderr, flush=True)
    for fault in FAULTS:
        print(f"begin {fault.name}", file=sys.stderr, flush=True)
        child = os.fork()
        if child == 0:
            print(
                f"result {attempt(device, fault.kernel, fault.number, 'forward')[0]}",
                file=sys.stderr,
                flush=True,
            )
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
