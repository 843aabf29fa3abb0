"""The rule by which a job leaves its slot if its gang has lacked slots for too long."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trialfleet.nodes.gang.roster import Roster

# Seconds for which a job keeps its slot in a gang that lacks slots: after few starts, and at most.
PATIENCE, LONGEST_PATIENCE = 8.0, 120.0


class SlotRelease:
    """Decides when a job leaves its slot.

    `starts` is the number of times that HTCondor has started the job. After many starts, a job
    keeps its slot longer, so that it starts less often.
    """

    def __init__(self, starts: int) -> None:
        often = min(max(0, starts - 3), 8)  # longer waits after many starts
        self._patience = min(PATIENCE * 2.0**often, LONGEST_PATIENCE)
        self._short_since: float | None = None

    def is_due(self, roster: Roster | None, *, is_busy: bool) -> bool:
        """Return whether the job must leave its slot now.

        A job is busy while its workers run or its files are being sent. A busy job keeps its slot.
        """
        is_short = roster is None or (roster.state == "form" and roster.short)
        if not is_short or is_busy:
            self._short_since = None
            return False
        now = time.monotonic()
        self._short_since = self._short_since or now
        return now - self._short_since > self._patience
