# SPDX-License-Identifier: MIT
"""metal/experts.metal: the cases of esker.parity."""

from parity_on_simt import parity_tests

test_experts = parity_tests("experts")
