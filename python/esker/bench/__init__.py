# SPDX-License-Identifier: MIT
"""Measuring: result files, their summaries and audit, the guard that watches memory meanwhile.

Nothing here loads the native module by itself, so that a result can be audited anywhere.
"""
