# SPDX-License-Identifier: MIT
"""The command line: runs a command and says how it ended.  commands/arguments.py says what may be
written, commands/<name>.py does it.

Exit status: 0; 1 for an error (one line on stderr, and a hint); 2 for wrong usage; 130 for Ctrl-C.
A reader of our output that went away is no error.
Nothing heavy is imported at the top: what is, happens with Ctrl-C held.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys

from .errors import EskerError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence
    from types import ModuleType

_OK, _ERROR, _USAGE, _INTERRUPTED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit status.  --help, --version and wrong usage exit."""
    args: Namespace | None = None
    try:
        arguments = _import("arguments")
        args = arguments.argparse.Namespace(json=False)
        try:
            arguments.parse(argv, args)
        except EskerError as error:
            return _fail(args, _USAGE, error)
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="replace")  # what the terminal cannot show
        status: int = _import(args.command).run(args)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return _interrupted(args)
    except BrokenPipeError:
        _drop_output()
        return _OK
    except EskerError as error:
        return _fail(args, _ERROR, error)
    except MemoryError as error:
        return _fail(args, _ERROR, error, str(error) or "out of memory", "ask for less")
    except OSError as error:
        message = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        return _fail(args, _ERROR, error, message)
    except Exception as error:  # noqa: BLE001 - no traceback, whatever happens
        return _fail(
            args, _ERROR, error, _where(error), "this is a defect of esker; please report it"
        )


def _import(name: str) -> ModuleType:
    """A module of commands/.  Python loses a Ctrl-C that falls into some corners of an import."""
    name = f"{__package__}.commands.{name}"
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return importlib.import_module(name)
    seen = []
    try:
        signal.signal(signal.SIGINT, lambda *_: seen.append(True))
    except ValueError:  # not the main thread: no Ctrl-C comes here
        return importlib.import_module(name)
    try:
        module = importlib.import_module(name)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if seen:
        raise KeyboardInterrupt
    return module


def _where(error: Exception) -> str:
    import traceback

    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{os.path.basename(frame.filename)}:{frame.lineno}"
    return f"internal: {error.__class__.__name__}: {error} ({place})"


def _fail(
    args: Namespace | None, status: int, error: Exception, message: str = "", hint: str = ""
) -> int:
    if isinstance(error, EskerError):
        message, hint = error.message, error.hint
    message = " ".join(message.split())
    if args and args.json:
        import json

        what = {"kind": error.__class__.__name__, "message": message, "hint": hint}
        _last_words(json.dumps({"error": what}) + "\n")
    else:
        _last_words("")
    text = f"esker: error: {message}\n" + (f"hint: {hint}\n" if hint else "")
    sys.stderr.write(text.encode("utf-8", "backslashreplace").decode())
    return status


def _interrupted(args: Namespace | None) -> int:
    """Ctrl-C where a command had nothing to show yet."""
    nothing = '{"text": "", "tokens": [], "finish_reason": "interrupted"}\n'
    _last_words(nothing if args and args.json else "")
    sys.stderr.write("\n")
    return _INTERRUPTED


def _last_words(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError:
        _drop_output()


def _drop_output() -> None:
    """Keeps the interpreter from failing once more when it flushes standard output at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
