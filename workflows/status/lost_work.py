"""The work of a run's jobs: execution time, the lost part of this time, and cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from trialfleet.optimizer.stored_trials import StoredTrial
from trialfleet.workflows.facts.jobs.job_log import PricedExecution
from trialfleet.workflows.facts.run_folder.folder import RegionFolder
from trialfleet.workflows.facts.runs.trial_executions import between_stays, end_stays, trial_stays
from trialfleet.workflows.rules.cost_sums import Kind
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


def region_executions(
    files: RegionFolder, trials: Iterable[StoredTrial], study: Study, now: float | None
) -> Iterator[tuple[Kind, PricedExecution]]:
    """Yield all executions of a region's jobs, each with its purpose.

    Executions of jobs that train several trials are divided among the trials. `now` ends an
    execution that still runs, in Unix seconds. It is None if no job is running.
    """
    for trial in trials:
        for stay in trial_stays(files, trial, study, now):
            yield Kind.TRIAL, stay
    for stay in between_stays(files, study, now):
        yield Kind.BETWEEN, stay
    for kind, end in ((Kind.FULL, files.best), (Kind.GATE, files.gate)):
        for stay in end_stays(files, end, study, now):
            yield kind, stay
