"""How the regions of a day's run have ended, by the run's own words."""

from __future__ import annotations

from datetime import date

from trialfleet.files import read_json
from trialfleet.workflows.daily.journal import Attempt, Ending, Outcome
from trialfleet.workflows.plan.folder import RunFolder
from trialfleet.workflows.status.run_status import RegionStatus, RunStatus
from trialfleet.workflows.status.states import RunState
from trialfleet.workflows.study.daily import RunsDay
from trialfleet.workflows.study.frozen import FrozenStudy

_KEPT = "kept"  # the gate's word for a model that was trained and isn't the champion


class RunsEndings:
    """Tells how regions of one attempt's run have ended."""

    def __init__(self, attempt: Attempt, files: RunFolder, frozen: FrozenStudy) -> None:
        self._attempt = attempt
        self._files = files
        self._regions = list(frozen.study.region_table)
        self._day = frozen.day or RunsDay(date=attempt.date)

    def published(self, status: RunStatus) -> list[Outcome]:
        """Return the outcomes of the regions that have published, while others may go on."""
        return [self._with_model(r) for r in status.regions if r.stage.has_model]

    def all(self, status: RunStatus) -> list[Outcome]:
        """Return the outcomes of all regions of a run that has ended."""
        failed = [
            self._outcome(region.name, Ending.FAILED, _why_failed(region, status))
            for region in status.regions
            if not region.stage.has_model
        ]
        return [*self.published(status), *failed]

    def none(self, why: str) -> list[Outcome]:
        """Return the outcomes of a run that can't be begun."""
        return [self._outcome(region, Ending.FAILED, why) for region in self._regions]

    def _with_model(self, region: RegionStatus) -> Outcome:
        gate = self._files.region(region.slug).verdict
        verdict = read_json(gate) if gate.exists() else {}
        if verdict.get("verdict") == _KEPT:
            return self._outcome(region.name, Ending.KEPT, str(verdict.get("why") or ""))
        if region.not_latest:
            return self._outcome(region.name, Ending.KEPT, region.not_latest)
        return self._outcome(region.name, Ending.PUBLISHED, "")

    def _outcome(self, region: str, ending: Ending, why: str) -> Outcome:
        return Outcome(
            date=self._attempt.date,
            region=region,
            attempt=self._attempt.attempt,
            ending=ending,
            why=why,
            run=self._attempt.run,
            fingerprint=self._day.fingerprints.get(region),
            settings=self._day.settings.get(region),
        )


def _why_failed(region: RegionStatus, status: RunStatus) -> str:
    if region.reason:
        return region.reason
    if region.cause:
        return str(region.cause)
    word = "stopped" if status.state is RunState.STOPPED else "ended"
    return f"the run {status.run} {word} while the region was {region.phase}"


def data_not_there(day: date, path: str) -> str:
    """Why a region failed whose data of a day isn't there."""
    return f"data of {day} isn't there: {path}"
