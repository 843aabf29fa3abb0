"""The states of runs, regions and trials, which docs/states.md describes."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from trialfleet.optimizer.stored_trials import StoredTrial, is_stopped_early


class RunState(StrEnum):
    """The state of a run or a region."""

    PLANNED = "planned"  # never submitted
    WAITING = "waiting"  # a region whose turn has not come
    RUNNING = "running"
    HELD = "held"  # its DAGMan is on hold
    LOST = "lost"  # it has not ended and nobody stopped it, but its jobs are not in the queue
    DONE = "done"
    FAILED = "failed"  # ended by itself, and a region has no model or no completed trial
    STOPPED = "stopped"  # ended early by a person; `resume` continues it
    UNKNOWN = "unknown"  # HTCondor is out of reach and no end was recorded

    @property
    def has_jobs(self) -> bool:
        """True if jobs of the run may be running, so that their executions go on."""
        return self in {RunState.RUNNING, RunState.HELD}

    @property
    def can_resume(self) -> bool:
        """True if `trialfleet resume` would continue the run."""
        return self in {RunState.FAILED, RunState.STOPPED, RunState.LOST}

    @property
    def is_well(self) -> bool:
        """True if the run needs no attention, so that `trialfleet status` exits with 0."""
        return self in {RunState.PLANNED, RunState.RUNNING, RunState.DONE}


class Stage(StrEnum):
    """The stage of a region, or how it ended, in more detail than its `RunState`."""

    PLANNED = "planned"
    WAITING = "waiting"
    TUNING = "tuning"  # its trials run
    TRAINING = "training"  # the best settings are trained in full
    GATING = "gating"  # its new model and the current one are measured on the same rows
    PUBLISHING = "publishing"
    PUBLISHED = "published"  # its model is in the publish folder
    # likewise, but the model isn't current: the gate kept the current one, a later run's model was
    # current, a person must approve it first, or a person made another model current
    KEPT = "kept"
    TUNED = "tuned"  # its trials are done, and the study publishes nothing
    HELD = "held"
    LOST = "lost"
    FAILED = "failed"
    STOPPED = "stopped"
    UNKNOWN = "unknown"

    @property
    def is_good(self) -> bool:
        """True if the region has everything that the study asked for."""
        return self in {Stage.PUBLISHED, Stage.KEPT, Stage.TUNED}

    @property
    def is_over(self) -> bool:
        """True if the region has ended, and only a resumed run may continue it."""
        return self.is_good or self in {Stage.FAILED, Stage.STOPPED}

    @property
    def needs_help(self) -> bool:
        """True if the region does not get on without a person."""
        return self in {Stage.FAILED, Stage.HELD, Stage.LOST}

    @property
    def has_model(self) -> bool:
        """True if the region's model is in the publish folder, current or not."""
        return self in {Stage.PUBLISHED, Stage.KEPT}


def done_stage(*, published: bool, not_current: bool) -> Stage:
    """Return the stage of a region that is done.

    `published` says whether it has published a model, and `not_current` whether another model is in
    use.
    """
    if not published:
        return Stage.TUNED
    return Stage.KEPT if not_current else Stage.PUBLISHED


class TrialState(StrEnum):
    """The state of a trial.

    While Optuna's state of the trial is RUNNING, this state depends on the trial's job and region.
    """

    COMPLETE = "complete"
    FAILED = "failed"  # for good: it is not retried
    STOPPED_EARLY = "stopped early"  # by its reports, it would not have been its region's best
    PRUNED = "pruned"  # abandoned: no money was left, or the day's deadline was over
    RUNNING = "running"
    QUEUED = "queued"  # its job waits for a slot, or for its lane's next turn
    HELD = "held"  # its job is on hold: it waits for a person
    INTERRUPTED = "interrupted"  # its run has ended; `resume` trains it again
    UNKNOWN = "unknown"  # HTCondor is out of reach, or another manager may train it

    @property
    def is_finished(self) -> bool:
        """True if the trial has ended, with a result or without."""
        return self in _FINISHED


_FINISHED = {
    TrialState.COMPLETE,
    TrialState.FAILED,
    TrialState.STOPPED_EARLY,
    TrialState.PRUNED,
}
_OF_OPTUNA = {
    "COMPLETE": TrialState.COMPLETE,
    "FAIL": TrialState.FAILED,
    "PRUNED": TrialState.PRUNED,
}


def trial_state(trial: StoredTrial, unfinished: Mapping[str, TrialState]) -> TrialState:
    """Return the state of a trial.

    `unfinished` has the state of each trial without a result, by the trial's name.
    """
    if is_stopped_early(trial):
        return TrialState.STOPPED_EARLY
    return _OF_OPTUNA.get(trial.state.name) or unfinished.get(
        str(trial.user_attrs.get("node")), TrialState.QUEUED
    )


def unfinished_state(region: RunState, *, running: bool, held: bool) -> TrialState:
    """Return the state of a trial without a result, from its region's state and its job's state."""
    if region in {RunState.UNKNOWN, RunState.PLANNED}:  # another manager may train it
        return TrialState.UNKNOWN
    if region not in {RunState.RUNNING, RunState.WAITING, RunState.HELD}:
        return TrialState.INTERRUPTED
    if held:
        return TrialState.HELD
    return TrialState.RUNNING if running else TrialState.QUEUED
