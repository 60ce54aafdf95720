# SPDX-License-Identifier: MIT
"""The kernels of every instruction set: the same text, and nothing a machine does not have.

What this machine has runs as it is; a processor without AVX and 64-bit Arm are emulated where qemu
is installed. The native tests compare the kernels themselves with the decoder.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
LOGIT_DISTANCE_MOST = 1e-4
PROMPT = "The quick brown fox jumps over the lazy dog."
RUN = """
import json, sys
import numpy as np
import esker
path, prompt, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
try:
    with esker.Model(path) as model:
        text = model.complete(prompt, max_tokens=count, temperature=0)
        logits = model.logits(prompt)
    print(json.dumps({"tokens": list(map(int, text.tokens)), "logits": logits.tolist()}))
except esker.UsageError as error:
    print(json.dumps({"error": str(error)}))
"""
ARM_COMPILER, ARM_RUNNER = "aarch64-linux-gnu-g++", "qemu-aarch64"
ARM_SOURCES = (
    "csrc/backends/cpu/kernels*.cpp",
    "csrc/backends/cpu/packed.cpp",
    "csrc/backends/cpu/math.cpp",
    "csrc/base/env.cpp",
    "csrc/base/error.cpp",
    "csrc/formats/quants*.cpp",
    "tests/native/main.cpp",
    "tests/native/test_cpu_kernels.cpp",
)


def run(isa, path, count=24, prompt=PROMPT, runner=()):
    """What RUN prints with ESKER_CPU_ISA = isa."""
    env = dict(os.environ, OPENBLAS_NUM_THREADS="1")
    env.pop("ESKER_CPU_ISA", None)
    if isa:
        env["ESKER_CPU_ISA"] = isa
    command = [*runner, sys.executable, "-c", RUN, str(path), prompt, str(count)]
    result = subprocess.run(command, check=False, capture_output=True, text=True, env=env)
    assert result.returncode == 0, f"exit {result.returncode}: {result.stderr[-4000:]}"
    return json.loads(result.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def names(demo_path):
    """The instruction sets of this machine, best first, as the refusal of a wrong name lists them."""
    error = run("abacus", demo_path)["error"]
    assert "no such instruction set" in error
    assert "ESKER_CPU_ISA" in error
    line = next(line for line in error.splitlines() if "one of" in line)
    listed = line.split("one of ")[1].split(" (")[0]
    return [name.strip() for name in listed.split(",")]


def test_wrong_name_lists_the_right_ones(names):
    assert names[-1] == "scalar"
    assert set(names) <= {"avx512", "avx2", "neon", "scalar"}


def test_every_instruction_set_writes_the_same(names, demo_path):
    results = [run(name, demo_path) for name in names]
    first = np.array(results[0]["logits"])
    for name, result in zip(names[1:], results[1:]):
        assert result["tokens"] == results[0]["tokens"], name
        distance = np.abs(np.array(result["logits"]) - first).max()
        assert distance <= LOGIT_DISTANCE_MOST, f"{names[0]} and {name} part by {distance}"
    assert run("", demo_path) == results[0]  # the best one is what is taken unasked


def test_module_runs_on_a_processor_without_avx(demo_path):
    runner = shutil.which("qemu-x86_64")
    if runner is None:
        pytest.skip("qemu-x86_64 is not installed")
    emulated = [runner, "-cpu", "Nehalem"]
    numpy_runs = subprocess.run([*emulated, sys.executable, "-c", "import numpy"], check=False)
    if numpy_runs.returncode != 0:
        pytest.skip("this numpy does not run on a Nehalem")
    result = run("", demo_path, count=1, prompt="The", runner=emulated)
    assert result["tokens"] == run("scalar", demo_path, count=1, prompt="The")["tokens"]


def test_arm_kernels_pass_their_tests_emulated(tmp_path):
    for tool in (ARM_COMPILER, ARM_RUNNER):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    generated = tmp_path / "formats" / "codebooks.inc"
    generator = ROOT / "tools" / "gen_codebooks.py"
    subprocess.run([sys.executable, str(generator), str(generated)], check=True)
    flags = ["-std=c++20", "-O2", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off"]
    flags += [f"-I{ROOT / 'csrc'}", f"-I{tmp_path}", f"-I{ROOT / 'tests' / 'native'}"]
    objects = []
    for pattern in ARM_SOURCES:
        for source in sorted(ROOT.glob(pattern)):
            extra = ["-march=armv8.2-a+dotprod"] if source.stem == "kernels_neon" else []
            objects.append(str(tmp_path / f"{source.stem}.o"))
            command = [ARM_COMPILER, *flags, *extra, "-c", str(source), "-o", objects[-1]]
            subprocess.run(command, check=True)
    program = str(tmp_path / "tests")
    subprocess.run([ARM_COMPILER, "-static", *objects, "-o", program], check=True)
    for cpu in ("max", "cortex-a53"):  # the second has no dot product instructions
        command = [ARM_RUNNER, "-cpu", cpu, program, "cpu_kernels"]
        result = subprocess.run(command, check=False, capture_output=True, text=True)
        assert result.returncode == 0, f"{cpu}: {result.stdout}{result.stderr}"
