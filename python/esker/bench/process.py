# SPDX-License-Identifier: MIT
"""Starts one measured run in a process of its own, under guard and cap, and fills its record.

A child that esker or llama.cpp refuses ends the bench with its error; one that the cap's out of
memory killer ended is a result, recorded as such; one that the guard stopped ends the bench.
Ctrl-C kills the child.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from .. import errors
from ..errors import DeviceError, EskerError, UsageError, fault
from ..options import LOAD
from .caps import CAP_HINT, MemoryCap
from .guard import Guard, GuardLimits
from .records import Run, tail

_HERE = Path(__file__).parent
_KILL_WAIT_S = 10
_PEER_HINT = (
    "name an interpreter that has llama_cpp: --peer-python PATH or ESKER_PEER_PYTHON"
    ' (python -m pip install "llama-cpp-python==0.3.36" there)'
)

OUT_OF_MEMORY = "out of memory under the cap"


@dataclass
class Outcome:
    """What a child left behind."""

    exit_status: int = 0
    phases: dict[str, float] = field(default_factory=dict)
    done: dict[str, Any] = field(default_factory=dict)
    stdout_tail: str = ""
    stderr_tail: str = ""
    guard: dict[str, Any] = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)  # of the cap, and how the run ended

    @property
    def killed(self) -> bool:
        return "ended" in self.settings


def esker_command() -> list[str]:
    """Starts child.py of this very package, whatever folder the bench runs in."""
    start = f"import sys; sys.path[0] = {str(_HERE.parent.parent)!r}"
    return [sys.executable, "-c", f"{start}; from esker.bench.child import main; sys.exit(main())"]


def peer_command(python: str) -> list[str]:
    return [python, str(_HERE / "peer.py")]


def peer_facts(python: str) -> dict[str, Any]:
    """What llama_cpp the peer's interpreter has.  Raises UsageError where it has none."""
    try:
        asked = subprocess.run(
            [*peer_command(python), "--facts"],
            capture_output=True,
            text=True,
            check=False,
            env=_environment(),
            stdin=subprocess.DEVNULL,
        )
    except OSError as error:
        why = f"the peer's interpreter does not start: {error.strerror}"
        raise UsageError(fault("bench", why, got=python, hint=_PEER_HINT)) from None
    for event in _events(asked.stdout.splitlines()):
        if event["event"] == "facts":
            return {name: value for name, value in event.items() if name != "event"}
        if event["event"] == "error":
            raise UsageError(fault("bench", event["message"], where=python, hint=_PEER_HINT))
    why = f"llama_cpp does not work there: {_last_line(asked.stderr)}"
    raise UsageError(fault("bench", why, where=python, hint=_PEER_HINT))


def run_child(
    command: list[str],
    job: Mapping[str, Any],
    limits: GuardLimits,
    cap_bytes: int = 0,
    progress: Callable[[str], None] | None = None,
) -> Outcome:
    """Runs a job.  Raises the error that the child reported, or PlanError if the guard stopped."""
    with contextlib.ExitStack() as stack:
        cap = stack.enter_context(MemoryCap(cap_bytes)) if cap_bytes else None
        stderr = stack.enter_context(tempfile.TemporaryFile())
        process = _start(command, stderr, cap)
        stack.callback(_end, process)
        outcome = _follow(process, job, limits, progress)
        stderr.seek(0)
        text = stderr.read().decode("utf-8", "replace")
        outcome.stderr_tail = tail(text)
        if cap:
            outcome.settings.update(cap.report())
    if outcome.exit_status != 0:
        kills = outcome.settings.get("memory_cap", {}).get("oom_kills")
        if outcome.exit_status != -signal.SIGKILL or not kills:
            why = f"the measured process ended with status {outcome.exit_status}"
            raise DeviceError(fault("bench", f"{why}: {_last_line(text)}"))
        outcome.settings["ended"] = OUT_OF_MEMORY
    return outcome


def _start(command: list[str], stderr: IO[bytes], cap: MemoryCap | None) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=_environment(),
            start_new_session=True,  # Ctrl-C comes to us alone, and a kill reaches all of it
            # Only writes a file; no guard's thread is running yet.
            preexec_fn=cap.enter if cap else None,  # noqa: PLW1509
        )
    except subprocess.SubprocessError:
        raise UsageError(
            fault("bench", "a process cannot be moved into the memory cgroup", hint=CAP_HINT)
        ) from None


def _follow(
    process: subprocess.Popen[bytes],
    job: Mapping[str, Any],
    limits: GuardLimits,
    progress: Callable[[str], None] | None,
) -> Outcome:
    """Hands over the job and takes the events until the child's end."""
    outcome = Outcome()
    noise: list[str] = []
    failure: EskerError | None = None
    assert process.stdin and process.stdout
    with Guard(limits, child=process) as guard:
        with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
            pipe.write(json.dumps(job).encode())
        for event in _events(_lines(process.stdout), noise):
            if event["event"] == "phase":
                outcome.phases[event["name"]] = event["seconds"]
            elif event["event"] == "progress" and progress:
                progress(event["text"])
            elif event["event"] == "done":
                outcome.done = event
            elif event["event"] == "error":
                failure = _error(event)
        outcome.exit_status = process.wait()
    guard.check()
    if failure is not None:
        raise failure
    outcome.stdout_tail = tail("\n".join(noise))
    outcome.guard, outcome.memory = guard.report(), guard.memory()
    return outcome


def fill_run(run: Run, outcome: Outcome) -> None:
    """Moves what a child of a "text" job left behind into the record of its run."""
    done = outcome.done
    fill_common(run, outcome)
    run["phases"].update(outcome.phases)
    run["tokens"] = done.get("tokens", [])
    run["output"] = done.get("output", [])
    if run["tokens"]:
        run["phases"]["first_token_s"] = run["tokens"][0]["wall_ns"] / 1e9


def fill_common(run: Run, outcome: Outcome) -> None:
    run["settings"].update(outcome.done.get("settings", {}))
    run["settings"].update(outcome.settings)
    run["exit_status"] = outcome.exit_status
    run["stdout_tail"], run["stderr_tail"] = outcome.stdout_tail, outcome.stderr_tail
    run["guard"], run["memory"] = outcome.guard, outcome.memory


def _lines(stream: IO[bytes]) -> Iterator[str]:
    for line in stream:
        yield line.decode("utf-8", "replace")


def _events(lines: Any, noise: list[str] | None = None) -> Iterator[dict[str, Any]]:
    """The lines that are events; a line cut short by a kill is none."""
    for line in lines:
        try:
            event = json.loads(line)
            event["event"]
        except (ValueError, TypeError, KeyError):
            if noise is not None:
                noise.append(line.rstrip())
            continue
        yield event


def _error(event: Mapping[str, Any]) -> EskerError:
    kind = getattr(errors, event["kind"], DeviceError)
    hint = event.get("hint")
    error: EskerError = kind(event["message"] + (f"\nhint: {hint}" if hint else ""))
    return error


def _end(process: subprocess.Popen[bytes]) -> None:
    """Whatever happened, nothing of the child stays."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_KILL_WAIT_S)
    for pipe in (process.stdin, process.stdout):
        if pipe:
            with contextlib.suppress(OSError):
                pipe.close()


def _environment() -> dict[str, str]:
    """Ours without the variables that stand for options: a job says what they are."""
    options = {option.variable for option in LOAD}
    return {name: value for name, value in os.environ.items() if name not in options}


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"
