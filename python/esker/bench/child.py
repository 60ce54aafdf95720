# SPDX-License-Identifier: MIT
"""One measured run, in a process of its own, which process.py starts.

The job is one JSON object on standard input; events are JSON lines on standard output, so that a
run that is killed leaves behind what it had done:

    {"event": "phase", "name": "load_s", "seconds": ...}   as each phase ends
    {"event": "done", ...}                                 last: what else the run's record holds
    {"event": "error", "kind", "message", "hint"}          instead, when esker refuses

Jobs: "text" opens a model, fills the arena, reads a prompt and feeds stated tokens one by one;
"ops" and "disk" run the native probes.  peer.py does the same "text" job with llama.cpp.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

from ..errors import EskerError

GPU_LAUNCHES = 16  # of one measurement, in one command
GPU_READ_BYTES = 768_000_000  # more than any cache
GPU_TOP_K = 10

Job = dict[str, Any]
Tell = Callable[..., None]


def main() -> int:
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else is printed is no event

    def tell(event: str, **facts: Any) -> None:
        output.write(json.dumps({"event": event, **facts}) + "\n")
        output.flush()

    try:
        job = json.load(sys.stdin)
        _JOBS[job["kind"]](job, tell)
    except EskerError as error:
        tell("error", kind=type(error).__name__, message=error.message, hint=error.hint)
        return 1
    except MemoryError as error:
        tell("error", kind="PlanError", message=str(error) or "out of memory", hint="ask for less")
        return 1
    return 0


def run_text(job: Job, tell: Tell) -> None:
    import numpy as np

    from .. import _core
    from ..model import Model

    exact = _exact_logits(job) if job.get("price") else []
    begin = time.perf_counter_ns()
    model = Model(job["model"], **job["options"])
    session = model.session()
    tell("phase", name="load_s", seconds=_seconds_since(begin))
    prompt, fed, fill = job["prompt"], job["fed"], job["fill"]
    if fill:
        begin = time.perf_counter_ns()
        other = model.session()
        other.prefill(fill[: len(prompt)])
        for token in fill[len(prompt) :]:
            other.decode(token)
        tell("phase", name="arena_fill_s", seconds=_seconds_since(begin))
        del other
    tokens: list[dict[str, int]] = []
    drawn: list[int] = []
    if prompt:
        before = model.counters
        begin = time.perf_counter_ns()
        session.prefill(prompt)
        logits = session.logits()
        prompt_s = _seconds_since(begin)
        drawn.append(int(np.argmax(logits)))
        kept = [logits] if exact else []
        tokens.append({"wall_ns": time.perf_counter_ns() - begin})
        tell("phase", name="prompt_s", seconds=prompt_s)
        before = _add_counters(tokens[-1], model.counters, before)
        for token in fed[:-1]:
            logits = session.decode(token)
            drawn.append(int(np.argmax(logits)))
            tokens.append({"wall_ns": time.perf_counter_ns() - begin})
            before = _add_counters(tokens[-1], model.counters, before)
            if exact:
                kept.append(logits)
        for counters, got, want in zip(tokens, kept, exact, strict=False):
            counters |= _price(got, want)
    plan = model.plan
    settings = {
        "threads": job["options"]["threads"],
        "activations": model.options.activations,
        "read_ahead": model.options.read_ahead,
        "read_ahead_2": model.options.read_ahead_2,
        "touch_guesses": model.options.touch_guesses,
        "split_turn": model.options.split_turn,
        "cache_prior": model.options.cache_prior,
        "protect": model.options.protect,
        "starvation": model.options.starvation,
        "instruction_set": _core.cpu_info()["instruction_set"],
        "context": plan["context"],
        "chunk": plan["chunk"],
        "arena_bytes": plan["arena_bytes"],
        "slots": sum(part["slots"] for part in plan["classes"]),
        "classes": plan["classes"],
        "plan_bytes": plan["total_bytes"],
        "plan_limit_bytes": plan["limit_bytes"],
        "usage": usage(),
    }
    tell("done", tokens=tokens, output=drawn, settings=settings)


def _exact_logits(job: Job) -> list[Any]:
    """Of the prompt and of every token after it, without a cache prior; and no read-ahead, which
    changes nothing."""
    from ..model import Model

    options = {**job["options"], "cache_prior": 0.0, "read_ahead": 0, "read_ahead_2": 0}
    with Model(job["model"], **options) as model:
        session = model.session()
        session.prefill(job["prompt"])
        return [session.logits(), *(session.decode(token) for token in job["fed"][:-1])]


def _price(got: Any, want: Any) -> dict[str, int]:
    """Of one token: the KL divergence from the exact distribution in 10^-9 nats, and whether both
    find the same token likeliest."""
    import numpy as np

    def log_softmax(logits: Any) -> Any:
        shifted = logits.astype(np.float64) - logits.max()
        return shifted - np.log(np.exp(shifted).sum())

    p, q = log_softmax(want), log_softmax(got)
    divergence = float((np.exp(p) * (p - q)).sum())
    return {
        "kl_nano": round(1e9 * max(divergence, 0.0)),
        "same_top1": int(np.argmax(got) == np.argmax(want)),
    }


def run_ops(job: Job, tell: Tell) -> None:
    """Every matrix shape, `passes` times: all copies once, then a plain read of the same bytes."""
    from .. import _core
    from ..options import ACTIVATIONS

    samples: dict[str, list[dict[str, Any]]] = {"kernel": [], "read": []}
    activations = job["activations"]
    for shape in job["shapes"]:
        rows, cols = shape["rows"], shape["cols"]
        options = {
            "tokens": job["tokens"],
            "threads": job["threads"],
            "activation_bytes": ACTIVATIONS[activations],
        }
        one = _core.probe_matmul(shape["type"], rows, cols, **options)  # tells its size
        copies = max(1, -(-job["copies_bytes"] // one["matrix_bytes"]))
        times = _core.probe_matmul(
            shape["type"], rows, cols, copies=copies, repeats=job["passes"], **options
        )
        name = "matvec" if job["tokens"] == 1 else f"matmul{job['tokens']}"
        what = {"name": name, "type": shape["type"], "shape": [rows, cols]}
        what["bytes"] = times["read_bytes"]
        for begin in range(0, len(times["op_ns"]), copies):
            ns = sum(times["op_ns"][begin : begin + copies])
            samples["kernel"].append({**what, "ns": ns, "ops": copies})
        samples["read"] += [{**what, "ns": ns} for ns in times["read_ns"]]
        tell("progress", text=f"{shape['type']} {rows}x{cols}")
    settings = {
        "threads": job["threads"],
        "activations": activations,
        "instruction_set": _core.cpu_info()["instruction_set"],
    }
    tell("done", samples=samples, settings=settings)


def run_gpu_ops(job: Job, tell: Tell) -> None:
    """The same on a GPU: the decode kernels, cut by the tiles that a run would take, next to a matrix
    of floats of the same width, large and without decoding; and the least that a launch takes."""
    import statistics

    from .. import _core, tiles

    backend = job["backend"]
    device = _core.GpuDevice(backend)
    kept = {product[:4]: product[4] for product in tiles.load(backend)}
    samples: dict[str, list[dict[str, Any]]] = {"kernel": [], "read": []}
    kernels: list[dict[str, Any]] = []

    def tile_of(use: str, kind: str, rows: int, cols: int) -> tiles.Tile:
        product = (use, kind, rows, cols)
        lanes, r, simds, split, table, stage = kept.get(product) or _core.gpu_tile(
            device.family, *product
        )
        return (lanes, r, simds, split, table, stage)

    def timed(use: str, kind: str, rows: int, cols: int) -> dict[str, Any]:
        product = (use, kind, rows, cols)
        return _core.gpu_tune(
            backend,
            *product,
            [tile_of(*product)],
            job["copies_bytes"],
            GPU_LAUNCHES,
            job["passes"],
            GPU_TOP_K,
        )

    for shape in job["shapes"]:
        use, rows, cols = shape.get("use", "matvec"), shape["rows"], shape["cols"]
        times = timed(use, shape["type"], rows, cols)
        what = {"name": use, "type": shape["type"], "shape": [rows, cols], "bytes": times["bytes"]}
        tile = list(tile_of(use, shape["type"], rows, cols))
        kernels.append({**what, "tile": tile, **times["resources"][0]})
        samples["kernel"] += [{**what, "ns": ns} for ns in times["tile_ns"][0]]
        read = timed("matvec", "F32", -(-GPU_READ_BYTES // (4 * cols)), cols)
        samples["read"] += [{**what, "bytes": read["bytes"], "ns": ns} for ns in read["tile_ns"][0]]
        tell("progress", text=f"{use} {shape['type']} {rows}x{cols}")
    launch = _core.gpu_stream(backend, 1, 1000, job["passes"])["wall_ns"]
    samples["kernel"] += [{"name": "launch", "ns": ns} for ns in launch]
    settings = {
        "threads": 1,
        "backend": backend,
        "device": device.description,
        "launch_ns": statistics.median(launch),
        "kernels": kernels,
    }
    tell("done", samples=samples, settings=settings)


def run_disk(job: Job, tell: Tell) -> None:
    """Every size and depth: one sample of the whole, one of each read's latency."""
    from .. import _core

    samples: list[dict[str, Any]] = []
    direct = True
    for part in job["parts"]:
        times = _core.probe_disk(
            job["file"],
            part["read_bytes"],
            part["depth"],
            part["total_bytes"],
            seed=job["seed"],
        )
        direct = direct and times["is_direct"]
        name = f"{part['read_bytes']}B/depth{part['depth']}"
        samples.append({"name": f"read/{name}", "bytes": times["bytes"], "ns": times["ns"]})
        samples += [{"name": f"latency/{name}", "ns": ns} for ns in times["latency_ns"]]
        tell("progress", text=name)
    tell("done", samples=samples, settings={"threads": 1, "direct": direct})


