"""A clock that is set back makes HTCondor stand still; this has it go on.

Its daemons keep their appointments by the wall clock. Set back by ten minutes, they do for ten
minutes nothing that isn't asked of them: no job is matched or started, no DAGMan looks at its log.
A new schedd keeps none of the former's appointments and starts the DAGMans anew, and a new
negotiator matches at once; running jobs go on meanwhile. The other daemons make their appointments
anew when they read their configuration again.
"""

from __future__ import annotations

import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

from trialfleet.errors import PoolError
from trialfleet.files import read_json
from trialfleet.infra.pool.connection import connect, use

NOTICED_SECONDS = 20.0  # set back by less, the daemons go on as soon as anybody could help
_ANSWER_SECONDS = 60.0
_COMMANDS = (
    ["condor_restart", "-fast", "-schedd"],
    ["condor_restart", "-fast", "-negotiator"],
    ["condor_reconfig"],
)


class ClockWatch:
    """Notices that the wall clock was set back, also between one supervisor and the next."""

    def __init__(self, file: Path) -> None:
        """Go on from what the former supervisor noted.

        Args:
            file: of this watch's own; it need not exist.
        """
        self._file = file
        self._ahead, self._tick = self._read()

    def set_back(self, wall: float, tick: float) -> float:
        """Return by how many seconds the clock was set back since `note`; 0 if it wasn't.

        Args:
            wall: the time in unix seconds.
            tick: seconds since the machine's start, which nobody sets.
        """
        if self._ahead is None or tick < self._tick:  # the machine was started since
            return 0.0
        back = self._ahead - (wall - tick)
        return back if back >= NOTICED_SECONDS else 0.0

    def note(self, wall: float, tick: float) -> None:
        """Remember how the clock is set."""
        self._ahead, self._tick = wall - tick, tick
        with suppress(OSError):  # a full disk: this process remembers it
            self._file.write_text(f"[{self._ahead!r}, {tick!r}]")  # torn, it counts as none

    def _read(self) -> tuple[float | None, float]:
        try:
            ahead, tick = map(float, read_json(self._file))
        except (OSError, ValueError, TypeError):
            return None, 0.0
        return ahead, tick


def make_appointments_anew() -> None:
    """Have the daemons of this machine's HTCondor go on that wait for a time long past.

    Raises:
        PoolError: they are out of reach, or refuse.
    """
    use(connect())
    for command in _COMMANDS:
        program = shutil.which(command[0])
        if program is None:
            raise PoolError(f"{command[0]} is not on PATH: HTCondor's tools are not installed here")
        try:
            done = subprocess.run(
                [program, *command[1:]],
                capture_output=True,
                text=True,
                timeout=_ANSWER_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise PoolError(f"{command[0]} had no answer in {_ANSWER_SECONDS:.0f} s") from error
        if done.returncode != 0:
            said = " ".join((done.stderr or done.stdout).split())
            raise PoolError(f"{' '.join(command)} exits {done.returncode}: {said}")
