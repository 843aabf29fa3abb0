"""Runs programs that may hang inside the GPU's driver, where even SIGKILL has no effect."""

from __future__ import annotations

import math
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

KILLED = 0.5  # seconds in which killed programs should disappear
LOOK = 0.05  # seconds between polls of running programs


class ProgramEnd(NamedTuple):
    """The end of a program. It was killed if `code` is None, for silence if `silent`."""

    code: int | None
    output: str
    silent: bool


class Program:
    """A running program. Its output goes to a file, because a pipe would need a reader."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start the program. Raise OSError if it is not installed."""
        self.file = tempfile.TemporaryFile()  # noqa: SIM115  `finish` closes it
        self._printed, self._since = 0, time.monotonic()
        try:
            self.process = subprocess.Popen(
                command, stdout=self.file, stderr=subprocess.STDOUT, env=dict(environment)
            )
        except OSError:
            self.file.close()
            raise

    def output(self) -> str:
        """Return the program's output so far."""
        printed = os.pread(self.file.fileno(), os.fstat(self.file.fileno()).st_size, 0)
        return printed.decode(errors="replace")

    def silent_seconds(self) -> float:
        """Return for how many seconds the program has printed nothing.

        They count from the program's start, or from the last call that found new output.
        """
        printed, now = os.fstat(self.file.fileno()).st_size, time.monotonic()
        if printed != self._printed:
            self._printed, self._since = printed, now
        return now - self._since


def finish(
    programs: Sequence[Program], by: float, patience: Callable[[str], float] = lambda _: math.inf
) -> list[ProgramEnd]:
    """Wait for the programs, and return how each of them ended.

    At the time `by` of the monotonic clock, programs that still run are killed. A program is killed
    earlier if it prints nothing for more than `patience(output)` seconds.
    """
    silent: set[Program] = set()
    while running := [one for one in programs if one not in silent and one.process.poll() is None]:
        if time.monotonic() >= by:
            break
        for program in running:
            if program.silent_seconds() > patience(program.output()):
                program.process.kill()
                silent.add(program)
        time.sleep(LOOK)
    late = {*running, *silent}
    for program in late:
        program.process.kill()
    vanished = time.monotonic() + KILLED
    for program in late:
        with suppress(subprocess.TimeoutExpired):
            program.process.wait(timeout=max(0.0, vanished - time.monotonic()))
    found = [
        ProgramEnd(None if one in late else one.process.poll(), one.output(), one in silent)
        for one in programs
    ]
    for program in programs:
        program.file.close()
    return found
