"""The blame for a failed attempt (trainer or machine), and whether and where to retry it.

A failure that a machine or HTCondor caused uses up no retry. It is recognised by HTCondor's hold
code, by the trainer's error or last line of output, or by the machine's ClassAd in the pool. If a
machine is recognised as broken only later, earlier failures on it count as its fault, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from trialfleet import untrusted_files
from trialfleet.errors import PoolError
from trialfleet.infra.pool.collector import machine_named
from trialfleet.optimizer.region_types import Failed
from trialfleet.optimizer.service import Reply
from trialfleet.workflows.facts.dagman.pool_slots import machines
from trialfleet.workflows.facts.jobs.job_log import read_starts
from trialfleet.workflows.facts.run_folder.dag_structure import EXITS, NODE_FAULTS
from trialfleet.workflows.facts.run_folder.folder import TrialFolder
from trialfleet.workflows.facts.runs.failed_attempts import note_final_failure, noted_failures
from trialfleet.workflows.rules.resource_limits import CODES
from trialfleet.workflows.study.spec import Study

Noted = Mapping[str, Mapping[str, str]]  # the record of each failed attempt, by its number

MACHINE = "node"  # the recorded blame of an attempt
_BY_A_PERSON = frozenset({1, 15})  # UserRequest, SubmittedOnHold
_OUTPUT, _INPUT = 12, 13  # a transfer of files failed
_ERRNO = re.compile(r"\(?errno (\d+)\)?", re.IGNORECASE)
# Errors of a missing or unreadable file on the access point: these are the user's errors.
_ABSENT = frozenset({2, 13, 20, 21})

# Errors that only a machine causes: its disk, its GPU or its driver. For CUDA's texts see "CUDA
# Runtime API, data types, cudaError".
_WORDS = re.compile(
    r"No space left on device"
    r"|Input/output error|\bErrno 5\b|Read-only file system|Stale file handle"
    r"|uncorrectable ECC error|cudaErrorECCUncorrectable"
    r"|no CUDA-capable device is detected|all CUDA-capable devices are busy or unavailable"
    r"|CUDA driver initialization failed|CUDA unknown error"
    r"|GPU (has fallen off the bus|is lost)|Unable to determine the device handle"
    r"|NVML.*(Driver/library version mismatch|Unknown Error)"
    r"|(uncorrectable|hardware) .*error.*(NVLink|GPU)|Unsupported display driver",
    re.IGNORECASE,
)
_FAILING_JOBS = "jobs failed here within"  # a node agent's text for repeatedly failing jobs


def in_hold(code: int, reason: str) -> bool:
    """Return whether a machine or HTCondor caused a hold with this code and reason.

    The result is False if the cause is a person, a limit (such as memory), or a user's file that is
    missing or unreadable.
    """
    if code in {*CODES, *_BY_A_PERSON}:
        return False
    if code in {_INPUT, _OUTPUT}:
        errno = _ERRNO.search(reason)
        return errno is None or int(errno[1]) not in _ABSENT
    return True


def blames_machine(message: str) -> bool:
    """Return whether a trainer's last line of output indicates a broken machine."""
    return _WORDS.search(message) is not None


def is_reported_broken(machine: str) -> bool:
    """Return whether a machine's ClassAd reports it as broken. False if the pool is unreachable."""
    found = machine_named(machine)
    if found is None:
        return False
    return found.is_sick() or _FAILING_JOBS in found.drain_explanation


def own_errors(noted: Noted) -> int:
    """Return how many of the failed attempts in `noted` were not a machine's fault."""
    others = [attempt for attempt in noted.values() if attempt.get("blame") != MACHINE]
    names = {attempt["machine"] for attempt in others if attempt.get("machine")}
    broken = {name for name in names if is_reported_broken(name)}
    return sum(attempt.get("machine") not in broken for attempt in others)


def machines_to_avoid(study: Study, noted: Noted) -> tuple[str, ...]:
    """Return the machines on which the attempts in `noted` failed.

    Return () if no other machine of the pool meets the study's requirements, or if HTCondor is
    unreachable.
    """
    failed = {attempt["machine"] for attempt in noted.values() if attempt.get("machine")}
    return tuple(sorted(failed)) if failed and others_than(study, failed) else ()


