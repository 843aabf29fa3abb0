"""The content of a report: plain frozen data from one snapshot of a run.

`Report.to_json` is the content of report.json, schema 2: the fields below by their names, after
`"schema": 2`; trials have the names of `trialfleet trials --json`. Times of the run are ISO 8601 in
UTC, paths are text, durations are seconds, numbers are finite, and unknown values are null. Gains
are positive if tuning helped, in either direction of the metric.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from trialfleet.objective import Direction, gain, is_number
from trialfleet.workflows.facts.jobs.job_log import Job, Stay
from trialfleet.workflows.facts.journal.journal import Outcome
from trialfleet.workflows.status.run_trials import Trial
from trialfleet.workflows.views.terminal.days import DayView

SCHEMA = 2


@dataclass(frozen=True, kw_only=True)
class ParameterRange:
    """The searched range of a parameter: `low` to `high`, or `choices`."""

    low: float | None
    high: float | None
    log: bool
    choices: tuple[Any, ...] | None

    @property
    def single(self) -> bool:
        """True if the range has one value only."""
        return len(self.choices) < 2 if self.choices is not None else self.low == self.high

    def place(self, value: Any) -> float | None:
        """Return a number's place between `low` (0) and `high` (1); None for other values."""
        if self.low is None or self.high is None or self.low >= self.high:
            return None
        if not is_number(value):
            return None
        low, high, at = self.low, self.high, min(self.high, max(self.low, value))
        if self.log:
            low, high, at = math.log(low), math.log(high), math.log(at)
        return (at - low) / (high - low)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One parameter's default and best value. `active` is false if the parameter is unused.

    Attributes:
        name: the parameter.
        default: its default value; None if inactive.
        default_active: whether the default settings have it.
        best: its value in the best trial; None if inactive.
        best_active: whether the best trial has it.
        range: its searched range; None if no trial had it.
        edge: "low" or "high" if the best value is at that end of the range.
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
        """True if tuning changed it; true differs from 1, but 1 equals 1.0."""
        default, best = (self.default_active, self.default), (self.best_active, self.best)
        return default != best or isinstance(self.default, bool) != isinstance(self.best, bool)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One metric of the tuned settings against the default ones.

    Attributes:
        metric: its name.
        direction: "minimize" or "maximize".
        default: the value of the trial with the default settings; None if unknown.
        tuned: the value of the best trial; None if unknown.
        gain: the improvement by tuning: positive is better in either direction.
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
    """The importance of a parameter for being among the best trials.

    Attributes:
        parameter: its name.
        share: its share of the total of all judged parameters.
        trials: the number of completed trials with the parameter, the basis of the share.
    """

    parameter: str
    share: float
    trials: int


@dataclass(frozen=True, kw_only=True)
class Failure:
    """One error and the numbers of all trials that ended with it."""

    error: str
    trials: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class RegionReport:
    """One region's outcome.

    Attributes:
        name: the region's name, any text.
        slug: its name in paths, unique in the run; the page's anchor is `region-SLUG`.
        study_name: the name of its study in the storage.
        stopped: why the region ended early; None if it didn't.
        budget_trials: the maximum number of trials, including failed ones.
        final_job: HTCondor's data on the full training's job; None before its start.
        gate_job: HTCondor's data on the gate's job; None before its start.
        not_latest: why `latest` is another run's model, if it is.
        gate: the gate's result for a model that passed; None without a previous model, or a gate.
        gate_worse: whether the passed model measured worse than the previous one.
        usd: the cost of its jobs; None if their nodes have no price.
        between_usd: the part of that for jobs between their trials; None if unknown.
        holdout: how far the full training's validation and test losses are apart, if the number of
            rows doesn't explain it.
        changed: the files of its data or code that have changed since the submission, if any.
        checks: the warnings of the checks of its day's table, if any.
        status: its stage, as in `states.Stage`.
        complete: the number of complete trials.
        failed: the number of permanently failed trials.
        stopped_early: the number of trials stopped early, which would not have been the best.
        running: the number of running trials.
        objective: best compared with default by the objective.
        report: best compared with default by the report metric, both as tuning ran them.
        worse: how the tuned settings are worse than the default ones by the report metric; None if
            they aren't. `Report.advice` has advice.
        next_step: what to do about the published model of such settings; None without a model.
        next_command: the command for it, if there is one.
        why_command: the `trialfleet why` command for it; None if the run has no folder.
        final: metrics of the full training with the best settings.
        final_stays: its executions over all attempts, oldest first; empty: unknown.
        published: the folder of the published model.
        best_trial: number of the best trial.
        baseline_trial: number of the trial with the default settings.
        compute_seconds: the total time that its trials and its full training used slots.
        wall_seconds: from its first trial's start to its last trial's end, without pauses.
        paused_seconds: the time of the run's pauses between the two.
        importance: of its parameters, greatest first; empty: see `importance_note`.
        importance_note: why there is no importance, or none of some parameters.
        settings: best compared with default.
        cause: why attempts failed, as in `RegionStatus`, and their log.
        failures: most frequent first.
        taught: the weights of previous tasks at the last trial that the optimiser's model chose,
            by the name of their study, the greatest first.
        trials: by number.
    """

    name: str
    slug: str
    study_name: str
    stopped: str | None
    budget_trials: int
    final_job: Job | None
    gate_job: Job | None
    not_latest: str | None
    gate: str | None
    gate_worse: bool
    usd: float | None
    between_usd: float | None
    holdout: str | None
    changed: str | None
    checks: str | None
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
    final_stays: tuple[Stay, ...]

    @property
    def finished(self) -> int:
        """The number of ended trials, in any state."""
        return sum(trial.state.is_finished for trial in self.trials)

    @property
    def final_metric(self) -> float | None:
        """The report metric of the full training."""
        return None if self.final is None else self.final.get(self.report.metric)

    @property
    def ranges(self) -> dict[str, ParameterRange]:
        """The searched range of each parameter that a trial had."""
        return {item.name: item.range for item in self.settings if item.range is not None}


