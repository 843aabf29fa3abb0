"""What a report holds: plain frozen data, made of one look at a run.

`Report.to_json` is the content of report.json, schema 2: the fields below by their names, with
`"schema": 2` before them; a trial has the names that `trialfleet trials --json` gives it. Times of
the run are ISO 8601 in UTC, paths are text, durations are seconds, numbers are finite and what
isn't known is null. Gains are positive where tuning helped, whichever way the metric goes.
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
        if not is_number(value):
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
class RegionReport:
    """One region's outcome.

    Attributes:
        name: the region's true name, any text.
        slug: its name in paths, unique in the run; the page's anchor is `region-SLUG`.
        study_name: the name of its study in the storage.
        stopped: why the region ended early; None if it didn't.
        budget_trials: how many trials the region may spend, failed ones too.
        final_job: what HTCondor says of the full training's job; None before it began.
        gate_job: likewise of the gate's.
        not_latest: why `latest` is another run's model, if it is.
        gate: what the gate found of a model that it let pass; None without a former one, or a gate.
        gate_worse: whether it measured worse than the former one all the same.
        usd: what its jobs cost; None where their nodes have no price.
        between_usd: of that, jobs that train several trials, while they were at none; likewise.
        holdout: how far the full training's validation and test losses are apart, where rows don't
            explain that.
        changed: which files of its data or code have changed since the run was submitted, if any.
        checks: what the checks of its day's table warn of, if of anything.
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
        cause: why attempts failed, as `RegionStatus` has it, and where their log is.
        failures: most frequent first.
        taught: what the optimiser learned from former tasks: how much each counted at the last
            trial that followed its model, by the name of its study, the most first.
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
class Head:
    """What a report says of a run as a whole that is not concluded from its regions.

    Attributes:
        study: the study's name.
        run: the run's id.
        metric: the objective: the metric that was optimised.
        direction: "minimize" or "maximize".
        report_metric: the metric by which tuned and default settings are compared.
        created: when the run was planned, with a time zone.
        finished: when it ended, with a time zone; None while it runs.
        boot_usd: what its part in the fleet's nodes cost on their way into the pool; None where
            no autoscaler has told of nodes.
        idle_usd: what its part in them cost without a job; likewise.
        lost_share: the part of its jobs' time, from 0 to 1, that attempts took which failed, and
            that evictions threw away; None where nobody knows.
        report_direction: of the report metric.
        notice: what a reader should know first, such as why trials ended early; empty: nothing.
        days: of a run of a day: the study's days until that, the newest first.
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
        """Whether regions are compared by another metric than the objective."""
        return self.metric != self.report_metric


@dataclass(frozen=True, kw_only=True)
class Report(Head):
    """A run's outcome over all its regions.

    Attributes:
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
        """The content of report.json: see the module's text for its schema."""
        return "".join(self.json_parts())

    def json_parts(self) -> Iterator[str]:
        """The same piece by piece: of a large run, one text of it all takes much memory."""
        whole = _json({"schema": SCHEMA, **vars(self), "regions": ()})
        yield whole.removesuffix("]}")
        for at, region in enumerate(self.regions):
            yield f"{',' if at else ''}{_json(region)}"
        yield "]}\n"


def _json(value: Any) -> str:
    form: dict[str, Any] = {"ensure_ascii": False, "separators": (",", ":")}
    return json.dumps(value, allow_nan=False, default=_plain, **form)


def _plain(value: Any) -> Any:
    """JSON's types for what a report holds: its parts are dataclasses."""
    if isinstance(value, DayView):
        return {"date": str(value.date), "open": value.open, "regions": value.outcomes}
    if isinstance(value, Outcome):
        return {name: getattr(value, name) for name in ("region", "ending", "why", "run")}
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else vars(value)
