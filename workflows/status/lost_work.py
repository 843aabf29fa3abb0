"""The work of a run's jobs: execution time, the lost part of this time, and cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from trialfleet import untrusted_files
from trialfleet.optimizer.stored_trials import StoredTrial
from trialfleet.workflows.facts.dagman.job_queue import QueuedRun
from trialfleet.workflows.facts.jobs.job_log import PricedExecution, read_job_stays, read_stays
from trialfleet.workflows.facts.jobs.ordered_trial import find_lane, in_lane
from trialfleet.workflows.facts.run_folder.dag_structure import RegionGraph
from trialfleet.workflows.facts.run_folder.folder import RegionFolder, RunFolder
from trialfleet.workflows.facts.run_folder.trial_names import is_lane
from trialfleet.workflows.facts.runs.trial_executions import (
    has_lost_nothing,
    stays_of_own,
    trial_stays,
)
from trialfleet.workflows.rules.cost_sums import sum_known
from trialfleet.workflows.study.spec import Study

_MUCH, _LEAST_SECONDS = 1 / 3, 60.0


@dataclass(frozen=True, kw_only=True)
class WorkTime:
    """The total execution time of jobs, and its lost part.

    `lost_seconds` is the time of failed attempts and interrupted executions, except the part that a
    checkpoint saved. `lost_share` is lost_seconds / seconds, from 0 to 1.
    """

    seconds: float = 0.0
    lost_seconds: float = 0.0
    lost_share: float = 0.0

    @classmethod
    def from_parts(cls, parts: Iterable[tuple[float, float]]) -> WorkTime:
        """Return the sum of `parts`, which are pairs of seconds and lost seconds."""
        found = list(parts)
        seconds, lost = sum(each for each, _ in found), sum(lost for _, lost in found)
        share = lost / seconds if seconds else 0.0
        return cls(
            seconds=round(seconds, 1), lost_seconds=round(lost, 1), lost_share=round(share, 4)
        )

    @property
    def is_much_lost(self) -> bool:
        """True if the lost part is large enough that a person should look for the reason."""
        return self.lost_share > _MUCH and self.lost_seconds >= _LEAST_SECONDS

    def __str__(self) -> str:
        """Return the lost part in one line."""
        minutes, of = self.lost_seconds / 60, self.seconds / 60
        return f"{self.lost_share:.0%} of all work was lost: {minutes:.0f} of {of:.0f} min"


class _Part(NamedTuple):
    seconds: float
    lost_seconds: float
    usd: float | None


class WorkReader:
    """Reads a run's execution times repeatedly. Trials that have ended are read only once."""

    def __init__(self, folder: RunFolder, study: Study) -> None:
        self._folder, self._study = folder, study
        self._trials: dict[tuple[str, int], tuple[str, _Part]] = {}  # ended trials
        self._lost_nothing: dict[str, dict[int, str]] = {}  # nodes of ended trials without losses
        self._regions: dict[str, tuple[object, list[_Part]]] = {}  # regions without jobs

    def read(
        self,
        region: RegionGraph,
        trials: Sequence[StoredTrial],
        queued: QueuedRun | None,
        now: float,
    ) -> tuple[WorkTime, float | None]:
        """Return a region's work so far and its cost. An unknown cost is None.

        `queued` is None if the queue is unreachable. `now` is in Unix seconds.
        """
        running = queued.running if queued else frozenset()
        parts = self._parts(region, trials, running, now)
        work = WorkTime.from_parts((part.seconds, part.lost_seconds) for part in parts)
        return work, sum_known(part.usd for part in parts)

    def _parts(
        self,
        region: RegionGraph,
        trials: Sequence[StoredTrial],
        running: Set[str],
        now: float,
    ) -> list[_Part]:
        files = self._folder.region(region.slug)
        lanes = list(filter(is_lane, region.trial_nodes))
        has_jobs = not running.isdisjoint((*region.trial_nodes, *region.end_nodes))
        stamp = None if has_jobs else _stamp(files, lanes, trials)
        if stamp and (known := self._regions.get(region.slug)) and known[0] == stamp:
            return known[1]

        def until(node: str) -> float | None:
            return now if node in running else None

        price, logs = self._study.usd_per_hour, {}
        for node in lanes:
            logs[node] = read_job_stays(files.trial(node).log, price, now=until(node))
        # losses are counted per trial: a lost job doesn't lose the trials that had ended
        jobs = {
            node: _sum(stays)._replace(lost_seconds=0.0)
            for node, (stays, _) in logs.items()
            if stays
        }
        found = [*jobs.values()]
        lost_nothing = self._update_lossless_trials(region, trials)
        for trial in trials:
            if lost_nothing.get(trial.number) in jobs:
                continue  # its job's executions include all of it
            node, part = self._trial_work(files, region, trial, running, now)
            found.append(_lost_part(part) if node in jobs else part)
        for node, end in ((region.best, files.best), (region.gate, files.gate)):
            # for one in a lane's job, the note equals that job's log
            own = (
                read_stays(end, price, now=until(node))
                if jobs
                else stays_of_own(end, self._study, until(node))
            )
            found.append(_sum(own))
            for lane, (_, ends) in logs.items():
                if end.root.name in ends:
                    is_lost = lane != find_lane(files, end)
                    place = in_lane(files, end, lane)
                    stays = read_stays(place, price, failed=is_lost, now=until(lane))
                    found.append(_lost_part(_sum(stays)))
        self._regions[region.slug] = stamp, found
        return found

    def _update_lossless_trials(
        self, region: RegionGraph, trials: Iterable[StoredTrial]
    ) -> dict[int, str]:
        known = self._lost_nothing.setdefault(region.slug, {})
        new = (trial for trial in trials if trial.number not in known)
        known |= {
            trial.number: _trial_node(region, trial) for trial in new if has_lost_nothing(trial)
        }
        return known

    def _trial_work(
        self,
        files: RegionFolder,
        region: RegionGraph,
        trial: StoredTrial,
        running: Set[str],
        now: float,
    ) -> tuple[str, _Part]:
        key = (files.root.name, trial.number)
        if key in self._trials:
            return self._trials[key]
        node = _trial_node(region, trial)
        stays = trial_stays(files, trial, self._study, now if node in running else None)
        part = _sum(stays)
        if trial.state.is_finished():
            self._trials[key] = node, part
        return node, part


def _trial_node(region: RegionGraph, trial: StoredTrial) -> str:
    name = str(trial.user_attrs.get("node"))
    return region.find_node(name) or name


def _stamp(files: RegionFolder, lanes: Iterable[str], trials: Sequence[StoredTrial]) -> object:
    """Return a value that changes with each event of a region's jobs.

    Return None if a trial is unfinished.
    """
    if not all(trial.state.is_finished() for trial in trials):
        return None
    logs = [files.trial(node).log for node in lanes]
    ends = [path for end in (files.best, files.gate) for path in (end.log, end.job)]
    return len(trials), *map(untrusted_files.file_stamp, (*logs, *ends))


def _lost_part(part: _Part) -> _Part:
    """Return `part` with its lost seconds only, because another part has its seconds and cost."""
    return part._replace(seconds=0.0, usd=None)


def _sum(stays: Sequence[PricedExecution]) -> _Part:
    lost = sum(stay.lost_seconds for stay in stays)
    return _Part(sum(stay.seconds for stay in stays), lost, sum_known(stay.usd for stay in stays))
