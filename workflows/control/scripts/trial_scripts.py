"""PRE and POST scripts of trials: they choose the next trial, and record how an attempt ended."""

from __future__ import annotations

from dataclasses import replace

from optuna.trial import TrialState

from trialfleet.files import write_json
from trialfleet.nodes.job.agent import EXIT_UNANSWERED
from trialfleet.nodes.trial import EXIT_REJECTED
from trialfleet.optimizer.region_types import (
    Abandoned,
    Assignment,
    Complete,
    Failed,
    Outcome,
    OutOfMoney,
    Refused,
    Stopped,
    StoppedEarly,
    TrialExecution,
)
from trialfleet.optimizer.service import Reply
from trialfleet.workflows.control.scripts.budgets_spent import Budgets
from trialfleet.workflows.control.scripts.region_studies import RegionStudies
from trialfleet.workflows.facts.jobs.agent_messages import (
    is_answered,
    read_last_message,
    read_order,
)
from trialfleet.workflows.facts.jobs.job_log import first_failure, last_job
from trialfleet.workflows.facts.run_folder.dag_structure import EXITS
from trialfleet.workflows.facts.run_folder.folder import TrialFolder
from trialfleet.workflows.facts.run_folder.trial_names import is_lane, is_trial, parse_trial_range
from trialfleet.workflows.facts.runs import spending
from trialfleet.workflows.facts.runs.region_records import read_reason
from trialfleet.workflows.rules.useless_resume import GAVE_UP
from trialfleet.workflows.status.attempts.blame_and_retries import (
    Attempts,
    JobEnd,
    machines_to_avoid,
)
from trialfleet.workflows.status.attempts.job_record import read_execution
from trialfleet.workflows.status.attempts.outcome import JOB_REMOVED, early_stop
from trialfleet.workflows.status.attempts.trainer_fails_everywhere import reason_to_abandon
from trialfleet.workflows.status.run_trials import RunTrials


