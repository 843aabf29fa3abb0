"""A run's trials: as its storage has them, and as every view shows them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import inf, isfinite
from typing import Any

from trialfleet.errors import OptimizerError
from trialfleet.optimizer.stored_trials import STOPPED, StoredTrial, is_own, is_stopped_early
from trialfleet.workflows.cleaning import clean, finite, is_finite
from trialfleet.workflows.facts.jobs.job_log import Job, Stay
from trialfleet.workflows.facts.run_folder.folder import RegionFolder, RunFolder
from trialfleet.workflows.facts.runs.causes import failed_attempts
from trialfleet.workflows.facts.runs.job_costs import trial_stays
from trialfleet.workflows.facts.runs.storage import study_name, trials_reader
from trialfleet.workflows.rules.states import TrialState, trial_state
from trialfleet.workflows.study.frozen import FrozenStudy
from trialfleet.workflows.study.spec import Study

# What a row of every trial has, in this order; its parameters follow, then its metrics.
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
    """One trial of a region and its job, as every view has it.

    `started` and `ended` are Unix seconds, what ends in `_seconds` seconds, `memory_mb` MB, `usd`
    and `lost_usd` USD. Texts are printable, numbers finite; what nobody knows is None. `row` has
    it flat, for a table.

    Attributes:
        region: its region's name.
        trial: its number in the region's study, from 0.
        node: its name, which says which DAG node has it.
        state: where it stands, as `TrialState` has it.
        baseline: whether it has the default settings.
        value: the objective's metric, of a complete trial.
        predicted: what it would have been, of a trial that was stopped early.
        stopped: the numbers of the order to stop: at which `step` of `max_steps`, and why.
        params: what the trial was given, without constants and parameters that mean nothing in it.
        metrics: all that it reported at its end.
        seconds: how long its training took, in seconds, by the trainer's own word.
        device: what it trained on, likewise.
        error: why it failed, or was given up; while it runs: why its last attempt failed, if one
            has.
        curve: the objective's metric as it was reported: steps, ascending, and values.
        stays: the executions of its job over all attempts, oldest first; empty: nothing tells.
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
    stays: tuple[Stay, ...] = ()

    @property
    def compute_seconds(self) -> float | None:
        """How long it kept a slot busy: HTCondor's word, else the trainer's."""
        return self.seconds if self.wall_seconds is None else self.wall_seconds

    @property
    def saved_seconds(self) -> float:
        """How long it would have gone on if it had not been stopped early, by its own pace.

        It trains on while the order is on its way: the last step that it reported counts.
        """
        told, end = self.stopped.get("step", 0.0), self.stopped.get("max_steps", 0.0)
        last = max(told, *(step for step, _ in self.curve[-1:]), 0.0)
        if self.predicted is None or last <= 0:
            return 0.0
        return (self.compute_seconds or 0.0) * max(end / last - 1, 0.0)

    def row(self) -> dict[str, Any]:
        """Return it as a row of a table, flat, with the columns of `trialfleet trials --csv`.

        `started` and `ended` are datetimes in UTC here; each parameter is a column `params.NAME`,
        each metric `metrics.NAME`. `pandas.DataFrame([trial.row() for trial in run.trials()])`
        makes a table of them, polars likewise.
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


def trials_of(
    region: str,
    stored: Iterable[StoredTrial],
    unfinished: Mapping[str, TrialState],
    files: RegionFolder,
    study: Study,
    now: float | None = None,
) -> tuple[Trial, ...]:
    """Return a region's trials.

    Args:
        region: its name.
        stored: its trials as the storage has them.
        unfinished: the words for those that were not told yet, by node.
        files: its folder.
        study: the run's.
        now: until when a trial executes that may do so still; None: none does.
    """
    return tuple(
        trial_of(region, each, unfinished, trial_stays(files, each, study, now)) for each in stored
    )


def trial_of(
    region: str,
    stored: StoredTrial,
    unfinished: Mapping[str, TrialState],
    stays: Sequence[Stay] = (),
) -> Trial:
    """Return a trial; the arguments as of `trials_of`, `stays` are the executions of its job.

    Of its notes, which trainers and other releases wrote, only what makes sense is taken.
    """
    notes = stored.user_attrs
    node, is_early = str(notes.get("node", "")), is_stopped_early(stored)
    state = trial_state(stored.state.name, node, unfinished, stopped_early=is_early)
    value = stored.value if is_finite(stored.value) else None
    job, attempts = _mapping(notes.get("job")), notes.get("attempts")
    figures: dict[str, Any] = {name: _amount(job.get(name)) for name in _NUMBERS}
    figures |= {name: n if isinstance(n := job.get(name), int) else None for name in _COUNTS}
    return Trial(
        region=region,
        trial=stored.number,
        node=clean(node),
        state=state,
        baseline=notes.get("baseline") is True,
        value=value if state is TrialState.COMPLETE else None,
        predicted=value if is_early else None,
        stopped=finite(clean(_mapping(notes.get(STOPPED)))),
        params=clean(_mapping(notes.get("params"))),
        metrics=finite(clean(_mapping(notes.get("metrics")))),
        seconds=_amount(notes.get("seconds")),
        device=clean(str(notes.get("device") or "")),
        error=clean(_error(stored, state)),
        curve=tuple(
            [each for each in sorted(stored.intermediate_values.items()) if isfinite(each[1])]
        ),
        stays=tuple(map(_cleaned, stays)),
        attempts=attempts if isinstance(attempts, int) and attempts > 0 else 0,
        machine=clean(job.get("machine")) or None,
        slot=clean(job.get("slot")) or None,
        **figures,
    )


def _cleaned(stay: Stay) -> Stay:
    machine = clean(stay.machine)
    return stay if machine == stay.machine else replace(stay, machine=machine)


def _error(stored: StoredTrial, state: TrialState) -> str | None:
    """Why a trial failed, or was given up; else why the last attempt at it did, if one has."""
    if state in {TrialState.FAILED, TrialState.PRUNED}:
        return str(stored.user_attrs.get("error") or "").strip() or "no error was recorded"
    attempts = [] if stored.state.is_finished() else failed_attempts([stored])
    return attempts[-1].error if attempts else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _amount(value: Any) -> float | None:
    if type(value) is float and 0.0 <= value < inf:  # most are; what follows takes longer
        return value
    return float(value) if is_finite(value) and value >= 0 else None


class RunTrials:
    """Reads the trials of a run; finished ones are fetched from the storage once. Writes nothing.

    Args:
        folder: the run's.
        frozen: its study.
        brief: whether `read` and `all` leave out their curves, and what neither status nor costs
            need.
    """

    def __init__(self, folder: RunFolder, frozen: FrozenStudy, *, brief: bool = False) -> None:
        self._names = {
            region: study_name(frozen.study, frozen.run, region)
            for region in frozen.study.region_table
        }
        self._whole = trials_reader(folder, frozen.study)
        self._all = trials_reader(folder, frozen.study, brief=True) if brief else self._whole
        self._seen: dict[str, list[StoredTrial]] = {}

    def of(self, region: str) -> list[StoredTrial]:
        """Return a region's trials; none while its study has not begun.

        Raises:
            OptimizerError: the storage can't be read.
        """
        return _without_repeats(self._whole(self._names[region]))

    def some(self, numbers: Mapping[str, int]) -> dict[str, StoredTrial]:
        """Return one trial of each of some regions, by its number; likewise."""
        found = self._all.some({self._names[region]: n for region, n in numbers.items()})
        return {region: found[self._names[region]] for region in numbers}

    def read(self) -> dict[str, list[StoredTrial]]:
        """Return the trials by region, without what is left out; likewise."""
        found = self._all.all(list(self._names.values()))
        return {region: _without_repeats(found[name]) for region, name in self._names.items()}

    def all(self) -> tuple[dict[str, list[StoredTrial]], str | None]:
        """Return the same, and why they are those last seen where they are."""
        notice = None
        try:
            self._seen = self.read()
        except OptimizerError as error:
            notice = f"the study can't be read: {error}"
        return {region: self._seen.get(region, []) for region in self._names}, notice


def _without_repeats(trials: list[StoredTrial]) -> list[StoredTrial]:
    return [trial for trial in trials if is_own(trial)]