def others_than(study: Study, used: Iterable[str]) -> bool:
    """Return whether the pool has machines outside `used` that meet a study's requirements.

    The result is False if HTCondor is unreachable.
    """
    own = f"({study.resources.requirements or 'true'})"
    requirements = f"HAS_GPU && {own}" if study.accelerator == "gpu" else own
    try:
        return bool(machines(requirements) - set(used))
    except PoolError:
        return False


class JobEnd(NamedTuple):
    """The end of a DAG node's job, as DAGMan reports it to the POST script.

    `code` is the job's exit code, a negated signal number, or a number below -999 if the job did
    not exit. `retry` counts the DAG node's retries so far, and `most` is their maximum number.
    `asked` is the PRE script's exit code.
    """

    code: int
    retry: int
    most: int
    asked: int


class Attempts:
    """The attempts at a DAG node.

    `Study.retries` limits only the attempts that fail through the user's error. DAGMan's own limit
    applies to all attempts.
    """

    def __init__(self, place: TrialFolder, study: Study) -> None:
        starts = [start for start in read_starts(place) if start.slot]
        self._machines = {start.machine for start in starts}
        self._machine = max(starts, key=lambda start: start.ended).machine if starts else ""
        self._place = place
        self._study, self._retries = study, study.retries

    def blame_machine(self, outcome: Failed, before: Noted) -> Failed:
        """Return the outcome, with `by_machine` set if the attempt's machine is to blame.

        The machine is to blame in two cases:

        - The trainer's command could not be run, or the job was removed for lack of progress. All
          attempts ran on this machine, and the pool has other suitable machines. The failure is
          then no longer `final`, so the DAG node may be retried.
        - The failure is not `final`, and the machine's ClassAd reports the machine as broken.

        `before` has the earlier failed attempts.
        """
        if not self._machine:
            return outcome
        tried = {attempt.get("machine", "") for attempt in before.values()} | self._machines
        may_be_machine = outcome.never_began or outcome.got_nowhere
        if may_be_machine and len(tried) == 1 and others_than(self._study, tried):
            return replace(outcome, final=False, by_machine=True)
        is_broken = not outcome.final and is_reported_broken(self._machine)
        return replace(outcome, by_machine=True) if is_broken else outcome

    def blame_record(self, outcome: Failed) -> dict[str, str]:
        """Return the entries `machine` and `blame` of a failed attempt's record."""
        blame = {"blame": MACHINE} if outcome.by_machine else {}
        return ({"machine": self._machine} if self._machine else {}) | blame

    def is_last(self, outcome: Failed, noted: Noted, job: JobEnd | None) -> bool:
        """Return whether a failed attempt gets no retry.

        `noted` has all failed attempts, including this one. `job` is None if the job has not ended.
        """
        so_far, most = len(noted), self._retries + NODE_FAULTS + 1
        if job:
            so_far, most = job.retry, job.most
        return outcome.final or so_far >= most or own_errors(noted) > self._retries

    def retry(self, node: str, outcome: Failed, job: JobEnd) -> Reply | None:
        """Record a failed full training or gate. Return the reply for a retry, else None."""
        outcome = self.blame_machine(outcome, noted_failures(self._place))
        kept = self.blame_record(outcome)
        noted = note_final_failure(
            self._place, node, attempt=job.retry + 1, error=outcome.error, **kept
        )
        is_over = self.is_last(outcome, noted, job)
        return None if is_over else self.try_again(node, outcome, noted)

    def try_again(self, node: str, outcome: Failed, noted: Noted) -> Reply:
        """Remove the failed attempt's files. Return the reply that makes DAGMan retry the node.

        `noted` has all failed attempts at the DAG node, including this one.
        """
        for left in (self._place.saved, self._place.ended):
            untrusted_files.remove(left)
        own = own_errors(noted)
        message = f"attempt {own} of {self._retries + 1} failed"
        if outcome.by_machine:
            machine = self._machine or "HTCondor"
            message = f"attempt {len(noted)} failed because of {machine} and costs no retry"
        return Reply(EXITS["retry"], f"{node}: {message}: {outcome.error}")
