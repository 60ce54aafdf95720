# SPDX-License-Identifier: MIT
"""metal/expert_matmat.metal: the cases of esker.parity."""

from parity_on_simt import parity_tests

test_expert_matmat = parity_tests("expert_matmat")
