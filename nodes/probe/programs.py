"""Programs that may hang inside the driver, where even SIGKILL has no effect."""

from __future__ import annotations

import math
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

KILLED = 0.5  # seconds for killed programs to disappear
LOOK = 0.05  # seconds between polls of running programs


class End(NamedTuple):
    """How a program ended."""

    code: int | None  # its exit code; None if it was killed
    output: str  # its output
    silent: bool = False  # it was killed because it was silent for too long


class Program:
    """A running program; its output goes to a file instead of a pipe, which would need a reader."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start the program; raise OSError if it is not installed."""
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  `close` closes it
        self._printed, self._since = 0, time.monotonic()
        try:
            self._process = subprocess.Popen(
                command, stdout=self._output, stderr=subprocess.STDOUT, env=dict(environment)
            )
        except OSError:
            self._output.close()
            raise

    def exit_code_at(self, by: float) -> int | None:
        """Wait for the program's end, at most until `by` (monotonic clock); return the exit code.

        Return None if the program still runs then.
        """
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout=max(0.0, by - time.monotonic()))
        return None

    def kill(self) -> None:
        """Kill the program, unless it has ended."""
        self._process.kill()

    def output(self) -> str:
        """Return the program's output so far."""
        printed = os.pread(self._output.fileno(), os.fstat(self._output.fileno()).st_size, 0)
        return printed.decode(errors="replace")

    def silent_seconds(self) -> float:
        """Return the seconds since the latest call that found new output, or since the start."""
        printed, now = os.fstat(self._output.fileno()).st_size, time.monotonic()
        if printed != self._printed:
            self._printed, self._since = printed, now
        return now - self._since

    def close(self) -> None:
        """Delete the program's output."""
        self._output.close()


def finish(
    programs: Sequence[Program], by: float, patience: Callable[[str], float] = lambda _: math.inf
) -> list[End]:
    """Wait for programs until `by` (monotonic clock), then kill them; return how each ended.

    A program is also killed if its silence exceeds `patience(output)` seconds.
    """
    silent: list[Program] = []
    while True:
        codes = [None if one in silent else one.exit_code_at(0) for one in programs]
        running = [
            one
            for one, code in zip(programs, codes, strict=True)
            if code is None and one not in silent
        ]
        if not running or time.monotonic() >= by:
            break
        for program in running:
            if program.silent_seconds() > patience(program.output()):
                program.kill()
                silent.append(program)
        time.sleep(LOOK)
    return kill_and_collect(programs, codes, silent)


def kill_and_collect(
    programs: Sequence[Program], codes: Sequence[int | None], silent: Sequence[Program]
) -> list[End]:
    """Kill the programs that still run; return how each program ended."""
    late = [program for program, code in zip(programs, codes, strict=True) if code is None]
    for program in late:
        program.kill()
    vanished = time.monotonic() + KILLED
    for program in late:
        program.exit_code_at(vanished)
    found = [
        End(code, program.output(), program in silent)
        for program, code in zip(programs, codes, strict=True)
    ]
    for program in programs:
        program.close()
    return found
