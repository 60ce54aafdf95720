# SPDX-License-Identifier: MIT
"""One run of the driver (driver.cpp) in a process of its own: python drive.py LIBRARY TEXT WRONG

Prints what came of it as JSON: the driver's error, the numbers, the fake's report.
"""

import ctypes
import json
import sys
import time
from pathlib import Path


def main(library, text, wrong):
    fake = ctypes.CDLL(library)
    fake.drive.restype = ctypes.c_char_p
    fake.fake_metal_report.restype = ctypes.c_char_p
    fake.fake_metal_count.restype = ctypes.c_int64
    numbers = (ctypes.c_float * 64)(*range(64))
    error = fake.drive(Path(text).read_bytes(), wrong.encode(), numbers)
    # The last owner of a command buffer is a thread of the fake.
    end = time.monotonic() + (0.2 if wrong else 2)
    while fake.fake_metal_live_objects(None) and time.monotonic() < end:
        time.sleep(0.005)
    report = fake.fake_metal_report().decode().splitlines()
    left = {name: fake.fake_metal_count(name) for name in (b"blocks", b"shared variables")}
    found = {
        "error": error and error.decode(),
        "numbers": list(numbers),
        "report": report,
        "left": sum(left.values()),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
