"""The status of a run and its regions as plain data, from `StatusReader`, for all views."""

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
    """The status of a region.

    Attributes:
        stage: its state in the one word that every view shows.
        phase: "waiting", "trials", "best", "gate", "publish" or "done".
        done: the number of complete trials.
        failed: the number of permanently failed trials.
        stopped_early: the number of trials stopped early, which would not have been the best.
        pruned: the number of trials abandoned through no fault of their parameters.
        running: the number of trials that their job trains now.
        running_trials: the progress of each, and of a running full training.
        queued: the number of trials whose job waits for a slot or whose parameters are being
            chosen, and of waiting jobs that ask for a trial once they have a slot.
        on_hold: the number of trials whose job is on hold.
        interrupted: the number of trials that ran when the run ended; `resume` trains them again.
        budget: the maximum number of trials.
        best: the best value of the objective so far.
        best_trial: the number of that trial.
        seconds_left: estimated time until the last trial ends; None without a basis.
        reason: why the region ended early.
        usd: the cost so far; None if its nodes have no price.
        published: folder of the published model.
        spent: the budget in USD that allows no more of its trials, if one is spent.
        not_latest: why `latest` is another run's model, if it is.
        awaits_approval: since when its model waits for a person's approval, in ISO 8601.
        gate: the gate's result for a model that passed; None without a previous model, or a gate.
        kept: why the gate kept the current model, if it did.
        holdout: how far its full training's validation and test losses are apart, if the number of
            rows doesn't explain it.
        changed: the files of its data or code that have changed since the submission, if any.
        checks: the warnings of the checks of its day's table, if any.
        drift: how the previously current model has drifted, if the gate found that.
        cause: why attempts failed, if any did: the most frequent cause of a failed region,
            otherwise the latest.
        cut_off: the number of a failed region's trials with failed attempts that were still to be
            retried.
        failing: its scripts that fail now, or failed at its end.
        over: why it gets no further trial even after a resume; None if one is possible, or if it
            is published.
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
        """The number of ended trials, in any state."""
        return self.done + self.failed + self.pruned + self.stopped_early + self.cut_off


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """The status of a run.

    Attributes:
        root: the job id of its DAGMan in the queue.
        notice: the most important notice, e.g. that HTCondor is unreachable.
        held: jobs on hold, with their reasons.
        troubles: faults that block parts of it at this moment.
        failing: those of the troubles that are errors of its scripts, or of its service.
        job_troubles: those of the troubles that are trials without progress.
        work: the execution time of its jobs, and the lost part.
        mends: the supervisor's repairs, oldest first: `{"time", "region", "what", "remedy"}`.
        money: the cost of the run's fleet; None without a fleet with an autoscaler.
        again: the command for another run of its study, of the same day.
        mending: how to install the modules that its trainer lacks, if trials fail for that.
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
        """The cost of its fleet, otherwise of its jobs; None if no price is known."""
        if self.money:
            return self.money.spent
        known = [region.usd for region in self.regions if region.usd is not None]
        return sum(known) if known else None

    @property
    def ended(self) -> bool:
        """True if nothing will happen without a person's action."""
        return self.state not in UNDER_WAY

    @property
    def run_troubles(self) -> tuple[str, ...]:
        """The troubles except those of single trials."""
        of_trials = set(map(str, self.job_troubles))
        return tuple(each for each in self.troubles if each not in of_trials)

    @property
    def is_well(self) -> bool:
        """True if it needs no attention; `trialfleet status` then exits with 0."""
        return self.state.is_well and not self.job_troubles

    def to_json(self) -> dict[str, Any]:
        """Return the status as plain data."""
        return {"schema": 1, **asdict(self)}
