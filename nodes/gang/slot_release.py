"""The release of a gang job's slot, if too few of the gang's jobs have a slot for too long."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trialfleet.nodes.gang.roster import Roster

PATIENCE, LONGEST_PATIENCE = 8.0, 120.0  # for a gang that lacks slots, at first and at last


class SlotRelease:
    """The release of the slot of a job that has started `starts` times."""

    def __init__(self, starts: int) -> None:
        often = min(max(0, starts - 3), 8)  # longer waits after many starts
        self._patience = min(PATIENCE * 2.0**often, LONGEST_PATIENCE)
        self._short_since: float | None = None

    def is_due(self, roster: Roster | None, *, is_busy: bool) -> bool:
        """Return whether to release the slot now; never while workers run or files are sent."""
        is_short = roster is None or (roster.state == "form" and roster.short)
        if not is_short or is_busy:
            self._short_since = None
            return False
        now = time.monotonic()
        self._short_since = self._short_since or now
        return now - self._short_since > self._patience
