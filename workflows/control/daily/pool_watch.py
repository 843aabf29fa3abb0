"""Messages to the user while a day waits for HTCondor or for the end of another day."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import date

from trialfleet.errors import PoolError
from trialfleet.infra.pool.connection import connect, start_command
from trialfleet.workflows.rules.states import RunState
from trialfleet.workflows.status.status_types import RunStatus

_LOOK_EVERY = 10.0  # seconds


class PoolWatch:
    """Tells the user when HTCondor becomes unreachable, and when it answers again."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._is_away = False

    def update(self, status: RunStatus) -> None:
        """Report the beginning or the end of an outage, if the run's status shows one."""
        is_away = status.state is RunState.UNKNOWN
        self.note_outage((status.notice or "the job queue can't be read") if is_away else "")

    def note_outage(self, why_away: str) -> None:
        """Report the beginning or the end of an outage. `why_away` is "" if HTCondor answers."""
        if why_away and not self._is_away:
            up = start_command()
            self._say(f"the day waits for HTCondor ({why_away}); if it is down: {up}")
        elif self._is_away and not why_away:
            self._say("HTCondor answers again: the day continues")
        self._is_away = bool(why_away)


class BusyDayWatch:
    """Tells the user that a day waits for HTCondor, or for the end of the work on another day."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._pool = PoolWatch(say)
        self._looked = float("-inf")
        self.busy: date | None = None

    def update(self, busy: date | None) -> None:
        """Report the beginning of the wait, and the beginning and the end of each outage.

        `busy` is the day on which another process works, or None if that day is unknown.
        """
        if busy and self.busy is None:
            self._say(f"waits until the day {busy} has ended")
        self.busy = busy
        if time.monotonic() - self._looked >= _LOOK_EVERY:
            self._pool.note_outage(_pool_error())
            self._looked = time.monotonic()


def _pool_error() -> str:
    try:
        connect()
    except PoolError as error:
        return str(error)
    return ""