@dataclass(frozen=True, kw_only=True)
class Head:
    """The facts of a whole run that don't come from its regions.

    Attributes:
        study: the study's name.
        run: the run's id.
        metric: the objective's metric.
        direction: "minimize" or "maximize".
        report_metric: the metric that compares tuned with default settings.
        created: when the run was planned, with a time zone.
        finished: when it ended, with a time zone; None while it runs.
        boot_usd: the cost of its share of the fleet's nodes while they boot; None if no autoscaler
            has reported nodes.
        idle_usd: the cost of its share of nodes without a job; None likewise.
        lost_share: the part of its jobs' time, from 0 to 1, that failed attempts and evictions
            lost; None if unknown.
        report_direction: the direction of the report metric.
        notice: the most important notice, such as why trials ended early; empty without one.
        days: for a run with a day, the study's days up to it, the newest first.
    """

    study: str
    run: str
    metric: str
    direction: Direction
    report_metric: str
    created: datetime
    finished: datetime | None
    boot_usd: float | None = None
    idle_usd: float | None = None
    lost_share: float | None = None
    report_direction: Direction
    notice: str = ""
    days: tuple[DayView, ...] = ()

    @property
    def is_apart(self) -> bool:
        """True if regions are compared by another metric than the objective."""
        return self.metric != self.report_metric


@dataclass(frozen=True, kw_only=True)
class Report(Head):
    """A run's outcome over all its regions.

    Attributes:
        advice: advice on tuned settings that are worse than default ones; empty if there are none.
        edges: a sentence on parameters whose best values are at an end of their ranges in many
            regions, with advice; empty if there are none.
        wall_seconds: between the two, without pauses and what was before its first DAGMan.
        paused_seconds: sum of the pauses.
        pauses: from and to, in Unix seconds: when it was stopped, and resumed later.
        compute_seconds: sum over the regions.
        usd: likewise; None where no region's is known.
        complete: trials completed.
        failed: trials failed permanently.
        budget_trials: trials that the regions may spend.
        regions: in the study's order.
    """

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

    def to_json(self) -> str:
        """Return the content of report.json: see the module's docstring for its schema."""
        return "".join(self.json_parts())

    def json_parts(self) -> Iterator[str]:
        """Yield the content in parts: one text of a large run takes much memory."""
        whole = _json({"schema": SCHEMA, **vars(self), "regions": ()})
        yield whole.removesuffix("]}")
        for at, region in enumerate(self.regions):
            yield f"{',' if at else ''}{_json(region)}"
        yield "]}\n"


def _json(value: Any) -> str:
    form: dict[str, Any] = {"ensure_ascii": False, "separators": (",", ":")}
    return json.dumps(value, allow_nan=False, default=_plain, **form)


def _plain(value: Any) -> Any:
    """Return JSON types for a report's values: its parts are dataclasses."""
    if isinstance(value, DayView):
        return {"date": str(value.date), "open": value.open, "regions": value.outcomes}
    if isinstance(value, Outcome):
        return {name: getattr(value, name) for name in ("region", "ending", "why", "run")}
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else vars(value)
