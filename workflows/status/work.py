"""Return how long the jobs of a run have executed, and how much of that was thrown away."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from trialfleet.optimizer.stored_trials import StoredTrial
from trialfleet.workflows.dagman.job_queue import QueuedRun
from trialfleet.workflows.jobs.current import end_place
from trialfleet.workflows.jobs.job_log import Stay
from trialfleet.workflows.jobs.troubles import JobFacts
from trialfleet.workflows.plan.folder import RegionFolder, RunFolder
from trialfleet.workflows.plan.graph import RegionGraph
from trialfleet.workflows.status.job_costs import (
    between_stays,
    end_stays,
    trial_stays,
)
from trialfleet.workflows.study.spec import Study

_MUCH, _LEAST_SECONDS = 1 / 3, 60.0


@dataclass(frozen=True, kw_only=True)
class Work:
    """The executions of jobs, added up.

    Attributes:
        seconds: how long they lasted.
        lost_seconds: of that, attempts that failed, and executions that were cut off, without what
            a checkpoint saved of them.
        lost_share: lost_seconds / seconds, from 0 to 1.
    """

    seconds: float = 0.0
    lost_seconds: float = 0.0
    lost_share: float = 0.0

    @classmethod
    def of(cls, parts: Iterable[tuple[float, float]]) -> Work:
        """Return the sum of parts, each its seconds and its lost seconds."""
        found = list(parts)
        seconds, lost = sum(each for each, _ in found), sum(lost for _, lost in found)
        share = lost / seconds if seconds else 0.0
        return cls(
            seconds=round(seconds, 1), lost_seconds=round(lost, 1), lost_share=round(share, 4)
        )

    @property
    def is_much_lost(self) -> bool:
        """Return whether so much was lost that somebody should look for the reason."""
        return self.lost_share > _MUCH and self.lost_seconds >= _LEAST_SECONDS

    def __str__(self) -> str:
        """In a line."""
        minutes, of = self.lost_seconds / 60, self.seconds / 60
        return f"{self.lost_share:.0%} of all work was lost: {minutes:.0f} of {of:.0f} min"


class WorkReader:
    """Adds up a run's executions again and again; trials that are over are read once.

    Args:
        folder: the run's.
        study: its study.
    """

    def __init__(self, folder: RunFolder, study: Study) -> None:
        self._folder, self._study = folder, study
        self._over: dict[tuple[str, int], tuple[float, float]] = {}

    def read(
        self,
        regions: Iterable[RegionGraph],
        trials: Mapping[str, list[StoredTrial]],
        jobs: Iterable[JobFacts],
        queued: QueuedRun | None,
        now: float,
    ) -> Work:
        """Return the work of a run so far.

        Args:
            regions: its regions.
            trials: their trials, by the regions' names.
            jobs: those in the queue.
            queued: what the queue says of it; None if it is out of reach.
            now: the time in Unix seconds.
        """
        running = queued.running if queued else frozenset()
        useless = {job.node for job in jobs if job.starts and not job.checkpointed}
        until = now if running else None
        parts: list[tuple[float, float]] = []
        for region in regions:
            files = self._folder.region(region.slug)
            parts += [
                self._of_trial(files, trial, running, useless, now) for trial in trials[region.name]
            ]
            between = between_stays(files, self._study, until)
            parts.append(_sum(between, checkpointed=True))
            for node, end in ((region.best, files.best), (region.gate, files.gate)):
                place = end_place(files, end)
                at = place.node_root.name if place.is_shared else node
                stays = end_stays(files, end, self._study, now if at in running else None)
                parts.append(_sum(stays, checkpointed=at not in useless))
        return Work.of(parts)

    def _of_trial(
        self,
        files: RegionFolder,
        trial: StoredTrial,
        running: Set[str],
        useless: Set[str],
        now: float,
    ) -> tuple[float, float]:
        key = (files.root.name, trial.number)
        if key in self._over:
            return self._over[key]
        node = files.trial(str(trial.user_attrs.get("node"))).node_root.name
        until = now if node in running else None
        stays = trial_stays(files, trial, self._study, until)
        found = _sum(stays, checkpointed=node not in useless)
        if trial.state.is_finished():
            self._over[key] = found
        return found


def _sum(stays: Iterable[Stay], *, checkpointed: bool) -> tuple[float, float]:
    """Seconds, and lost seconds. What was saved and is no checkpoint takes no trial further."""
    found = list(stays)
    lost = sum(
        stay.lost_seconds if checkpointed or not stay.end.is_lost else stay.seconds
        for stay in found
    )
    return sum(stay.seconds for stay in found), lost
