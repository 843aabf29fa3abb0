"""The reasons why waiting jobs of a run can't start in the present pool."""

from __future__ import annotations

import time
from typing import Any

from trialfleet.classads import JobStatus, Universe
from trialfleet.errors import PoolError
from trialfleet.workflows.facts.dagman import access_point, job_queue
from trialfleet.workflows.facts.dagman.job_queue import QueuedRun
from trialfleet.workflows.facts.dagman.pool_slots import pool_slots
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.facts.runs.spending import scaling_notes
from trialfleet.workflows.rules.slot_matching import prospects
from trialfleet.workflows.study.frozen import FrozenStudy

_LOOK_EVERY = 10.0  # seconds; the slots of a large pool are megabytes


class Waiting:
    """A check of a run's waiting jobs, whose result is reused for 10 seconds."""

    def __init__(self, folder: RunFolder, frozen: FrozenStudy) -> None:
        self._folder = folder
        self._frozen = frozen
        self._looked = float("-inf")
        self._found: tuple[str, ...] = ()

    def reasons(self, queued: QueuedRun) -> tuple[str, ...]:
        """Return the reasons why waiting jobs can't start, one per line."""
        if time.monotonic() - self._looked >= _LOOK_EVERY:
            try:
                self._found = self._read_reasons(queued)
            except PoolError:  # the queue answered a moment ago: the next check may succeed
                self._found = ()
            self._looked = time.monotonic()
        return self._found

    def _read_reasons(self, queued: QueuedRun) -> tuple[str, ...]:
        idle = [ad for ad in queued.ads if ad["JobStatus"] == JobStatus.IDLE]
        return (*access_point.reasons_jobs_wait(queued.ads), *self._trials(queued, idle))

    def _trials(self, queued: QueuedRun, idle: list[dict[str, Any]]) -> tuple[str, ...]:
        """Return why no trial can start; empty if a trial runs, because all need similar slots."""
        waits = any(ad["JobUniverse"] == Universe.VANILLA for ad in idle)
        if not waits or queued.running:
            return ()
        if fleet := self._frozen.study.fleet:  # its autoscaler knows what does not fit its nodes
            notes = scaling_notes(self._folder, self._frozen.run, fleet)
            return tuple(f"trials wait: {note}" for note in notes)
        job = job_queue.one_idle(self._folder)
        found = prospects(job, pool_slots().whole) if job is not None else None
        stuck = found is not None and (
            found.hopeless or not found.slots or found.has_only_unwilling_slots
        )
        return (f"trials wait: {found}",) if stuck else ()
