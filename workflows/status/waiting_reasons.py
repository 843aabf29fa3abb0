"""The reasons why trials wait, such as that no slot can run them, for warnings of `status`."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from trialfleet.classads import IN_SLOT, JobStatus, Universe
from trialfleet.errors import PoolError
from trialfleet.infra.fleet.scaling.last_report import run_report
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.infra.pool.collector import has_negotiator
from trialfleet.workflows.facts.dagman import access_point, job_queue
from trialfleet.workflows.facts.dagman.job_queue import Ad, QueuedRun
from trialfleet.workflows.facts.dagman.pool_slots import PoolSlots, number_attribute, pool_slots
from trialfleet.workflows.facts.jobs.job_facts import LONG
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.facts.runs.spending import scaling_notes
from trialfleet.workflows.names import region_slug
from trialfleet.workflows.rules.slot_matching import NO_NEGOTIATOR, NOT_STARTED, prospects
from trialfleet.workflows.status.attempts.outcome import last_line
from trialfleet.workflows.study.frozen import FrozenStudy

if TYPE_CHECKING:
    from classad2 import ClassAd

_LOOK_EVERY = 10.0  # seconds; the slots of a large pool are megabytes
_FIRST_STEP = 120.0  # seconds until an autoscaler's first report
_MOST_GROUPS = 10  # of jobs that are compared with the slots; 200 slots take 30 ms


class Waiting:
    """A check of a run's waiting jobs, whose result is reused for 10 seconds.

    `hopeless` has the last check's reasons that won't pass by themselves in the present pool. It is
    empty if the study has a fleet, because the fleet may start suitable nodes.
    """

    def __init__(self, folder: RunFolder, frozen: FrozenStudy) -> None:
        self._folder = folder
        self._frozen = frozen
        self._names = {region_slug(name): name for name in frozen.study.region_table}
        self._looked = float("-inf")
        self._found: tuple[str, ...] = ()
        self.hopeless: tuple[str, ...] = ()

    def reasons(self, queued: QueuedRun) -> tuple[str, ...]:
        """Return the reasons why waiting jobs can't start, each as one line of text."""
        if time.monotonic() - self._looked >= _LOOK_EVERY:
            self.hopeless = ()
            try:
                self._found = self._read_reasons(queued)
            except PoolError as error:
                self.hopeless = ()
                unknown = f"trials wait, and their reason is unknown: {error}"
                self._found = (unknown,) if _waiting_groups(queued.ads) else ()
            self._looked = time.monotonic()
        return self._found

    def _read_reasons(self, queued: QueuedRun) -> tuple[str, ...]:
        trials = self._trials(queued)
        if not self._frozen.study.fleet:
            # a slot that is free at this moment may get a job in the next
            self.hopeless = tuple(line for line in trials if NOT_STARTED not in line)
        return (*access_point.reasons_jobs_wait(queued.ads), *trials)

    def _trials(self, queued: QueuedRun) -> tuple[str, ...]:
        """Return why trials can't start.

        Trials are left out if a job with the same requests (cores, memory, …) is running, because
        suitable slots then exist.
        """
        fleet = self._frozen.study.fleet
        notes = scaling_notes(self._folder, self._frozen.run, fleet) if fleet else ()
        if fleet and fleet.autoscale == "provisioner" and queued.root and not queued.regions:
            why = notes or self._why_unreported(fleet, queued, "")
            return tuple(f"no trial starts before a node has joined: {note}" for note in why)
        if not (waiting := _waiting_groups(queued.ads)):
            return ()
        if not has_negotiator():
            return (f"trials wait: {NO_NEGOTIATOR}",)
        if notes and not queued.running:
            return tuple(f"trials wait: {note}" for note in notes)
        slots, found = pool_slots(), defaultdict[str, set[str]](set)
        for group in waiting[:_MOST_GROUPS]:
            job = job_queue.one_idle(self._folder, group[0]["TrialfleetNode"])
            for reason in () if job is None else self._reasons(job, slots, notes, queued):
                found[reason] |= {ad["TrialfleetRegion"] for ad in group}
        return tuple(f"{self._example(of)}: trials wait: {why}" for why, of in found.items())

    def _reasons(
        self, job: ClassAd, slots: PoolSlots, notes: Sequence[str], queued: QueuedRun
    ) -> Sequence[str]:
        """Return why a waiting job can't start in the pool's slots.

        `notes` say for which trials the autoscaler can't start an EC2 node, and why. If the study
        has a fleet and no slot fits the job, only `notes` are returned, because a new node could
        run the job; without any report of an autoscaler, that there is none.
        """
        job["QDate"] = 0  # the machine that a retry avoids for two minutes is suitable, too
        found = prospects(job, slots.whole)
        if fleet := self._frozen.study.fleet:
            if not found.fit:
                return notes or self._why_unreported(fleet, queued, str(found))
        elif found.hopeless or not found.slots or found.has_only_unwilling_slots:
            return [str(found)]
        is_late = time.time() - number_attribute(job, "EnteredCurrentStatus") > LONG
        # while others run, a slot is free for a moment again and again
        if is_late and not queued.running and prospects(job, slots.free).willing:
            return [NOT_STARTED]
        return []

    def _why_unreported(self, fleet: Fleet, queued: QueuedRun, without: str) -> Sequence[str]:
        """Return that the run's autoscaler has not reported, with the last line that it printed.

        The result is `without` if the study has no autoscaler. It is empty if one has reported, or
        may still be at its first step because the run has just begun.
        """
        if run_report(self._folder.fleet_state, fleet.full_name, self._frozen.run):
            return ()
        if fleet.autoscale == "off":
            return (without,)
        began = min((ad.get("EnteredCurrentStatus", 0) for ad in queued.ads), default=0)
        if time.time() - began <= _FIRST_STEP:
            return ()
        said = last_line(self._folder.fleet_output)
        return (": ".join(filter(None, ("the fleet's autoscaler has not reported", said))),)

    def _example(self, slugs: Collection[str]) -> str:
        first = next(name for slug, name in self._names.items() if slug in slugs)
        return first if len(slugs) == 1 else f"{len(slugs)} regions, for example {first}"


def _waiting_groups(ads: Iterable[Ad]) -> list[list[Ad]]:
    """Group the waiting jobs of trials by their requests, without groups that have a running job.

    HTCondor gives jobs with the same requests the same AutoClusterId. If a job of a group runs, the
    group has suitable slots. Groups with the largest input come first, because their jobs request
    the most disk space.
    """
    groups: defaultdict[int | None, list[Ad]] = defaultdict(list)
    for ad in ads:
        if ad["JobUniverse"] == Universe.VANILLA and "TrialfleetNode" in ad:
            groups[ad.get("AutoClusterId")].append(ad)
    waiting = [
        [ad for ad in group if ad["JobStatus"] == JobStatus.IDLE]
        for group in groups.values()
        if not any(ad["JobStatus"] in IN_SLOT | {JobStatus.BLOCKED} for ad in group)
    ]
    return sorted(filter(None, waiting), key=_input_mb, reverse=True)


def _input_mb(group: list[Ad]) -> float:
    return max(float(ad.get("TransferInputSizeMB", 0)) for ad in group)
