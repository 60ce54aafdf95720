# SPDX-License-Identifier: MIT
"""Helpers of the test suite: tiny models, a numpy oracle, prompts and comparisons."""
