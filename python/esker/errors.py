# SPDX-License-Identifier: MIT
"""The exceptions of esker, each also the builtin error it resembles.

The native module raises these same classes.  Every message has one form:

    [component] what: got X, want Y (where)
    hint: what to do about it
"""

from __future__ import annotations


class EskerError(Exception):
    """Anything that esker reports; its children say what kind of thing went wrong."""

    @property
    def message(self) -> str:
        """The message on one line, without its hint."""
        return " ".join(str(self).partition("\nhint: ")[0].split())

    @property
    def hint(self) -> str:
        """What to do about it, or an empty string."""
        return " ".join(str(self).partition("\nhint: ")[2].split())


class FormatError(EskerError, ValueError):
    """A file is not what it claims to be."""


class ReadError(EskerError, OSError):
    """A file could not be read, was cut short or was replaced."""


class PlanError(EskerError, MemoryError):
    """The memory plan does not fit."""


class UsageError(EskerError, ValueError):
    """The caller asked for something impossible."""


class DeviceError(EskerError, RuntimeError):
    """A device failed."""


class NumericError(EskerError, ArithmeticError):
    """NaN or infinity stood where a number was due."""


_ABSENT = object()


def fault(
    component: str,
    what: str,
    *,
    got: object = _ABSENT,
    want: str = "",
    where: str = "",
    hint: str = "",
) -> str:
    """A message in the form above; parts left out do not appear.

    `got` stands as its repr (cut when long), so that 8 and "8" look different.
    """
    text = f"[{component}] {what}"
    if got is not _ABSENT:
        shown = repr(got)
        text += f": got {shown if len(shown) <= 80 else shown[:77] + '...'}"
    if want:
        text += (", want " if got is not _ABSENT else ": want ") + want
    if where:
        text += f" ({where})"
    if hint:
        text += f"\nhint: {hint}"
    return text
