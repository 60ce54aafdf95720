# SPDX-License-Identifier: MIT
"""The folder's modules (simt, abi) and those of tests/ are imported by name.

ESKER_SIMT_SAMPLE=n runs at most n tests of a file, evenly spread over those whose weight types
ESKER_SIMT_KERNELS has: what test_simt.py asks for under the sanitizers.
"""

import os
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

SAMPLE = int(os.environ.get("ESKER_SIMT_SAMPLE", "0"))
ONLY = os.environ.get("ESKER_SIMT_KERNELS", "")
WEIGHT_TYPE = re.compile(r"B?F(16|32)|I?Q\d\w*|TQ\d\w*|MXFP4|NVFP4")


def is_compiled(item):
    case = getattr(item, "callspec", None) and item.callspec.params.get("case")
    values = case.arguments.values() if hasattr(case, "arguments") else ()
    types = [v for v in values if isinstance(v, str) and WEIGHT_TYPE.fullmatch(v)]
    return all(re.search(ONLY, f"matvec_{v}") for v in types)


def pytest_collection_modifyitems(config, items):
    if SAMPLE:
        files = {}
        for item in filter(is_compiled, items):
            files.setdefault(item.path, []).append(item)
        strides = {path: max(1, -(-len(tests) // SAMPLE)) for path, tests in files.items()}
        items[:] = [test for path, n in strides.items() for test in files[path][n // 2 :: n]]
