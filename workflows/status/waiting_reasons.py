"""The reasons why waiting jobs of a run can't start in the present pool."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from trialfleet.classads import JobStatus, Universe
from trialfleet.errors import PoolError
from trialfleet.infra.pool.collector import has_negotiator
from trialfleet.workflows.facts.dagman import access_point, job_queue
from trialfleet.workflows.facts.dagman.job_queue import QueuedRun
from trialfleet.workflows.facts.dagman.pool_slots import number_attribute, pool_slots
from trialfleet.workflows.facts.jobs.job_facts import LONG
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.facts.runs.spending import scaling_notes
from trialfleet.workflows.rules.slot_matching import NO_NEGOTIATOR, NOT_STARTED, prospects
from trialfleet.workflows.study.frozen import FrozenStudy

if TYPE_CHECKING:
    from classad2 import ClassAd

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
        if not has_negotiator():
            return (f"trials wait: {NO_NEGOTIATOR}",)
        fleet = self._frozen.study.fleet
        if fleet and (notes := scaling_notes(self._folder, self._frozen.run, fleet)):
            return tuple(f"trials wait: {note}" for note in notes)
        job = job_queue.one_idle(self._folder)
        return () if job is None else _reasons_unmatched(job, has_fleet=fleet is not None)


def _reasons_unmatched(job: ClassAd, *, has_fleet: bool) -> tuple[str, ...]:
    """Return why a waiting job can't start in the pool's slots.

    What does not fit a fleet's nodes is known to its autoscaler, which may start others.
    """
    slots = pool_slots()
    found = prospects(job, slots.whole)
    is_stuck = found.hopeless or not found.slots or found.has_only_unwilling_slots
    if is_stuck and not has_fleet:
        return (f"trials wait: {found}",)
    is_late = time.time() - number_attribute(job, "EnteredCurrentStatus") > LONG
    if is_late and prospects(job, slots.free).willing:
        return (f"trials wait: {NOT_STARTED}",)
    return ()
