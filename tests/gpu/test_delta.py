# SPDX-License-Identifier: MIT
"""metal/delta.metal: the cases of esker.parity."""

from parity_on_simt import parity_tests

test_delta = parity_tests("delta")
