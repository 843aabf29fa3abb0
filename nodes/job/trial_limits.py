"""Checks the limits of a running trial, which are its time and the memory of its processes."""

from __future__ import annotations

import time

from trialfleet.nodes.job.process_tree import ProcessTree

# Seconds of a trial until its memory is first measured, and between measurements.
FIRST_MEMORY_CHECK, MEMORY_CHECK = 0.5, 1.0


class Bounds:
    """Checks a trial's limits.

    `over` is the exceeded limit, "memory" or "time", or None. `until` is the trial's latest end, by
    `time.monotonic`, or infinity.
    """

    def __init__(self, processes: ProcessTree, memory_mb: float | None, until: float) -> None:
        self._processes, self._memory_mb, self._until = processes, memory_mb, until
        self.over: str | None = None
        self.peak_mb = 0.0  # largest observed memory; 0 for a short trial
        self._memory_check_at = time.monotonic() + FIRST_MEMORY_CHECK

    @property
    def next_check(self) -> float:
        """Time of the next check, by `time.monotonic`."""
        return min(self._until, self._memory_check_at)

    def check(self, now: float) -> None:
        """Check the limits that are due, and set `over` if one is exceeded."""
        if now >= self._until:
            self.over = "time"
        elif now >= self._memory_check_at:
            self._memory_check_at = now + MEMORY_CHECK
            self.peak_mb = max(self.peak_mb, self._processes.memory_mb())
            if self._memory_mb is not None and self.peak_mb > self._memory_mb:
                self.over = "memory"