class TrialScripts:
    """Scripts that choose the next trial and its parameters, and record how each attempt ended."""

    def __init__(self, studies: RegionStudies) -> None:
        self._studies, self._folder, self._study = studies, studies.folder, studies.study
        self._trials = RunTrials(studies.folder, studies.frozen)
        self._budgets = Budgets(studies)

    def ask(self, slug: str, node: str) -> Reply:
        """Write the files of a DAG node's job and, if the job is for one trial, the trial's files.

        A lane's job trains several trials, and its agent asks for each of them.
        """
        reply = self.settle(slug, node)
        if reply and reply.exit_code == EXITS["stop"]:
            return reply
        if is_lane(node):
            return self._ask_lane(slug, node)
        chosen = self.choose(slug, node)
        if isinstance(chosen, Reply):
            return chosen
        name, answer = chosen
        avoid = machines_to_avoid(self._study, self._studies.get_study(slug).failures(name))
        self._studies.files(slug, name, answer, avoid=avoid).write()
        return Reply(EXITS["done"], f"{name}: trial {answer.number}: {answer.params}")

    def _ask_lane(self, slug: str, node: str) -> Reply:
        study = self._studies.get_study(slug)
        name = self._under_way(slug, node)
        found = study.stopped() or name or self._next(slug, node)
        if isinstance(found, Refused):
            return self._reply_to_refusal(slug, node, found)
        self._studies.clear_stop(slug)
        avoid = machines_to_avoid(self._study, study.failures(name)) if name else ()
        self._studies.files(slug, node, None, avoid=avoid).write_job()
        return Reply(EXITS["done"], f"{node}: a job for {name or 'its trials'}")

    def _under_way(self, slug: str, node: str, ended: str | None = None) -> str | None:
        """Return a DAG node's unfinished trial that needs another attempt; None if there is none.

        If the unfinished trial has a stop order, or if no attempt may start any more, record the
        trial's end and return None. The trial `ended` is ignored.
        """
        name = self.find_unfinished(slug, node, ended)
        if name is None or self._is_recorded(slug, name):
            return None
        if over := self._studies.end_reason():
            self._studies.get_study(slug).tell(name, Abandoned(error=over))
            return None
        return name

    def _next(self, slug: str, node: str) -> str | Refused:
        study = self._studies.get_study(slug)
        name = self._studies.regions[slug].next_trial(node, study.nodes())
        if name is None:
            return Refused("all of its trials are finished")
        facts = replace(self._studies.facts(), budgets=lambda: self._budgets.gather(slug))
        refused = study.refusal(facts)
        if refused and refused.kind == "usd":
            write_json(self._folder.region(slug).spent, {"reason": refused.reason})
        return refused or name

    def _reply_to_refusal(self, slug: str, node: str, refused: Refused) -> Reply:
        if isinstance(refused, Stopped):
            return self._studies.stop(slug, refused.reason)
        return Reply(EXITS["skip"], f"{node}: skipped: {refused.reason}")

    def choose(
        self, slug: str, node: str, *, ended: str | None = None
    ) -> tuple[str, Assignment] | Reply:
        """Return the next trial of a DAG node's job, or a reply that says why there is none.

        `ended` is a trial that has ended, but whose result is not recorded yet: it is ignored.
        """
        study = self._studies.get_study(slug)
        name = self._under_way(slug, node, ended) or self._next(slug, node)
        if isinstance(name, Refused):
            return self._reply_to_refusal(slug, node, name)
        answer = study.ask(name)
        if isinstance(answer, Refused):
            return self._reply_to_refusal(slug, node, answer)
        if not study.stopped():
            self._studies.clear_stop(slug)
        return name, answer

    def tell(self, slug: str, node: str, job: JobEnd) -> Reply:
        """Record how an ended job's trial ended. The reply says whether another job follows."""
        name = self.find_unfinished(slug, node) or (node if is_trial(node) else None)
        has_asked = (
            job.code == 0 or read_last_message(self._folder.region(slug).trial(node)) is not None
        )
        if name is None and not has_asked:
            chosen = self.choose(slug, node)  # the trial for which the error counts
            name = None if isinstance(chosen, Reply) else chosen[0]
        if name is None:
            return self._reply_after_trial(slug, node)
        place = self._folder.region(slug).trial(name)
        said, order = read_last_message(place), read_order(place)
        if (
            order
            and order.code
            and said
            and said.reports_end_of_trial(name)
            and is_answered(said, order)
        ):
            if job.retry < job.most:  # the agent exited because the trial had failed
                return Reply(EXITS["retry"], order.why)
            return self._tell(slug, name, Failed(error=order.why, final=True), {})
        # For a gang, DAGMan may report a job that was removed only because the others had ended.
        if place.is_shared and EXIT_UNANSWERED in {job.code, first_failure(place.log)}:
            self.settle(slug, node)
            return Reply(EXITS["retry"], f"{node}: its job got no answer; another job continues")
        self._studies.read_end(place)  # notes the trial's end in the job's log
        reply = self.record_attempt(slug, name, job.code, last_job(place.log), job)
        is_done = reply.exit_code == EXITS["done"]
        return self._reply_after_trial(slug, node) if is_done and place.is_shared else reply

    def settle(self, slug: str, node: str) -> Reply | None:
        """Record the result of a DAG node's unfinished trial, if it has arrived; return the reply.

        Return None if no result has arrived. A result waits here if it arrived while no service was
        running, and the agent was lost before the service started again.
        """
        if (name := self.find_unfinished(slug, node)) is None:
            return None
        place = self._folder.region(slug).trial(name)
        ended = self._studies.read_end(place)
        return self.record_attempt(slug, name, ended.code, last_job(place.log)) if ended else None

    def record_attempt(
        self, slug: str, name: str, code: int, job: str, job_end: JobEnd | None = None
    ) -> Reply:
        """Record in the trial database how an attempt at the trial `name` ended.

        `code` is the exit code of the attempt or its job. `job` is the HTCondor job's id, such as
        12.0; "" if there was no job. Only one failure of a trial is counted for each job. `job_end`
        is what DAGMan reported about the job, if it has. The reply is "done" if the trial is
        recorded, "retry" if another attempt follows, "stop" if the region ends.
        """
        study, place = self._studies.get_study(slug), self._folder.region(slug).trial(name)
        outcome: Outcome
        code, outcome = self._studies.read_outcome(place, code)
        # A trial with a stop order is over, however its job ended. But a result still counts,
        # because the trial ended before the order arrived. Untrainable parameters count, too.
        if isinstance(outcome, Failed) and code != EXIT_REJECTED:
            outcome = self._told_to_stop(place) or outcome
        before = study.failures(name)
        attempt = 1 + (job_end.retry if job_end and not place.is_shared else len(before))
        failed = isinstance(outcome, Failed | OutOfMoney)
        execution = read_execution(place, self._study, attempt, failed=failed)
        if isinstance(outcome, OutOfMoney):
            spending.note(self._folder, "tune", outcome.error)
        is_unbegun = isinstance(outcome, Failed) and code == JOB_REMOVED and not execution["job"]
        if is_unbegun and (over := self._studies.end_reason()):  # not begun in time
            outcome = Abandoned(error=over)
        if not isinstance(outcome, Failed):
            return self._tell(slug, name, outcome, execution)
        attempts = Attempts(place, self._study)
        outcome = attempts.blame_machine(outcome, before)
        first = f"{job.partition('.')[0]}.0"  # the jobs of a gang are one attempt
        more = attempts.blame_record(outcome) | ({"job": first} if job else {})
        noted = study.note_failure(name, attempt=attempt, error=outcome.error, **more)
        is_over = attempts.is_last(outcome, noted, job_end)
        reply = self._tell(slug, name, outcome, execution) if is_over else None
        stopped = study.stopped()
        if why := stopped.reason if stopped else self._abandon_reason(slug, outcome):
            return self._studies.stop(slug, why)
        return reply or attempts.try_again(name, outcome, noted)

    def _tell(self, slug: str, name: str, outcome: Outcome, execution: TrialExecution) -> Reply:
        self._studies.get_study(slug).tell(name, outcome, **execution)
        metric = self._study.objective.metric
        match outcome:
            case Complete():
                words = f"{metric} = {outcome.metrics[metric]:.6g}"
            case StoppedEarly():
                predicted = f"{metric} = {outcome.order['predicted']:.6g} predicted"
                words = f"stopped early at step {outcome.order.get('step')}: {predicted}"
            case Failed():
                words = f"failed permanently: {outcome.error}"
            case Abandoned():
                words = f"abandoned: {outcome.error}"
        return Reply(EXITS["done"], f"{name}: {words}")

    def _reply_after_trial(self, slug: str, node: str) -> Reply:
        study, files = self._studies.get_study(slug), self._folder.region(slug)
        if stopped := study.stopped():
            return self._studies.stop(slug, stopped.reason)
        if files.stopped.exists():
            return self._studies.stop(slug, read_reason(files.stopped))
        if isinstance(self._next(slug, node), Refused):
            return Reply(EXITS["done"], f"{node}: its trials are recorded")
        return Reply(EXITS["retry"], f"{node}: continues in another job")

    def find_unfinished(self, slug: str, node: str, ended: str | None = None) -> str | None:
        """Return a DAG node's first trial, except `ended`, with parameters but no result."""
        running, own = self._studies.get_study(slug).running_nodes(), parse_trial_range(node)
        return next((name for name in running if own.has(name) and name != ended), None)

    def _told_to_stop(self, place: TrialFolder) -> StoppedEarly | None:
        if self._study.early_stopping is None:
            return None
        return early_stop(place, self._study.objective.metric)

    def _is_recorded(self, slug: str, name: str) -> bool:
        """Return whether a trial has a stop order. If so, record the trial as stopped early."""
        place = self._folder.region(slug).trial(name)
        outcome = self._told_to_stop(place)
        if outcome is None:
            return False
        self._tell(slug, name, outcome, read_execution(place, self._study, 1, failed=False))
        return True

    def _abandon_reason(self, slug: str, outcome: Failed) -> str | None:
        """Return why no further trial of a region can succeed; None if one still can.

        If the trainer can't be started, only this region's trials are examined, otherwise the
        trials of all regions.
        """
        own = self._studies.get_study(slug).trials()
        if any(trial.state == TrialState.COMPLETE for trial in own):
            return None
        if outcome.never_began:
            why = reason_to_abandon([(own, self._folder.region(slug))])
            return why and f"the trainer can't be started: {why}"
        found, notice = self._trials.read_all()
        if notice:
            return None
        regions = self._studies.regions.values()
        why = reason_to_abandon([(found[r.name], self._folder.region(r.slug)) for r in regions])
        return why and f"{GAVE_UP}{why}"
