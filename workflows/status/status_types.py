"""The status of a run as plain data, and whether it needs attention (exit code 1 of `status`)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from trialfleet.objective import Direction
from trialfleet.workflows.facts.dagman.failing_scripts import FailingScript
from trialfleet.workflows.facts.dagman.job_queue import HeldJob
from trialfleet.workflows.facts.runs.failed_attempts import Cause, in_short
from trialfleet.workflows.facts.runs.spending import Spending
from trialfleet.workflows.rules.cost_sums import sum_known
from trialfleet.workflows.rules.gate_decision import PassedModel
from trialfleet.workflows.rules.jobs_without_progress import JobTrouble
from trialfleet.workflows.rules.states import RunState, Stage
from trialfleet.workflows.status.lost_work import WorkTime
from trialfleet.workflows.status.unfinished_trials import RunningTrial

UNDER_WAY = {RunState.RUNNING, RunState.HELD, RunState.LOST, RunState.UNKNOWN}


@dataclass(frozen=True, kw_only=True)
class RegionStatus:
    """The status of a region. Texts are None if there is nothing to report.

    Attributes:
        stage: the word that all views show for the region's state.
        done: the number of complete trials.
        failed: the number of permanently failed trials.
        pruned: the number of abandoned trials: no money was left, or the day's deadline had passed.
        running_trials: the progress of each running trial and of a running full training.
        queued: the number of trials that wait for a slot or for their parameters, plus the number
            of waiting jobs that have no trial yet.
        interrupted: the number of trials that ran when the run ended. `resume` trains them again.
        budget: the maximum number of trials.
        best: the best value of the objective so far, of the trial with the number `best_trial`.
        seconds_left: the estimated time until the last trial ends, or None if unknown.
        reason: why the region ended early.
        usd: the cost of its jobs so far, or None if their machines have no price.
        published: the folder of the published model.
        spent: the message that a budget in USD is used up, so that no further trial may begin.
        not_latest: why its published model is not the current one.
        awaits_approval: since when its model has waited for a person's approval, in ISO 8601.
        gate: the gate's message about a model that passed the comparison with the current one.
        kept: why the gate kept the current model instead of the new one.
        holdout: a warning about the full training's metrics.
        changed: the files of the region's data, or of the code, that have changed since the run's
            submission.
        checks: the warnings from the checks of the day's table.
        drift: a message if the gate measured an unusual value for the champion (the model that was
            current then), compared with the values that earlier gates measured for it.
        cause: the latest cause of failed attempts. If the region failed or was stopped, the most
            frequent cause.
        cut_off: if the region failed, the number of unfinished trials with a failed attempt, which
            get no retry. Otherwise 0.
        failing: the region's scripts that fail now, or that failed when the region ended.
        over: why the region gets no more trials, even after a resume. None if the region
            succeeded, or may get more trials.
    """

    name: str
    slug: str
    state: RunState
    stage: Stage
    done: int = 0
    failed: int = 0
    pruned: int = 0
    stopped_early: int = 0
    running: int = 0
    queued: int = 0
    on_hold: int = 0
    interrupted: int = 0
    budget: int = 0
    best: float | None = None
    best_trial: int | None = None
    seconds_left: float | None = None
    reason: str | None = None
    published: str | None = None
    usd: float | None = None
    spent: str | None = None
    not_latest: str | None = None
    awaits_approval: str | None = None
    gate: PassedModel | None = None
    kept: str | None = None
    drift: str | None = None
    holdout: str | None = None
    changed: str | None = None
    checks: str | None = None
    running_trials: tuple[RunningTrial, ...] = ()
    cause: Cause | None = None
    cut_off: int = 0
    over: str | None = None
    failing: tuple[FailingScript, ...] = ()

    @property
    def finished(self) -> int:
        """The number of ended trials, in any state."""
        return self.done + self.all_failed + self.pruned + self.stopped_early

    @property
    def all_failed(self) -> int:
        """The number of failed trials, including those counted in `cut_off`."""
        return self.failed + self.cut_off

    @property
    def failure(self) -> str:
        """Why the region ended early or, if that is unknown, why attempts failed, or ""."""
        return self.reason or str(self.cause or "")

    @property
    def short_failure(self) -> str:
        """Why the region failed, short enough for a table."""
        return self.cause.short_text if self.cause else in_short(self.reason or "")

    @property
    def model_note(self) -> str:
        """Why its new model is not current, or that the gate let a worse model pass, or ""."""
        return self.not_latest or (str(self.gate) if self.gate and self.gate.is_worse else "")

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings about its models and data that all views show."""
        return tuple(filter(None, (self.drift, self.holdout, self.changed, self.checks)))


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """The status of a run.

    Attributes:
        root: the job id of the run's DAGMan, or of a region's DAGMan that was submitted alone. None
            if neither is in the queue.
        notice: the most important notices, for example that HTCondor is unreachable.
        troubles: faults that now block the run or parts of it.
        failing: the troubles that are errors of the run's scripts or of the optimiser's service.
        hopeless: the troubles that prevent waiting trials from ever starting in the present pool.
        job_troubles: the troubles of trials that make no progress.
        repairs: the supervisor's repairs, oldest first: `{"time", "region", "what", "remedy"}`.
        money: the cost of the run's fleet, or None if no autoscaler has reported it.
        again: the command that starts another run of the same study for the same day.
        fix: how to install the modules that the run's trainer lacks.
    """

    run: str
    study: str
    folder: str
    state: RunState
    root: str | None
    metric: str
    direction: Direction
    regions: tuple[RegionStatus, ...]
    held: tuple[HeldJob, ...] = ()
    troubles: tuple[str, ...] = ()
    failing: tuple[str, ...] = ()
    hopeless: tuple[str, ...] = ()
    job_troubles: tuple[JobTrouble, ...] = ()
    work: WorkTime = field(default_factory=WorkTime)
    repairs: tuple[dict[str, Any], ...] = ()
    notice: str | None = None
    seconds_left: float | None = None
    money: Spending | None = None
    again: str = "trialfleet run STUDY --check"
    fix: str = ""

    @property
    def usd(self) -> float | None:
        """The cost of the run's fleet, or of the run's jobs if `money` is None. None if unknown."""
        return self.money.spent if self.money else sum_known(each.usd for each in self.regions)

    @property
    def ended(self) -> bool:
        """True if nothing more happens without a person's action."""
        return self.state not in UNDER_WAY

    @property
    def run_troubles(self) -> tuple[str, ...]:
        """The troubles of the run, without those in `job_troubles`."""
        of_trials = set(map(str, self.job_troubles))
        return tuple(each for each in self.troubles if each not in of_trials)

    @property
    def is_well(self) -> bool:
        """True if the run needs no attention. `trialfleet status` then exits with 0."""
        return self.state.is_well and not (self.job_troubles or self.held or self.hopeless)

    def to_json(self) -> dict[str, Any]:
        """Return the status as plain data."""
        return {"schema": 1, **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class BestSettings:
    """The best settings of a region, and what became of them.

    `value` is the best trial's value of the objective. `final` has the metrics of the full
    training, or None before the model is published. `published` is the published model's folder, or
    None.
    """

    region: str
    stage: Stage
    trial: int
    value: float
    params: dict[str, Any]
    final: dict[str, float] | None
    published: str | None