def run_handshake(job: Job, tell: Tell) -> None:
    """Windows of each kind; of each its time for who waits, and on the device's own clock."""
    from .. import _core

    samples: dict[str, list[dict[str, Any]]] = {}
    for how in ("none", "bare", "covered"):
        times = _core.gpu_handshake(
            job["backend"], how, job["segments"], job["work_bytes"], job["windows"]
        )
        samples[how] = [
            {"name": name, "ns": ns}
            for name, key in (("window", "wall_ns"), ("device", "device_ns"))
            for ns in times[key]
        ]
        tell("progress", text=how)
    device = _core.GpuDevice(job["backend"])
    tell("done", samples=samples, settings={"threads": 1, "device": device.description})


def usage() -> dict[str, int]:
    """What the system counted for this process; the guard's last reading comes after its end."""
    counted = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "major_faults": counted.ru_majflt,
        "minor_faults": counted.ru_minflt,
        "blocks_read": counted.ru_inblock,
        "user_ms": round(counted.ru_utime * 1000),
        "system_ms": round(counted.ru_stime * 1000),
    }


def _seconds_since(begin_ns: int) -> float:
    return (time.perf_counter_ns() - begin_ns) / 1e9


def _add_counters(
    token: dict[str, int], now: dict[str, int], before: dict[str, int]
) -> dict[str, int]:
    token.update({name: now[name] - before[name] for name in now})
    return now


_JOBS: dict[str, Callable[[Job, Tell], None]] = {
    "text": run_text,
    "ops": run_ops,
    "gpu_ops": run_gpu_ops,
    "disk": run_disk,
    "handshake": run_handshake,
}

if __name__ == "__main__":
    sys.exit(main())
