# SPDX-License-Identifier: MIT
"""metal/matmat.metal: the cases of esker.parity."""

from parity_on_simt import parity_tests

test_matmat = parity_tests("matmat")
