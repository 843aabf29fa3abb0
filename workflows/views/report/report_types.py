"""The types of a report's data, with the meaning of each field.

`Report.to_json` returns the content of report.json: first `"schema": 3`, then the fields of
`Report` by their names. Regions also have the fields that they have in `trialfleet status --json`,
but `running_trials` is empty; and trials have those of `trialfleet trials --json`. The run's times
are texts in ISO 8601 (UTC), and durations are in seconds. All numbers are finite, and unknown
values are null. A positive gain means that tuning helped, for either direction of the metric.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from trialfleet.objective import Direction, gain, is_number
from trialfleet.workflows.facts.jobs.job_log import Job, PricedExecution
from trialfleet.workflows.facts.journal.journal import Outcome
from trialfleet.workflows.status.run_trials import Trial
from trialfleet.workflows.status.status_types import RegionStatus
from trialfleet.workflows.views.terminal.days_table import DayView

SCHEMA = 3


@dataclass(frozen=True, kw_only=True)
class ParameterRange:
    """The range in which a parameter was tuned: from `low` to `high`, or `choices`."""

    low: float | None
    high: float | None
    log: bool
    choices: tuple[Any, ...] | None

    @property
    def single(self) -> bool:
        """True if the range has only one value."""
        return len(self.choices) < 2 if self.choices is not None else self.low == self.high

    def place(self, value: Any) -> float | None:
        """Return a number's position in the range, from 0 at `low` to 1 at `high`.

        If `log` is true, the position is on a logarithmic scale. A number outside the range counts
        as the nearer end. The result is None if `value` is not a number, or if `low` and `high` are
        None or equal.
        """
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
    """The default value and the best value of a parameter.

    Attributes:
        default_active: whether the default settings use the parameter. If not, `default` is None.
        best_active: whether the best settings use the parameter. If not, `best` is None.
        range: the searched range, or None if no trial had the parameter.
        edge: "low" or "high" if the best value is at or near that end of the range, else None.
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
        """True if the best value differs from the default. The values `True` and 1 differ, too."""
        default, best = (self.default_active, self.default), (self.best_active, self.best)
        return default != best or isinstance(self.default, bool) != isinstance(self.best, bool)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A metric's values for tuned and default settings.

    A `gain` above 0 means that tuning helped.
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
    """A parameter's share of the total importance.

    `trials` is the number of completed trials that had the parameter.
    """

    parameter: str
    share: float
    trials: int


@dataclass(frozen=True, kw_only=True)
class Failure:
    """One error, and the numbers of all trials that ended with this error."""

    error: str
    trials: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class RegionReport(RegionStatus):
    """One region's outcome: its status, with clean texts, and what its trials show.

    Attributes:
        study_name: the name of the region's Optuna study in the trial database.
        between_usd: the part of `usd` for the time that jobs spent between two trials, or None if
            unknown.
        objective: the comparison of best and default settings by the objective.
        report: the comparison of best and default settings by the report metric.
        worse: a warning if tuned settings are worse than default ones by the report metric,
            otherwise None.
        final: the metrics of the full training, or None before publication.
        final_stays: the executions of the full training's job, oldest first.
        gate_stays: likewise, those of the gate's job.
        baseline_trial: the number of the trial with the default settings.
        compute_seconds: the total time for which trials and the full training used slots.
        wall_seconds: the time from the first trial's start to the last trial's end, without pauses.
        paused_seconds: the time of the pauses that `wall_seconds` leaves out.
        importance: the importances of the parameters, greatest first.
        failures: the errors of failed trials, the most frequent first.
        taught: the weights (0 to 1) of previous runs' regions in the optimiser's model, greatest
            first. They are those at the last trial for which the optimiser used previous results.
    """

    study_name: str
    final_job: Job | None
    between_usd: float | None
    objective: Comparison
    report: Comparison
    worse: str | None
    why_command: str | None
    final: Mapping[str, float] | None
    baseline_trial: int | None
    compute_seconds: float
    wall_seconds: float | None
    paused_seconds: float
    importance: tuple[Importance, ...]
    importance_note: str | None
    settings: tuple[Setting, ...]
    failures: tuple[Failure, ...]
    taught: Mapping[str, float]
    trials: tuple[Trial, ...]
    final_stays: tuple[PricedExecution, ...]
    gate_stays: tuple[PricedExecution, ...]

    @property
    def final_metric(self) -> float | None:
        """The full training's value of the report metric, or None if it is missing."""
        return None if self.final is None else self.final.get(self.report.metric)

    @property
    def ranges(self) -> dict[str, ParameterRange]:
        """The range in which each parameter was searched, by the parameter's name."""
        return {item.name: item.range for item in self.settings if item.range is not None}


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """The part of a report that is about the run as a whole.

    Attributes:
        report_metric: the metric by which tuned and default settings are compared.
        created: when the run was planned, with a time zone.
        finished: when the run ended, with a time zone, or None while the run is in progress.
        boot_usd: the run's share in USD of the cost of booting EC2 nodes, or None if no node of the
            run is known.
        idle_usd: likewise, the run's share of the cost of idle EC2 nodes.
        lost_share: the part (0 to 1) of the jobs' time that failures and evictions wasted.
        notice: the most important notices, such as why trials ended early, or "".
        days: for a daily run, the study's days up to the run's day, newest first.
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
        """True if settings are compared by a metric other than the objective."""
        return self.metric != self.report_metric


@dataclass(frozen=True, kw_only=True)
class Report(RunSummary):
    """A run's outcome over all its regions.

    Attributes:
        advice: advice about tuned settings that are worse than default ones, or "".
        edges: advice about parameters whose best values are at an end of their ranges in many
            regions, or "".
        wall_seconds: the time from the start of the run's first DAGMan job to the run's end,
            without pauses. None if `finished` is None.
        pauses: the start and end of each pause, in Unix seconds.
        usd: the sum of the regions' costs, or None if no cost is known.
        regions: the regions, in the study's order.
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
        """Return the content of report.json, as the module's docstring describes it."""
        return "".join(self.json_parts())

    def json_parts(self) -> Iterator[str]:
        """Yield report.json in parts, because the whole text of a large run needs much memory."""
        whole = _to_json_text({"schema": SCHEMA, **vars(self), "regions": ()})
        yield whole.removesuffix("]}")
        for at, region in enumerate(self.regions):
            yield f"{',' if at else ''}{_to_json_text(region)}"
        yield "]}\n"


def _to_json_text(value: Any) -> str:
    form: dict[str, Any] = {"ensure_ascii": False, "separators": (",", ":")}
    return json.dumps(value, allow_nan=False, default=_plain_data, **form)


def _plain_data(value: Any) -> Any:
    if isinstance(value, DayView):
        return {"date": str(value.date), "open": value.open, "regions": value.outcomes}
    if isinstance(value, Outcome):
        return {name: getattr(value, name) for name in ("region", "ending", "why", "run")}
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else vars(value)
