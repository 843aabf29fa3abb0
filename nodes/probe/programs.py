"""Programs that may hang inside the driver, where even SIGKILL doesn't reach them."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

KILLED = 0.5  # seconds that killed programs get to vanish


class Program:
    """A program that runs; what it prints goes to a file, so that nobody needs to read along."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start it; OSError if there is none."""
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  `output` closes it
        try:
            self._process = subprocess.Popen(
                command, stdout=self._output, stderr=subprocess.STDOUT, env=dict(environment)
            )
        except OSError:
            self._output.close()
            raise

    def ended(self, by: float) -> int | None:
        """Return its exit code; None if it still runs at a moment of the monotonic clock."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout=max(0.0, by - time.monotonic()))
        return None

    def kill(self) -> None:
        """Kill it; nothing happens if it has ended."""
        self._process.kill()

    def output(self) -> str:
        """Return what it has printed, once it is over."""
        with self._output:
            self._output.seek(0)
            return self._output.read().decode(errors="replace")


def finish(programs: Sequence[Program], by: float) -> list[tuple[int | None, str]]:
    """Return exit code (None: killed, it took too long) and output of each.

    Args:
        programs: which run at the same time.
        by: until when they may, by the monotonic clock.
    """
    codes = [program.ended(by) for program in programs]
    late = [program for program, code in zip(programs, codes, strict=True) if code is None]
    for program in late:
        program.kill()
    vanished = time.monotonic() + KILLED
    for program in late:
        program.ended(vanished)
    return [(code, program.output()) for program, code in zip(programs, codes, strict=True)]
