"""What a report is made from: a run's facts that are not in Optuna's storage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, get_args

from trialfleet.objective import Direction
from trialfleet.workflows.jobs.job_log import Job, Stay
from trialfleet.workflows.status.states import TrialState


@dataclass(frozen=True, kw_only=True)
class RegionNotes:
    """What a report says of a region as it was given to it.

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
    """

    name: str
    slug: str
    study_name: str
    stopped: str | None
    budget_trials: int
    final_job: Job | None = None
    gate_job: Job | None = None
    not_latest: str | None = None
    gate: str | None = None
    gate_worse: bool = False
    usd: float | None = None
    between_usd: float | None = None
    holdout: str | None = None
    changed: str | None = None


@dataclass(frozen=True, kw_only=True)
class RegionSource(RegionNotes):
    """One region of a run.

    Attributes:
        stage: where it stands, as `states.Stage` has it.
        unfinished: the words for trials that are asked and not told, by their nodes.
        published: the folder of the published model; None if nothing was published.
        final: metrics of the full training with the best settings; None before it ended.
        defaults: the default settings, without constants; inactive parameters are absent.
        folder: the region's folder in the run's, where its trials' logs lie; None: nowhere.
        in_force: the model that `latest` means; None where there is none.
        previous: an earlier run's model that measured better; None without any.
        data: its files.
        stays: the executions of its trials' jobs, those that were lost among them, by the trials'
            numbers; a trial that isn't there is drawn by what the study has of its job.
        final_stays: those of the full training's job.
    """

    stage: str
    published: Path | None
    final: Mapping[str, float] | None
    defaults: Mapping[str, Any]
    unfinished: Mapping[str, TrialState] = field(default_factory=dict)
    folder: Path | None = None
    in_force: Path | None = None
    previous: Path | None = None
    data: Sequence[str] = ()
    stays: Mapping[int, Sequence[Stay]] = field(default_factory=dict)
    final_stays: Sequence[Stay] = ()


@dataclass(frozen=True, kw_only=True)
class RunNotes:
    """What a report says of a run as it was given to it.

    Attributes:
        study: the study's name.
        run: the run's id.
        metric: the objective: the metric that was optimised.
        direction: "minimize" or "maximize".
        report_metric: the metric by which tuned and default settings are compared.
        created: when the run was made, with a time zone.
        finished: when it ended, with a time zone; None while it runs.
        boot_usd: what its part in the fleet's nodes cost on their way into the pool; None where
            no autoscaler has told of nodes.
        idle_usd: what its part in them cost without a job; likewise.
        lost_share: the part of its jobs' time, from 0 to 1, that attempts took which failed, and
            that evictions threw away; None where nobody knows.
    """

    study: str
    run: str
    metric: str
    direction: Direction
    report_metric: str
    created: datetime
    finished: datetime | None = None
    boot_usd: float | None = None
    idle_usd: float | None = None
    lost_share: float | None = None


@dataclass(frozen=True, kw_only=True)
class ReportSource(RunNotes):
    """A run.

    Attributes:
        report_direction: which way the report metric is better; None: as the objective.
        notice: what a reader should know first; empty: nothing.
        active: when DAGMans of the run executed, as `job_log.read_executions` has it; empty where
            that isn't known.
        stops: when the run's own DAGMan was removed, in Unix seconds.
        regions: in the study's order.
        storage_url: SQLAlchemy's URL of Optuna's storage. It appears nowhere in the report.

    Raises:
        ValueError: a direction is not one of the two, or a time has no zone.
    """

    regions: Sequence[RegionSource]
    storage_url: str
    report_direction: Direction | None = None
    notice: str = ""
    active: Sequence[tuple[float, float | None]] = ()
    stops: Sequence[float] = ()

    def __post_init__(self) -> None:
        for direction in (self.direction, self.report_direction or self.direction):
            if direction not in get_args(Direction):
                known = ", ".join(get_args(Direction))
                raise ValueError(f"direction {direction!r} is not one of {known}")
        for name, time in (("created", self.created), ("finished", self.finished)):
            if time is not None and time.tzinfo is None:
                raise ValueError(f"{name} = {time.isoformat()} has no time zone")
