# SPDX-License-Identifier: MIT
"""The parity cases of the GPU kernels: each kernel, weight type and tile against float64 on any
device.  `esker selftest` runs them.
"""

from .cases import AREAS, Case, Failed, Skipped, UnderTest, all_cases
from .device import GpuUnderTest

__all__ = ["AREAS", "Case", "Failed", "GpuUnderTest", "Skipped", "UnderTest", "all_cases"]
