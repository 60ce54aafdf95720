# SPDX-License-Identifier: MIT
"""The commands of the command line, a module each: run(args) does it and returns the exit status."""
