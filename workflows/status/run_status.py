"""Where a run and its regions stand, as plain data: `StatusReader` makes it, all views show it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from trialfleet.objective import Direction
from trialfleet.workflows.facts.dagman.failing import FailingScript
from trialfleet.workflows.facts.dagman.job_queue import HeldJob
from trialfleet.workflows.facts.runs.causes import Cause
from trialfleet.workflows.facts.runs.spending import Spending
from trialfleet.workflows.rules.gate_decision import Passed
from trialfleet.workflows.rules.hopeless_attempts import JobTrouble
from trialfleet.workflows.rules.states import RunState, Stage
from trialfleet.workflows.status.unfinished_trials import RunningTrial
from trialfleet.workflows.status.work import Work

UNDER_WAY = {RunState.RUNNING, RunState.HELD, RunState.LOST, RunState.UNKNOWN}


@dataclass(frozen=True, kw_only=True)
class RegionStatus:
    """Where a region stands.

    Attributes:
        stage: the same in the one word that every view shows.
        phase: "waiting", "trials", "best", "gate", "publish" or "done".
        done: trials that completed.
        failed: trials that failed for good.
        stopped_early: trials that were told to stop, as they would not have been the best.
        pruned: trials that were given up through no fault of their own.
        running: trials whose job runs now, and is at them.
        running_trials: how far each has come, and the full training where that runs.
        queued: trials whose job waits for a slot, or whose parameters are just chosen, and jobs
            that wait for a slot and ask there what they are to train.
        on_hold: trials whose job is on hold.
        interrupted: trials that ran when the run ended; `resume` trains them again.
        budget: trials that the region may run.
        best: the best value of the objective so far.
        best_trial: the number of that trial.
        seconds_left: estimate of the time until the last trial ends; None while there is no basis.
        reason: why the region ended early.
        usd: what it has cost so far; None where its nodes have no price.
        published: folder of the published model.
        spent: which budget in USD pays for no more of its trials, if one doesn't.
        not_latest: why `latest` is another run's model, if it is.
        awaits_approval: since when its model waits for a person to promote it, in ISO 8601.
        gate: what the gate found of a model that it let pass; None without a former one, or a gate.
        kept: why the gate kept the model in force, if it did.
        holdout: how far its full training's validation and test losses are apart, where rows don't
            explain that.
        changed: which files of its data or code have changed since the run was submitted, if any.
        checks: what the checks of its day's table warn of, if of anything.
        drift: how the model that was in force left its own past, if the gate found that.
        cause: why attempts failed, if any did: what most had of a region that failed, else the
            latest.
        cut_off: trials of a region that failed which had failed attempts and were to be tried
            again: none of them failed for good.
        failing: its scripts that fail at this moment, or did when it ended.
        over: why it gets no further trial, however often the run is resumed; None while one may
            come, and once it is published.
    """

    name: str
    slug: str
    state: RunState
    stage: Stage
    phase: str = ""
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
    gate: Passed | None = None
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
        """Trials that are over, whatever became of them."""
        return self.done + self.failed + self.pruned + self.stopped_early + self.cut_off


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """Where a run stands.

    Attributes:
        root: the job id of its DAGMan, while that is in the queue.
        notice: what a reader should know first, e.g. that HTCondor is out of reach.
        held: jobs on hold, with their reasons.
        troubles: what keeps a part of it from going on at this moment.
        failing: those of the troubles that are errors of its scripts, or of its service.
        job_troubles: those of the troubles that are trials which get nowhere.
        work: the time that its jobs have executed, and what was lost of it.
        mends: what the supervisor mended, oldest first: `{"time", "region", "what", "remedy"}`.
        money: what the run's fleet costs; None without a fleet that an autoscaler scales.
        again: what starts another run of its study, of the same day.
        mending: what installs the modules that its trainer misses, if that is why trials fail.
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
    job_troubles: tuple[JobTrouble, ...] = ()
    work: Work = field(default_factory=Work)
    mends: tuple[dict[str, Any], ...] = ()
    notice: str | None = None
    seconds_left: float | None = None
    money: Spending | None = None
    again: str = "trialfleet run STUDY --check"
    mending: str = ""

    @property
    def usd(self) -> float | None:
        """What it has cost: its fleet, else its jobs; None where no price is known."""
        if self.money:
            return self.money.spent
        known = [region.usd for region in self.regions if region.usd is not None]
        return sum(known) if known else None

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen unless somebody does something."""
        return self.state not in UNDER_WAY

    @property
    def run_troubles(self) -> tuple[str, ...]:
        """The troubles but those of single trials."""
        of_trials = set(map(str, self.job_troubles))
        return tuple(each for each in self.troubles if each not in of_trials)

    @property
    def is_well(self) -> bool:
        """Return whether nobody has to look at it: what `trialfleet status` exits with 0 for."""
        return self.state.is_well and not self.job_troubles

    def to_json(self) -> dict[str, Any]:
        """Return the status as plain data."""
        return {"schema": 1, **asdict(self)}
