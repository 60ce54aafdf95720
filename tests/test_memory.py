# SPDX-License-Identifier: MIT
"""What a run costs in memory: a model of 2 GB in an arena of 200 MB."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from support.measure import run_measured

ARENA_BYTES = 200_000_000
# Interpreter, numpy, tokenizer, state and scratch. What matters is that the 2 GB of experts appear
# nowhere: neither beside the arena nor as mapped pages.
REST_BYTES = 100_000_000


def esker(*arguments: str) -> tuple[dict, int]:
    """The command's JSON result and its peak resident memory in bytes."""
    output, peak = run_measured(sys.executable, "-m", "esker", *arguments, "--json")
    return json.loads(output), peak


@pytest.fixture(scope="module")
def big_model(tmp_path_factory):
    """8 layers of 256 experts of 3 x 512 x 320 weights in F16."""
    path = tmp_path_factory.mktemp("big") / "big.gguf"
    free = shutil.disk_usage(path.parent).free
    if free < 3_000_000_000:
        pytest.skip(f"needs 3 GB of disk for temporary files, and {free} bytes are free")
    shape = {
        "layers": 8, "hidden": 512, "experts": 256, "experts-used": 8, "expert-width": 320,
        "shared-width": 128, "vocab": 4096, "context": 4096, "ngram-base": 2000, "heads": 4,
        "head-width": 64, "rotary": 32, "key-heads": 2, "value-heads": 4, "linear-width": 64,
        "low-rank": 64,
    }  # fmt: skip
    flags = [word for name, value in shape.items() for word in (f"--{name}", str(value))]
    esker("synth", str(path), "--type", "experts=F16", *flags)
    assert path.stat().st_size > 2_000_000_000
    yield path
    path.unlink()


def test_a_prompt_gives_its_scratch_back(big_model):
    """The footprint after a prompt and a decoded token, against that before the prompt."""
    code = (
        "import json, sys, esker\n"
        "sys.path.insert(0, sys.argv[3])\n"
        "from support.measure import resident_bytes\n"
        "with esker.Model(sys.argv[1], arena=int(sys.argv[2]), chunk=1024) as m:\n"
        "    s = m.session(); s.prefill([5] * 4); s.decode(7)\n"
        "    other = m.session(); other.prefill(list(range(400))); other.decode(7)\n"
        "    del other\n"
        "    sizes = [resident_bytes()]\n"
        "    s.prefill(list(range(1024))); sizes.append(resident_bytes())\n"
        "    s.decode(7); sizes.append(resident_bytes())\n"
        "    rows = {row['what']: row['bytes'] for row in m.plan['rows']}\n"
        "    print(json.dumps([sizes, rows]))"
    )
    here = str(Path(__file__).parent)
    output, _ = run_measured(sys.executable, "-c", code, str(big_model), str(ARENA_BYTES), here)
    (before, during, after), rows = json.loads(output)
    scratch = rows["prompt scratch"]
    assert during - before < scratch + 32_000_000
    assert during - after > scratch / 2
    # What stays: keys and values of 1024 tokens, allocators' crumbs.
    assert after - before < 32_000_000


def test_peak_stays_within_arena_dense_weights_and_a_little(big_model):
    prompt = "A prompt of some length, whose tokens pick experts all over the layers."
    result, peak = esker(
        "run", "--model", str(big_model), "--arena", str(ARENA_BYTES), "-n", "40", prompt
    )
    rows = {row["what"]: row["bytes"] for row in result["plan"]["rows"]}
    assert result["counters"]["bytes_read"] > 4 * ARENA_BYTES  # it did stream
    assert peak <= ARENA_BYTES + rows["dense weights (mapped)"] + REST_BYTES


def test_turns_and_rewinds_leave_nothing_behind():
    """Resident bytes after a warm-up and at the end, of 200 short turns and then of 50 rewinds, with
    an arena that makes every turn read experts."""
    code = (
        "import json, sys, esker\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from support.measure import resident_bytes\n"
        "with esker.Model(arena='15%', context=2048) as m:\n"
        "    s = m.session(); sizes = []\n"
        "    for turn in range(200):\n"
        "        s.prefill([(turn * 7 + i) % 500 for i in range(5)])\n"
        "        for i in range(3): s.decode((turn + i) % 500)\n"
        "        if turn in (49, 199): sizes.append(resident_bytes())\n"
        "    mark = s.checkpoint()\n"
        "    for turn in range(50):\n"
        "        s.rewind(mark); s.prefill([(turn * 11 + i) % 500 for i in range(20)]); s.decode(turn)\n"
        "        if turn in (9, 49): sizes.append(resident_bytes())\n"
        "    rows = {row['what']: row['bytes'] for row in m.plan['rows']}\n"
        "    print(json.dumps([sizes, rows, m.counters['bytes_read']]))"
    )
    output, _ = run_measured(sys.executable, "-c", code, str(Path(__file__).parent))
    (warm, turned, rewound, last), rows, read = json.loads(output)
    assert read > 10 * rows["expert arena"]  # it did stream
    # The context's pages are first touched as it fills.
    assert turned - warm <= rows["state for the context"] + 1_000_000
    assert last - rewound <= 1_000_000
