# SPDX-License-Identifier: MIT
"""metal/attention.metal: the cases of esker.parity."""

from parity_on_simt import parity_tests

test_attention = parity_tests("attention")
