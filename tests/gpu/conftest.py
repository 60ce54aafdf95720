# SPDX-License-Identifier: MIT
"""The folder's modules (simt, abi) and those of tests/ are imported by name."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
