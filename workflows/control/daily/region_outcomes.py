"""The outcome of each region in one attempt at a day, read from the records of its run."""

from __future__ import annotations

from dataclasses import replace

from trialfleet import untrusted_files
from trialfleet.workflows.control.daily.unchanged_regions import compute_fingerprint
from trialfleet.workflows.facts.journal.journal import Attempt, Ending, Outcome, ending_with_model
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.rules.states import RunState
from trialfleet.workflows.status.status_types import RegionStatus, RunStatus
from trialfleet.workflows.study.daily import RunsDay
from trialfleet.workflows.study.frozen import FrozenStudy


class RunsEndings:
    """Reads the outcomes of an attempt's regions.

    Regions that the attempt's run lacks are left out.
    """

    def __init__(self, attempt: Attempt, files: RunFolder, frozen: FrozenStudy) -> None:
        self._attempt = attempt
        self._files = files
        self._study = frozen.study
        self._regions = [name for name in frozen.study.region_table if name in attempt.regions]
        self._day = frozen.day or RunsDay(date=attempt.date)

    def published_outcomes(self, status: RunStatus) -> list[Outcome]:
        """Return the outcomes of the regions that have a published model."""
        return [self._model_outcome(r) for r in self._own_regions(status) if r.stage.has_model]

    def all_outcomes(self, status: RunStatus) -> list[Outcome]:
        """Return the outcomes of all these regions. Call this only after the run's end."""
        failed = [
            self._outcome(region.name, Ending.FAILED, _failure_reason(region, status))
            for region in self._own_regions(status)
            if not region.stage.has_model
        ]
        return [*self.published_outcomes(status), *failed]

    def failed_outcomes(self, why: str) -> list[Outcome]:
        """Return a failed outcome with the reason `why` for each of these regions."""
        return [self._outcome(region, Ending.FAILED, why) for region in self._regions]

    def _own_regions(self, status: RunStatus) -> list[RegionStatus]:
        """Return the status of the attempt's regions. A resumed run may have more regions."""
        return [region for region in status.regions if region.name in self._regions]

    def _model_outcome(self, region: RegionStatus) -> Outcome:
        files = self._files.region(region.slug)
        outcome = self._outcome(region.name, *ending_with_model(files))
        if files.changed.exists() or not untrusted_files.file_size(files.best.trained_on):
            return outcome  # the model's training data is unknown
        data = untrusted_files.read_record(files.best.trained_on, "data")["data"]
        return replace(
            outcome,
            fingerprint=compute_fingerprint(self._study.data_paths(region.name), data),
            settings=self._day.settings.get(region.name),
        )

    def _outcome(self, region: str, ending: Ending, why: str) -> Outcome:
        return self._attempt.outcome(region, ending, why, run=self._attempt.run)


def _failure_reason(region: RegionStatus, status: RunStatus) -> str:
    if region.reason:
        return region.reason
    if region.cause:
        return str(region.cause)
    how = "was stopped" if status.state is RunState.STOPPED else "ended before it had a model"
    return f"its run {status.run} {how}"
