# SPDX-License-Identifier: MIT
"""metal/matvec.metal: the cases of esker.parity."""

from parity_on_simt import parity_tests

test_matvec = parity_tests("matvec")
