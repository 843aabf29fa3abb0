"""What the nodes of trials ask and tell."""

from __future__ import annotations

from optuna.trial import TrialState

from trialfleet.optimizer.region_types import AlreadyTold, Spent, Stopped
from trialfleet.optimizer.service import Reply
from trialfleet.optimizer.trial_execution import TrialExecution
from trialfleet.workflows.attempts import node_faults
from trialfleet.workflows.attempts.giving_up import why_give_up
from trialfleet.workflows.attempts.job_record import execution_of
from trialfleet.workflows.attempts.outcome import (
    EXIT_UNTRAINABLE,
    JOB_REMOVED,
    Complete,
    Failed,
    StoppedEarly,
    Unpaid,
    told_to_stop,
)
from trialfleet.workflows.attempts.retries import Attempts
from trialfleet.workflows.plan.folder import TrialFolder
from trialfleet.workflows.plan.graph import EXITS
from trialfleet.workflows.scripts.budgets import Budgets
from trialfleet.workflows.scripts.region_studies import RegionStudies, without_job
from trialfleet.workflows.status import spending
from trialfleet.workflows.status.region_state import GAVE_UP
from trialfleet.workflows.status.run_trials import RunTrials


class TrialScripts:
    """Choosing a trial's parameters, and judging its attempts."""

    def __init__(self, studies: RegionStudies) -> None:
        self._studies, self._folder, self._study = studies, studies.folder, studies.study
        self._trials = RunTrials(studies.folder, studies.frozen)
        self._budgets = Budgets(studies)

    def ask(self, slug: str, node: str) -> Reply:
        """Choose a trial's parameters and write its files."""
        study = self._studies.of(slug)
        place = self._folder.region(slug).trial(node)
        if self._was_told(slug, node, place):  # and its job was lost
            return Reply(EXITS["skip"], f"{node}: stopped early")
        if over := self._studies.over():
            study.give_up(node, reason=over)  # it was asked before, and its job is lost
            return Reply(EXITS["skip"], f"{node}: skipped: {over}")
        answer = study.ask(node, lambda: self._budgets.why_spent(slug))
        if isinstance(answer, AlreadyTold):  # DAGMan was lost after the study had been told
            return Reply(EXITS["skip"], f"{node}: trial {answer.number} is finished")
        if isinstance(answer, Spent):
            return Reply(EXITS["skip"], f"{node}: skipped: {answer.reason}")
        if isinstance(answer, Stopped):
            return self._studies.stop(slug, answer.reason)
        if not study.stopped():
            self._studies.go_on(slug)
        avoid = node_faults.to_avoid(self._study, study.failures(node))
        self._studies.write(slug, node, place, answer, "tune", avoid)
        return Reply(EXITS["done"], f"{node}: trial {answer.number}: {answer.params}")

    def tell(
        self, slug: str, node: str, return_code: str, retry: str, most: str, asked: str
    ) -> Reply:
        """Judge an attempt, tell the study, say whether to try again."""
        if no_job := without_job(node, int(return_code), int(asked)):
            return no_job
        place = self._folder.region(slug).trial(node)
        outcome = self._outcome_of(place, int(return_code))
        failed = not isinstance(outcome, Complete | StoppedEarly)
        execution = execution_of(place, self._study, int(retry) + 1, failed=failed)
        if isinstance(outcome, Unpaid):
            return self._give_up(slug, node, outcome, execution)
        if isinstance(outcome, Complete):
            return self._tell_complete(slug, node, outcome, execution)
        if isinstance(outcome, StoppedEarly):
            return self._tell_stopped(slug, node, outcome, execution)
        study = self._studies.of(slug)
        if over := self._never_began(int(return_code), execution):
            study.give_up(node, reason=over, **execution)
            return Reply(EXITS["done"], f"{node}: given up: {over}")
        attempts = Attempts(place, self._study)
        outcome = attempts.with_machine(outcome, study.failures(node))
        noted = study.note_failure(
            node, attempt=int(retry) + 1, error=outcome.error, **attempts.kept(outcome)
        )
        is_last = attempts.over(outcome, noted, retry, most)
        if is_last:
            study.tell_failed(node, error=outcome.error, **execution)
        if stopped := study.stopped():
            return self._studies.stop(slug, stopped.reason)
        if why := self._why_give_up(slug, never_began=outcome.never_began):
            return self._studies.stop(slug, why)
        if not is_last:
            return attempts.try_again(node, outcome, noted)
        return Reply(EXITS["done"], f"{node}: failed for good: {outcome.error}")

    def _outcome_of(
        self, place: TrialFolder, code: int
    ) -> Complete | Failed | Unpaid | StoppedEarly:
        """What became of an attempt. One that was told to stop is over however it left.

        A result counts all the same: it came to its end before it heard. So do parameters that
        can't be trained.
        """
        outcome = self._studies.outcome_of(place, code)
        if not isinstance(outcome, Failed) or code == EXIT_UNTRAINABLE:
            return outcome
        return self._told_to_stop(place) or outcome

    def _is_running(self, slug: str, node: str) -> bool:
        trials = self._studies.of(slug).trials()
        running = [trial for trial in trials if trial.state == TrialState.RUNNING]
        return any(trial.user_attrs.get("node") == node for trial in running)

    def _told_to_stop(self, place: TrialFolder) -> StoppedEarly | None:
        if self._study.early_stopping is None:
            return None
        return told_to_stop(place, self._study.objective.metric)

    def _never_began(self, return_code: int, execution: TrialExecution) -> str | None:
        """Why a trial is given up whose job was removed while it waited, if nothing begins now."""
        is_removed = return_code == JOB_REMOVED and not execution["job"]
        return self._studies.over() if is_removed else None

    def _why_give_up(self, slug: str, *, never_began: bool) -> str | None:
        """Why none of a region's trials can succeed, if so.

        Whether a trainer can be started is seen in its region alone. Any other error needs all of
        the run to have come to nothing.
        """
        own = self._studies.of(slug).trials()
        if any(trial.state == TrialState.COMPLETE for trial in own):
            return None
        if never_began:
            why = why_give_up([(own, self._folder.region(slug))])
            return why and f"the trainer can't be started: {why}"
        found, notice = self._trials.all()
        if notice:
            return None
        regions = self._studies.regions.values()
        why = why_give_up([(found[r.name], self._folder.region(r.slug)) for r in regions])
        return why and f"{GAVE_UP}{why}"

    def _give_up(self, slug: str, node: str, outcome: Unpaid, execution: TrialExecution) -> Reply:
        spending.note(self._folder, "tune", outcome.error)
        self._studies.of(slug).give_up(node, reason=outcome.error, **execution)
        return Reply(EXITS["done"], f"{node}: given up: {outcome.error}")

    def _tell_complete(
        self, slug: str, node: str, outcome: Complete, execution: TrialExecution
    ) -> Reply:
        self._studies.of(slug).tell_complete(
            node,
            metrics=outcome.metrics,
            seconds=outcome.seconds,
            device=outcome.device,
            **execution,
        )
        metric = self._study.objective.metric
        return Reply(EXITS["done"], f"{node}: {metric} = {outcome.metrics[metric]:.6g}")

    def _was_told(self, slug: str, node: str, place: TrialFolder) -> bool:
        """Tell the study of a trial that has an order to stop, whatever became of its job."""
        outcome = self._told_to_stop(place)
        if outcome is None or not self._is_running(slug, node):
            return False
        self._tell_stopped(slug, node, outcome, execution_of(place, self._study, 1, failed=False))
        return True

    def _tell_stopped(
        self, slug: str, node: str, outcome: StoppedEarly, execution: TrialExecution
    ) -> Reply:
        order = outcome.order
        self._studies.of(slug).tell_stopped(
            node,
            predicted=float(order["predicted"]),
            order=order,
            metrics=outcome.metrics,
            seconds=outcome.seconds,
            device=outcome.device,
            **execution,
        )
        metric = self._study.objective.metric
        return Reply(
            EXITS["done"],
            f"{node}: stopped early at step {order.get('step')}: "
            f"{metric} = {order['predicted']:.6g} predicted",
        )
