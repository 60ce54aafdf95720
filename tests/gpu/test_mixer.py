# SPDX-License-Identifier: MIT
"""metal/mixer.metal: the cases of esker.parity."""

from parity_on_simt import parity_tests

test_mixer = parity_tests("mixer")
