"""The decision whether a failed DAG node is retried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from trialfleet import untrusted_files
from trialfleet.optimizer.region_types import Failed
from trialfleet.optimizer.service import Reply
from trialfleet.workflows.facts.jobs.job_log import read_starts
from trialfleet.workflows.facts.run_folder.dag_structure import EXITS, NODE_FAULTS
from trialfleet.workflows.facts.run_folder.folder import TrialFolder
from trialfleet.workflows.facts.runs.failed_attempts import note_final_failure, noted_failures
from trialfleet.workflows.status.attempts import node_faults
from trialfleet.workflows.study.spec import Study

Noted = Mapping[str, Mapping[str, str]]  # the record of each failed attempt, by its number


class JobEnd(NamedTuple):
    """The end of a DAG node's job, as DAGMan reports it to its POST script.

    `code` is the `return_code` of `outcome.read_outcome`. `retry` counts the DAG node's retries so
    far; `most` is the maximum number of retries. `asked` is the PRE script's exit code.
    """

    code: int
    retry: int
    most: int
    asked: int


class Attempts:
    """The attempts at a DAG node.

    `Study.retries` limits the attempts that fail by the user's error. DAGMan's own limit applies to
    all attempts.
    """

    def __init__(self, place: TrialFolder, study: Study) -> None:
        starts = [start for start in read_starts(place) if start.slot]
        self._machines = {start.machine for start in starts}
        self._machine = max(starts, key=lambda start: start.ended).machine if starts else ""
        self._place = place
        self._study, self._retries = study, study.retries

    def blame_machine(self, outcome: Failed, before: Noted) -> Failed:
        """Return the outcome, with `by_machine` set if the attempt's machine is to blame.

        `before` has earlier failed attempts. If the trainer's command can't be run, this machine
        may have a broken Python. So if the pool has other suitable machines, and none of them has
        tried the command, this machine is to blame, and the failure is not final. The same holds
        for a job that was removed for lack of progress. If the failure is not final, the machine is
        also to blame if its ClassAd reports it as broken.
        """
        if not self._machine:
            return outcome
        tried = {attempt.get("machine", "") for attempt in before.values()} | self._machines
        may_be_machine = outcome.never_began or outcome.got_nowhere
        if may_be_machine and len(tried) == 1 and node_faults.others_than(self._study, tried):
            return replace(outcome, final=False, by_machine=True)
        is_broken = not outcome.final and node_faults.is_reported_broken(self._machine)
        return replace(outcome, by_machine=True) if is_broken else outcome

    def blame_record(self, outcome: Failed) -> dict[str, str]:
        """Return the entries `machine` and `blame` of a failed attempt's record."""
        blame = {"blame": node_faults.MACHINE} if outcome.by_machine else {}
        return ({"machine": self._machine} if self._machine else {}) | blame

    def is_last(self, outcome: Failed, noted: Noted, job: JobEnd | None) -> bool:
        """Return whether a failed attempt gets no retry.

        `noted` has all failed attempts, including this one. `job` is None if the job has not ended.
        """
        so_far, most = len(noted), self._retries + NODE_FAULTS + 1
        if job:
            so_far, most = job.retry, job.most
        return outcome.final or so_far >= most or node_faults.own_errors(noted) > self._retries

    def retry(self, node: str, outcome: Failed, job: JobEnd) -> Reply | None:
        """Record a failed full training or gate; return the reply that makes DAGMan retry it.

        None if the DAG node is not retried.
        """
        outcome = self.blame_machine(outcome, noted_failures(self._place))
        kept = self.blame_record(outcome)
        noted = note_final_failure(
            self._place, node, attempt=job.retry + 1, error=outcome.error, **kept
        )
        is_over = self.is_last(outcome, noted, job)
        return None if is_over else self.try_again(node, outcome, noted)

    def try_again(self, node: str, outcome: Failed, noted: Noted) -> Reply:
        """Remove the failed attempt's files; return the reply that makes DAGMan retry the node."""
        for left in (self._place.saved, self._place.ended):
            untrusted_files.remove(left)
        own = node_faults.own_errors(noted)
        message = f"attempt {own} of {self._retries + 1} failed"
        if outcome.by_machine:
            machine = self._machine or "HTCondor"
            message = f"attempt {len(noted)} failed because of {machine} and costs no retry"
        return Reply(EXITS["retry"], f"{node}: {message}: {outcome.error}")
