"""What a report holds: plain frozen data, read from the studies once.

`Report.to_json` is the content of report.json, schema 1: the fields below, and those of `RunNotes`
and `RegionNotes`, by their names, with `"schema": 1` before them. Times are ISO 8601 in UTC, paths
are text, durations are seconds, numbers are finite and what isn't known is null. Gains are positive
where tuning helped, whichever way the metric goes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import UTC, datetime
from typing import Any

from trialfleet.objective import Direction, gain
from trialfleet.workflows.jobs.job_log import Job, Stay
from trialfleet.workflows.report.source import RegionNotes, RunNotes
from trialfleet.workflows.status.states import TrialState

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Trial(Job):
    """One trial of a region, and its job.

    Attributes:
        number: Optuna's number of it, from 0.
        node: the DAG node that ran it; empty if unknown.
        state: where it stands, as `states.TrialState` has it.
        baseline: whether it ran the default settings.
        objective: the objective's value; None unless complete.
        predicted: what the objective would have been, of a trial that was stopped early.
        stopped: the numbers of the order to stop: at which `step` of `max_steps`, and why.
        metrics: all finite metrics of its result.
        params: its settings, without constants and inactive parameters.
        seconds: what its training took, by the trainer's own word.
        device: what it ran on.
        error: why it failed.
        curve: the objective's metric as it reported it: steps, ascending, and finite values.
        stays: the executions of its job over all attempts, oldest first; empty: nothing tells.
    """

    number: int
    node: str
    state: TrialState
    baseline: bool
    objective: float | None
    predicted: float | None
    stopped: Mapping[str, float]
    metrics: Mapping[str, float]
    params: Mapping[str, Any]
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


@dataclass(frozen=True, kw_only=True)
class ParameterRange:
    """Where a parameter was searched: `low` to `high`, or `choices`."""

    low: float | None
    high: float | None
    log: bool
    choices: tuple[Any, ...] | None

    @property
    def single(self) -> bool:
        """Whether there was nothing to choose."""
        return len(self.choices) < 2 if self.choices is not None else self.low == self.high

    def place(self, value: Any) -> float | None:
        """Where a number lies between `low` (0) and `high` (1); None for anything else."""
        if self.low is None or self.high is None or self.low >= self.high:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        low, high, at = self.low, self.high, min(self.high, max(self.low, value))
        if self.log:
            low, high, at = math.log(low), math.log(high), math.log(at)
        return (at - low) / (high - low)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One parameter's default and best value. `active` is false where the parameter is unused.

    Attributes:
        name: the parameter.
        default: its default value; None if inactive.
        default_active: whether the default settings have it.
        best: its value in the best trial; None if inactive.
        best_active: whether the best trial has it.
        range: where it was searched; None if no trial had it.
        edge: "low" or "high" if the best value lies at that end of the range.
    """

    name: str
    default: Any
    default_active: bool
    best: Any
    best_active: bool
    range: ParameterRange | None
    edge: str | None

    @property
    def changed(self) -> bool:
        """Whether tuning moved it; true is not 1, but 1 is 1.0."""
        default, best = (self.default_active, self.default), (self.best_active, self.best)
        return default != best or isinstance(self.default, bool) != isinstance(self.best, bool)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One metric of the tuned settings against the default ones.

    Attributes:
        metric: its name.
        direction: "minimize" or "maximize".
        default: of the trial with the default settings; None if it isn't known.
        tuned: of the best trial; None if it isn't known.
        gain: how much better tuned is: positive is better in either direction.
    """

    metric: str
    direction: Direction
    default: float | None
    tuned: float | None
    gain: float | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "gain", gain(self.tuned, self.default, self.direction))


@dataclass(frozen=True, kw_only=True)
class Importance:
    """How much a parameter decided whether a trial was among the best.

    Attributes:
        parameter: its name.
        share: of all parameters that could be judged; their shares sum to 1.
        trials: how many completed trials had the parameter: what the share rests on.
    """

    parameter: str
    share: float
    trials: int


@dataclass(frozen=True, kw_only=True)
class Failure:
    """One error and every trial (by number) that ended with it."""

    error: str
    trials: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class RegionReport(RegionNotes):
    """One region's outcome.

    Attributes:
        status: where it stands, as `states.Stage` has it.
        complete: how many completed.
        failed: how many failed for good.
        stopped_early: how many were told to stop, as they would not have been the best.
        running: how many were running.
        objective: best against default by the objective.
        report: best trial against default by the report metric, both as tuning ran them.
        worse: how the tuned settings are worse than the default ones by the report metric; None if
            they aren't. `Report.advice` says what to do.
        next_step: what to do about the model that was published of them; None where nothing was.
        next_command: the command that does it, if there is one.
        why_command: the command that says why it stands where it stands, and what mends that; None
            where the run has no folder.
        final: metrics of the full training with the best settings.
        final_stays: its executions over all attempts, oldest first; empty: nothing tells.
        published: the folder of the published model.
        best_trial: number of the best trial.
        baseline_trial: number of the trial with the default settings.
        compute_seconds: how long its trials and its full training kept slots busy, in all.
        wall_seconds: from its first trial's start to its last trial's end, without pauses.
        paused_seconds: how long the run was paused between the two.
        importance: of its parameters, greatest first; empty if `importance_note` says why.
        importance_note: why there is no importance, or of which parameters there is none.
        settings: best against default.
        cause: why most of its failed attempts failed, and where their log is; None without any.
        failures: most frequent first.
        taught: what the optimiser learned from former tasks: how much each counted at the last
            trial that followed its model, by the name of its study, the most first.
        trials: by number.
    """

    status: str
    complete: int
    failed: int
    stopped_early: int
    running: int
    objective: Comparison
    report: Comparison
    worse: str | None
    next_step: str | None
    next_command: str | None
    why_command: str | None
    final: Mapping[str, float] | None
    published: str | None
    best_trial: int | None
    baseline_trial: int | None
    compute_seconds: float
    wall_seconds: float | None
    paused_seconds: float
    importance: tuple[Importance, ...]
    importance_note: str | None
    settings: tuple[Setting, ...]
    cause: str | None
    failures: tuple[Failure, ...]
    taught: Mapping[str, float]
    trials: tuple[Trial, ...]
    final_stays: tuple[Stay, ...] = ()

    @property
    def finished(self) -> int:
        """How many trials are over, whatever became of them."""
        return sum(trial.state.is_finished for trial in self.trials)

    @property
    def final_metric(self) -> float | None:
        """The report metric of the full training."""
        return None if self.final is None else self.final.get(self.report.metric)

    @property
    def ranges(self) -> dict[str, ParameterRange]:
        """Where each parameter that any trial had was searched."""
        return {item.name: item.range for item in self.settings if item.range is not None}


@dataclass(frozen=True, kw_only=True)
class Report(RunNotes):
    """A run's outcome over all its regions.

    Attributes:
        report_direction: of the report metric.
        notice: what a reader should know first, such as why trials ended early; empty: nothing.
        advice: what to do where tuned settings are worse than default ones; empty: nowhere.
        edges: which parameters' best values lie at the end of their ranges in many regions, and
            what to do about it; empty: none.
        wall_seconds: between the two, without pauses and what was before its first DAGMan.
        paused_seconds: sum of the pauses.
        pauses: from and to, in Unix seconds: when it was stopped, and resumed later.
        compute_seconds: sum over the regions.
        usd: likewise; None where no region's is known.
        complete: trials completed.
        failed: trials failed for good.
        budget_trials: trials that the regions may spend.
        regions: in the study's order.
    """

    report_direction: Direction
    notice: str
    advice: str
    edges: str
    wall_seconds: float | None
    paused_seconds: float
    pauses: tuple[tuple[float, float], ...]
    compute_seconds: float
    usd: float | None
    complete: int
    failed: int
    budget_trials: int
    regions: tuple[RegionReport, ...]

    def to_json(self) -> dict[str, Any]:
        """The content of report.json: see the module's text for its schema."""
        return {"schema": SCHEMA, **_plain(self)}


def _plain(value: Any) -> Any:
    """JSON's types for what a report holds."""
    if is_dataclass(value):
        return {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
