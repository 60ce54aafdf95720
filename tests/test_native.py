# SPDX-License-Identifier: MIT
"""Builds the native tests under sanitizers, warnings being errors, and runs them.

ASan and UBSan watch memory and arithmetic, TSan the threads of pool, readers and stream.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BUILDS = ["address,undefined", "thread"]


def run(command: list[str], **kwargs) -> subprocess.CompletedProcess:
    result = subprocess.run(command, capture_output=True, text=True, check=False, **kwargs)
    assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-8000:]
    return result


@pytest.mark.parametrize("build", BUILDS)
def test_native_tests_pass_under_sanitizers(build, tmp_path):
    env = dict(os.environ, PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    folder = tmp_path / "build"
    configure = ["cmake", "-S", str(ROOT), "-B", str(folder), "-G", "Ninja"]
    configure += ["-DESKER_NATIVE_TESTS=ON", f"-DPython_EXECUTABLE={sys.executable}"]
    configure += ["-DCMAKE_BUILD_TYPE=None", f"-DESKER_SANITIZE={build}", "-DESKER_WERROR=ON"]
    run(configure, env=env)
    run(["cmake", "--build", str(folder)], env=env)
    env |= {"ASAN_OPTIONS": "detect_leaks=1", "UBSAN_OPTIONS": "print_stacktrace=1"}
    out = run([str(folder / "esker_tests")], env=env, cwd=tmp_path).stdout
    passed, failed = out.strip().splitlines()[-1].split(", ")
    assert failed == "0 failed"
    assert int(passed.split()[0]) > 50
