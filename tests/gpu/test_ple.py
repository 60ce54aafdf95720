# SPDX-License-Identifier: MIT
"""metal/ple.metal: the cases of esker.parity."""

from parity_on_simt import parity_tests

test_ple = parity_tests("ple")
