"""Repair of a pool after its clock was set back: a reset of HTCondor's timers.

HTCondor's daemons set their timers by the wall clock. If this clock is set back by ten minutes, no
job starts and no DAGMan reads its log for ten minutes. Running jobs continue.

The timers of the schedd and the negotiator are reset by a restart, those of the other daemons by
`condor_reconfig`. But first, `condor_on` starts any daemon that has just died. The master can't do
this in time, because its own timers are late.
"""

from __future__ import annotations

import logging
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from trialfleet.errors import PoolError
from trialfleet.files import read_json, unless_damaged
from trialfleet.infra.pool.connection import connect, use
from trialfleet.infra.pool.processes import run_captured

NOTICED_SECONDS = 20.0  # after a smaller change, the daemons recover as fast by themselves
_ANSWER_SECONDS = 60.0
_DEAD = ("condor_on",)
_SCHEDD = ("condor_restart", "-fast", "-schedd")
_NEGOTIATOR = ("condor_restart", "-fast", "-negotiator")
_OTHERS = ("condor_reconfig",)

log = logging.getLogger(__name__)
Command = Sequence[str]


class ClockWatch:
    """Detects that the wall clock was set back.

    `file` stores the readings of the wall clock and of a monotonic clock at the last check.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._left: list[Command] = []
        self._until = 0.0
        self._ahead, self._tick = self._read()

    def check(self, wall: float, tick: float) -> None:
        """Reset HTCondor's timers if the clock was set back since the last check.

        `wall` is in Unix seconds, `tick` in seconds of a monotonic clock. A failed command is
        retried at the next checks, until the clock has reached the time from which it was set
        back.
        """
        if back := self._set_back(wall, tick):
            if not self._left:
                log.warning("the clock was set back by %.0f s: HTCondor's timers are reset", back)
                self._left, self._until = _commands_here(), tick + back
            self._left = [command for command in self._left if not self._run_logged(command)]
            if self._left and tick < self._until:
                return
        self._left = []
        self._note(wall, tick)

    def _set_back(self, wall: float, tick: float) -> float:
        if self._ahead is None or tick < self._tick:  # the machine was rebooted
            return 0.0
        back = self._ahead - (wall - tick)
        return back if back >= NOTICED_SECONDS else 0.0

    def _run_logged(self, command: Command) -> bool:
        try:
            _run(command)
        except PoolError as error:
            log.info("%s", error)
            return False
        return True

    def _note(self, wall: float, tick: float) -> None:
        self._ahead, self._tick = wall - tick, tick
        with suppress(OSError):  # a full disk: this process still has the values
            self._file.write_text(f"[{self._ahead!r}, {tick!r}]")  # a half-written file is ignored

    def _read(self) -> tuple[float | None, float]:
        noted = unless_damaged(lambda: list(map(float, read_json(self._file))), [])
        return (noted[0], noted[1]) if len(noted) == 2 else (None, 0.0)


def _commands_here() -> list[Command]:
    import htcondor2

    with suppress(PoolError):  # without a connection, this process's own configuration is used
        use(connect())
    daemons = str(htcondor2.param.get("DAEMON_LIST", "")).replace(",", " ").split()
    return [_DEAD, _SCHEDD, *([_NEGOTIATOR] if "NEGOTIATOR" in daemons else []), _OTHERS]


def _run(command: Command) -> None:
    use(connect())
    program = shutil.which(command[0])
    if program is None:
        raise PoolError(f"{command[0]} is not on PATH: HTCondor's tools are not installed here")
    try:
        done = run_captured([program, *command[1:]], timeout=_ANSWER_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise PoolError(f"{command[0]} timed out after {_ANSWER_SECONDS:.0f} s") from error
    if done.returncode != 0:
        output = " ".join((done.stderr or done.stdout).split())
        raise PoolError(f"{' '.join(command)} failed with exit code {done.returncode}: {output}")
