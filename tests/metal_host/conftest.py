# SPDX-License-Identifier: MIT
"""The folder's modules, those of tests/gpu (simt, device_library) and of tests/ are imported by name."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "gpu"), str(HERE.parent)]


@pytest.fixture(scope="session")
def kernels_cache(tmp_path_factory):
    """Where the host keeps compiled kernels, so that most tests find theirs."""
    return tmp_path_factory.mktemp("cache")
