"""The roster, the list of a gang's jobs that take part, as far as the jobs' agents need it."""

from __future__ import annotations

import time
from dataclasses import dataclass, fields
from typing import Any

from trialfleet.nodes.job.messages import parse_object

# Seconds for which a job keeps its slot in a gang that lacks slots: after few starts, and at most.
PATIENCE, LONGEST_PATIENCE = 8.0, 120.0


@dataclass(frozen=True)
class Roster:
    """The jobs that take part, in the order of their ranks.

    The keeper, a process on the access point (`trialfleet.workflows.control.gang`), writes the
    roster.
    """

    generation: int
    state: str
    trial: str  # the trial's name in the order; "" while it is undecided
    members: list[list[Any]]  # proc, token, host, port, door; in the order of ranks
    start: str | None
    kill: bool
    short: bool
    code: int

    @staticmethod
    def from_json(text: bytes | None, cluster: int) -> Roster | None:
        """Return the roster in `text`, or None if it is missing or invalid.

        A roster for the jobs of another `cluster` (12 for the job 12.3) counts as invalid.
        """
        plain = parse_object(text)
        names = [field.name for field in fields(Roster)]
        if plain.get("cluster") != cluster or not plain.keys() >= {*names}:
            return None
        return Roster(**{name: plain[name] for name in names} | {"code": plain["code"] or 0})


class SlotRelease:
    """Decides when a job leaves its slot.

    After many `starts`, a job keeps its slot longer, so that HTCondor starts it less often.
    """

    def __init__(self, starts: int) -> None:
        often = min(max(0, starts - 3), 8)  # longer waits after many starts
        self._patience = min(PATIENCE * 2.0**often, LONGEST_PATIENCE)
        self._short_since: float | None = None

    def is_due(self, roster: Roster | None, *, is_busy: bool) -> bool:
        """Return whether the job must leave now. A job whose workers run or send files is busy."""
        is_short = roster is None or (roster.state == "form" and roster.short)
        if not is_short or is_busy:
            self._short_since = None
            return False
        now = time.monotonic()
        self._short_since = self._short_since or now
        return now - self._short_since > self._patience
