"""The attempts at a node of a region's graph that failed, and whether another one follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from trialfleet import job_files
from trialfleet.optimizer.region_types import Failed
from trialfleet.optimizer.service import Reply
from trialfleet.workflows.facts.jobs.job_log import read_starts
from trialfleet.workflows.facts.run_folder.folder import TrialFolder
from trialfleet.workflows.facts.run_folder.graph import EXITS, NODE_FAULTS
from trialfleet.workflows.facts.runs.causes import note_final_failure, noted_failures
from trialfleet.workflows.status.attempts import node_faults
from trialfleet.workflows.study.spec import Study

Noted = Mapping[str, Mapping[str, str]]  # what is kept of each attempt that failed, by its number


class JobEnd(NamedTuple):
    """How a node's job ended, as DAGMan tells its POST script.

    Attributes:
        code: as `outcome.outcome_of` has it.
        retry: how often it has tried the node again.
        most: how often it would.
        asked: the exit code of the node's PRE script.
    """

    code: int
    retry: int
    most: int
    asked: int


class Attempts:
    """Counts what a study's `retries` allow: the user's own errors. DAGMan's count bounds all."""

    def __init__(self, place: TrialFolder, study: Study) -> None:
        starts = [start for start in read_starts(place) if start.slot]
        self._machines = {start.machine for start in starts}
        self._machine = max(starts, key=lambda start: start.ended).machine if starts else ""
        self._place = place
        self._study, self._retries = study, study.retries

    def with_machine(self, outcome: Failed, before: Noted) -> Failed:
        """Return the outcome with what the pool knows of the machine; `before` this were others.

        A command that could not be run is not final where that was the only machine so far, and
        others may have it: Python may be broken there. So may HTCondor, where a job got nowhere.
        """
        if not self._machine:
            return outcome
        tried = {attempt.get("machine", "") for attempt in before.values()} | self._machines
        may_be_machine = outcome.never_began or outcome.got_nowhere
        if may_be_machine and len(tried) == 1 and node_faults.others_than(self._study, tried):
            return replace(outcome, final=False, by_machine=True)
        is_broken = not outcome.final and node_faults.word_of(self._machine)
        return replace(outcome, by_machine=True) if is_broken else outcome

    def kept(self, outcome: Failed) -> dict[str, str]:
        """Return what is kept of an attempt that failed, beside its error."""
        blame = {"blame": node_faults.MACHINE} if outcome.by_machine else {}
        return ({"machine": self._machine} if self._machine else {}) | blame

    def over(self, outcome: Failed, noted: Noted, job: JobEnd | None) -> bool:
        """Return whether no other attempt follows.

        `noted` are all that failed, this one among them; `job` is None where that has not ended.
        """
        so_far, most = len(noted), self._retries + NODE_FAULTS + 1
        if job:
            so_far, most = job.retry, job.most
        return outcome.final or so_far >= most or node_faults.own_errors(noted) > self._retries

    def another(self, node: str, outcome: Failed, job: JobEnd) -> Reply | None:
        """Note that an attempt at a full training, or a gate, failed; answer if another follows."""
        outcome = self.with_machine(outcome, noted_failures(self._place))
        kept = self.kept(outcome)
        noted = note_final_failure(
            self._place, node, attempt=job.retry + 1, error=outcome.error, **kept
        )
        is_over = self.over(outcome, noted, job)
        return None if is_over else self.try_again(node, outcome, noted)

    def try_again(self, node: str, outcome: Failed, noted: Noted) -> Reply:
        """Answer that an attempt failed and another follows, which begins with nothing of it."""
        for left in (self._place.saved, self._place.ended):
            job_files.remove(left)
        own = node_faults.own_errors(noted)
        message = f"attempt {own} of {self._retries + 1} failed"
        if outcome.by_machine:
            machine = self._machine or "HTCondor"
            message = f"attempt {len(noted)} failed by the fault of {machine} and costs no retry"
        return Reply(EXITS["retry"], f"{node}: {message}: {outcome.error}")
