"""A run's trials in the form that all views show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import isfinite
from typing import Any

from trialfleet.errors import OptimizerError
from trialfleet.optimizer.stored_trials import STOPPED, StoredTrial, is_own
from trialfleet.workflows.cleaning import amount, clean, is_finite, keep_finite
from trialfleet.workflows.facts.jobs.job_log import Job, PricedExecution
from trialfleet.workflows.facts.run_folder.folder import RegionFolder, RunFolder
from trialfleet.workflows.facts.runs.failed_attempts import failed_attempts
from trialfleet.workflows.facts.runs.run_storage import check_not_lost, study_name, trials_reader
from trialfleet.workflows.facts.runs.trial_executions import trial_stays
from trialfleet.workflows.rules.states import TrialState, trial_state
from trialfleet.workflows.study.frozen import FrozenStudy
from trialfleet.workflows.study.spec import Study

# The columns of every trial, in this order; its parameters follow, then its metrics.
COLUMNS = (
    "region", "trial", "node", "state", "value", "predicted", "attempts", "seconds", "started",
    "ended", "wall_seconds", "last_wall_seconds", "cpu_seconds", "memory_mb", "machine", "slot",
    "ranks", "generations", "usd", "lost_usd", "error",
)  # fmt: skip
_NUMBERS = ("started", "ended", "wall_seconds", "last_wall_seconds", "cpu_seconds", "memory_mb",
            "usd", "lost_usd")  # fmt: skip
_COUNTS = ("ranks", "generations")


@dataclass(frozen=True, kw_only=True)
class Trial(Job):
    """One trial of a region and its job, as all views show it.

    `started` and `ended` are Unix seconds, and fields that end in `_seconds` are seconds.
    `memory_mb` is in MB, `usd` and `lost_usd` are in USD. Texts are printable, numbers are finite,
    unknown values are None.

    Attributes:
        trial: the trial's number in the region's study, from 0.
        node: the trial's name, which contains the name of its lane.
        baseline: whether the trial has the default settings.
        value: the objective's metric of a complete trial.
        predicted: the predicted value of a trial that was stopped early.
        stopped: if the trial was stopped early, the numbers that led to the stop, such as `step`,
            the step of the last report.
        params: the trial's parameters, without constants and inactive parameters.
        seconds: the duration of the training, as reported by the trainer.
        device: the processor used for the training, as reported by the trainer.
        error: why the trial failed or was abandoned. For an unfinished trial: why its last attempt
            failed.
        curve: pairs of step and reported objective metric, by ascending step.
        stays: the executions of the trial's job in all attempts, oldest first. Empty if unknown.
    """

    region: str
    trial: int
    node: str
    state: TrialState
    baseline: bool
    value: float | None
    predicted: float | None
    stopped: dict[str, float]
    params: dict[str, Any]
    metrics: dict[str, float]
    seconds: float | None
    device: str
    error: str | None
    curve: tuple[tuple[int, float], ...] = ()
    stays: tuple[PricedExecution, ...] = ()

    @property
    def compute_seconds(self) -> float | None:
        """The seconds for which the trial used a slot, from HTCondor.

        If HTCondor's value is unknown, the result is `seconds`, which the trainer reported.
        """
        return self.seconds if self.wall_seconds is None else self.wall_seconds

    def row(self) -> dict[str, Any]:
        """Return the trial as a row of a table with the columns of `trialfleet trials --csv`.

        `started` and `ended` are datetimes in UTC. Each parameter has a column `params.NAME`, each
        metric a column `metrics.NAME`. `pandas.DataFrame([trial.row() for trial in run.trials()])`
        makes a table. `polars.DataFrame` accepts the same list.
        """
        return {
            **{name: getattr(self, name) for name in COLUMNS},
            "state": str(self.state),
            "started": _moment(self.started),
            "ended": _moment(self.ended),
            **{f"params.{name}": value for name, value in self.params.items()},
            **{f"metrics.{name}": value for name, value in self.metrics.items()},
        }


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def build_trials(
    region: str,
    stored: Iterable[StoredTrial],
    unfinished: Mapping[str, TrialState],
    files: RegionFolder,
    study: Study,
    now: float | None = None,
) -> tuple[Trial, ...]:
    """Return a region's trials.

    `unfinished` has the states of trials with no result, by name. An execution that still runs is
    counted until `now`, in Unix seconds. If no job of the run can be running, `now` is None.
    """
    return tuple(
        build_trial(region, each, unfinished, trial_stays(files, each, study, now))
        for each in stored
    )


def build_trial(
    region: str,
    stored: StoredTrial,
    unfinished: Mapping[str, TrialState],
    stays: Sequence[PricedExecution] = (),
) -> Trial:
    """Return the trial `stored` with its job's executions `stays`.

    Invalid attributes are left out. A trainer, or another release of trialfleet, may have written
    them.
    """
    notes = stored.user_attrs
    state = trial_state(stored, unfinished)
    value = stored.value if is_finite(stored.value) else None
    job, attempts = _mapping_or_empty(notes.get("job")), notes.get("attempts")
    figures: dict[str, Any] = {name: amount(job.get(name)) for name in _NUMBERS}
    figures |= {name: n if isinstance(n := job.get(name), int) else None for name in _COUNTS}
    return Trial(
        region=region,
        trial=stored.number,
        node=clean(str(notes.get("node", ""))),
        state=state,
        baseline=notes.get("baseline") is True,
        value=value if state is TrialState.COMPLETE else None,
        predicted=value if state is TrialState.STOPPED_EARLY else None,
        stopped=keep_finite(clean(_mapping_or_empty(notes.get(STOPPED)))),
        params=clean(_mapping_or_empty(notes.get("params"))),
        metrics=keep_finite(clean(_mapping_or_empty(notes.get("metrics")))),
        seconds=amount(notes.get("seconds")),
        device=clean(str(notes.get("device") or "")),
        error=clean(_error(stored, state)),
        curve=tuple(
            [each for each in sorted(stored.intermediate_values.items()) if isfinite(each[1])]
        ),
        stays=tuple(map(_clean_stay, stays)),
        attempts=attempts if isinstance(attempts, int) and attempts > 0 else 0,
        machine=clean(job.get("machine")) or None,
        slot=clean(job.get("slot")) or None,
        **figures,
    )


def _clean_stay(stay: PricedExecution) -> PricedExecution:
    machine = clean(stay.machine)
    return stay if machine == stay.machine else replace(stay, machine=machine)


def _error(stored: StoredTrial, state: TrialState) -> str | None:
    if state in {TrialState.FAILED, TrialState.PRUNED}:
        return str(stored.user_attrs.get("error") or "").strip() or "no error was recorded"
    attempts = [] if stored.state.is_finished() else failed_attempts([stored])
    return attempts[-1].error if attempts else None


def _mapping_or_empty(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


class RunTrials:
    """Reads a run's trials repeatedly.

    A finished trial is not read again if all trials before it in its region have finished, too.

    With `brief`, the trials may lack parts that status and costs don't need, such as curves.
    """

    def __init__(self, folder: RunFolder, frozen: FrozenStudy, *, brief: bool = False) -> None:
        self._folder, self._study = folder, frozen.study
        self._names = {
            region: study_name(frozen.study, frozen.run, region)
            for region in frozen.study.region_table
        }
        self._reader = trials_reader(folder, frozen.study, brief=brief)
        self._seen: dict[str, list[StoredTrial]] = {}

    def read_region(self, region: str) -> list[StoredTrial]:
        """Return a region's trials. Before the region's Optuna study exists, there are none.

        Raises OptimizerError if the trial database can't be read.
        """
        check_not_lost(self._folder, self._study)
        name = self._names[region]
        return _without_repeats(self._reader.read_all([name])[name])

    def read(self) -> dict[str, list[StoredTrial]]:
        """Return the trials by region. OptimizerError if the trial database can't be read."""
        check_not_lost(self._folder, self._study)
        found = self._reader.read_all(list(self._names.values()))
        return {region: _without_repeats(found[name]) for region, name in self._names.items()}

    def read_all(self) -> tuple[dict[str, list[StoredTrial]], str | None]:
        """Return the trials by region, and why they are outdated, or None if they are not.

        If the trial database can't be read, the trials are those of the last successful read.
        """
        notice = None
        try:
            self._seen = self.read()
        except OptimizerError as error:
            notice = f"the trials can't be read: {error}"
        return {region: self._seen.get(region, []) for region in self._names}, notice


def _without_repeats(trials: list[StoredTrial]) -> list[StoredTrial]:
    return [trial for trial in trials if is_own(trial)]
