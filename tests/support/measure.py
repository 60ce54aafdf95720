# SPDX-License-Identifier: MIT
"""Resident memory: of this process, and the peak of a command."""

import resource
import subprocess
import sys

# A process of its own in between: a child counts what its parent had resident when it forked, and
# the one that runs the tests has a lot.
_MEASURE = """
import resource, subprocess, sys
result = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE)
sys.stdout.buffer.write(result.stdout)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(result.returncode)
"""
_UNIT = 1 if sys.platform == "darwin" else 1024


def resident_bytes() -> int:
    """Of this process, now; on macOS its peak."""
    if sys.platform != "linux":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def run_measured(*command: str) -> tuple[str, int]:
    """Standard output, and the peak in bytes.  The command must succeed."""
    words = [sys.executable, "-c", _MEASURE, *command]
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    output, _, peak = result.stdout.rstrip("\n").rpartition("\n")
    return output, int(peak) * _UNIT
