"""The attempts at a node of a region's graph that failed, and whether another one follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from trialfleet import job_files
from trialfleet.optimizer.service import Reply
from trialfleet.workflows.attempts import node_faults
from trialfleet.workflows.attempts.outcome import Failed
from trialfleet.workflows.jobs.job_log import read_starts
from trialfleet.workflows.plan.folder import TrialFolder
from trialfleet.workflows.plan.graph import EXITS, NODE_FAULTS
from trialfleet.workflows.study.spec import Study

Noted = Mapping[str, Mapping[str, str]]  # what is kept of each attempt that failed, by its number


@dataclass(frozen=True)
class Retries:
    """How often DAGMan has tried a node again, and how often it would."""

    so_far: int
    most: int


class Attempts:
    """Counts what a study's `retries` allow: the user's own errors. DAGMan's count bounds all.

    Args:
        place: the node's folder, with what its job left.
        study: whose `retries` they are.
    """

    def __init__(self, place: TrialFolder, study: Study) -> None:
        starts = [start for start in read_starts(place) if start.slot]
        self._machines = {start.machine for start in starts}
        self._machine = max(starts, key=lambda start: start.ended).machine if starts else ""
        self._place = place
        self._study, self._retries = study, study.retries

    def with_machine(self, outcome: Failed, before: Noted) -> Failed:
        """Return the outcome with what the pool knows of the machine.

        A command that could not be run is not final where that was the only machine so far, and
        others may have it: Python may be broken there. So may HTCondor, where a job got nowhere.

        Args:
            outcome: by what the job left.
            before: the attempts before this one.
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

    def over(self, outcome: Failed, noted: Noted, retries: Retries | None) -> bool:
        """Return whether no other attempt follows.

        Args:
            outcome: of this one, as `with_machine` has it.
            noted: all that failed, this one among them.
            retries: DAGMan's count; None: the job has not ended.
        """
        most = retries or Retries(len(noted), self._retries + NODE_FAULTS + 1)
        if outcome.final or most.so_far >= most.most:
            return True
        return node_faults.own_errors(noted) > self._retries

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
