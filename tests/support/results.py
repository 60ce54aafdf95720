# SPDX-License-Identifier: MIT
"""Made-up results that the audit accepts; tests spoil them."""

from esker.bench import records

MODEL = {"name": "made up", "files": [], "bytes": 1, "sample": "none", "sha256": "m" * 64}
PROMPT = records.new_prompt(range(100, 164), source="made up", text="How does")
STEPS = 4
GUARD = {
    "limits": {"available_min_bytes": 10, "interval_s": 0.1},
    "samples": 3,
    "available_min_bytes": 8000,
    "stopped": False,
    "reason": None,
}
STEPS_MS = {"esker": [100, 101, 99], "peer": [350, 340, 360]}


def reading(**changes):
    return {"available_bytes": 9000, "rss_bytes": 2000, "process_major_faults": 1, **changes}


def one_run(side, order, step_ms, **changes):
    run = records.new_run(side, order=order, prompt=PROMPT, settings={"threads": 2, "context": 512})
    first_ns = 2_100_000_000
    run["phases"] = {
        "load_s": 0.5,
        "arena_fill_s": None,
        "prompt_s": 2.0 + order / 100,
        "first_token_s": first_ns / 1e9,
    }
    run["tokens"] = [
        {
            "wall_ns": first_ns + index * step_ms * 1_000_000,
            "wait_ns": 1_000_000,
            "lookups": 48,
            "hits": 40,
            "demand_misses": 8,
            "bytes_read": 8_000_000,
        }
        for index in range(STEPS + 1)
    ]
    run["output"] = list(range(STEPS + 1))
    run["exit_status"] = 0
    run["memory"] = {
        "before": reading(),
        "during": [reading(rss_bytes=3000), reading(available_bytes=8000)],
        "after": reading(process_major_faults=5),
    }
    run["guard"] = GUARD
    run.update(changes)
    return run


def paired_result(case="peer", steps_ms=None):
    """Three pairs of esker and its peer, who take turns; sealed."""
    steps_ms = STEPS_MS if steps_ms is None else steps_ms
    result = records.new_result(
        case,
        argv=["esker", "bench", case],
        model=MODEL,
        prompts=[PROMPT],
        compare=("esker", "peer"),
        peer={"name": "llama.cpp", "package": "llama-cpp-python", "version": "0.3.36"},
        environ={},
    )
    result["raw"]["software"] = {"version": "0.1.0", "native_sha256": "n" * 64, "source": None}
    for pair in range(len(steps_ms["esker"])):
        for place, side in enumerate(("esker", "peer") if pair % 2 == 0 else ("peer", "esker")):
            order = 2 * pair + place
            result["raw"]["runs"].append(one_run(side, order, steps_ms[side][pair], pair=pair))
    return records.seal(result)
