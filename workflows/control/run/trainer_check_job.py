"""The job of `--check`, which is in no DAG: its submission, its removal, and what it waits for."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from trialfleet import untrusted_files
from trialfleet.ctrl_c import delay_ctrl_c
from trialfleet.errors import PoolError
from trialfleet.infra.pool import schedd
from trialfleet.infra.pool.processes import run_captured
from trialfleet.workflows.facts.dagman import job_queue
from trialfleet.workflows.facts.jobs.executions import read_events
from trialfleet.workflows.facts.run_folder.folder import RunFolder, TrialFolder
from trialfleet.workflows.views.why.slot_sources import queued_job
from trialfleet.workflows.views.why.waiting_job_rules import explain_wait

_POLL = 0.2  # seconds
_LOOK_EVERY = 1.0  # seconds between two checks why the job waits
_REMOVED = -1002  # DAGMan's code for a removed job


@dataclass(frozen=True, kw_only=True)
class CheckJobEnd:
    """The end of a job that was watched until a time limit. `waited` if it never got a slot.

    `code` is the job's exit code, or the negated number of the signal that ended it. -1002 if the
    job was removed. None if it had not ended at the time limit.
    """

    code: int | None
    waited: bool = False


def run_job(
    folder: RunFolder,
    place: TrialFolder,
    node: str,
    seconds: float,
    progress: Callable[[str], None],
) -> CheckJobEnd:
    """Submit a trial's job, whose files exist, and remove it after `seconds`; return how it ended.

    `progress` is called repeatedly with a line that says what the job waits for, or where it runs.
    PoolError if HTCondor is unreachable or refuses the job.
    """
    for previous in (place.log, place.agent_log, place.out, place.err):
        untrusted_files.remove(previous)
    own = f'{job_queue.run_constraint(folder)} && TrialfleetNode == "{node}"'
    over = "trialfleet's check is over"
    schedd.apply_action("Remove", own, over)  # left by a killed check
    try:
        _submit(place)
        return _watch(folder, place, node, seconds, progress)
    finally:
        with suppress(PoolError):
            schedd.apply_action("Remove", own, over)


def _submit(place: TrialFolder) -> None:
    command = ["condor_submit", "-terse", place.submit.name]
    try:
        done = run_captured(command, cwd=place.root)
    except OSError as error:
        raise PoolError(f"condor_submit can't be run: {error}") from error
    if done.returncode != 0:
        raise PoolError(f"HTCondor refused the trial of the check: {done.stderr.strip()}")


def _watch(
    folder: RunFolder,
    place: TrialFolder,
    node: str,
    seconds: float,
    progress: Callable[[str], None],
) -> CheckJobEnd:
    now = time.monotonic()
    deadline, look = now + seconds, now
    waited, slot, seen = True, "", 0
    while time.monotonic() < deadline:
        with delay_ctrl_c():
            events = read_events(place.log)
        for event in events[seen:]:
            kind = event.kind
            if kind == "EXECUTE":
                waited, slot = False, str(event.get("SlotName") or event.get("ExecuteHost"))
                progress(f"runs on {slot}")
            elif kind == "JOB_TERMINATED":
                normally = event.get("TerminatedNormally")
                return CheckJobEnd(
                    code=event.get("ReturnValue")
                    if normally
                    else -int(event.get("TerminatedBySignal"))
                )
            elif kind == "JOB_ABORTED":
                return CheckJobEnd(code=_REMOVED)
            elif kind in {"JOB_EVICTED", "SHADOW_EXCEPTION"}:
                slot = ""
        seen = len(events)
        if time.monotonic() >= look:
            if words := f"runs on {slot}" if slot else wait_reason(folder, node):
                progress(words)
            look = time.monotonic() + _LOOK_EVERY
        time.sleep(_POLL)
    return CheckJobEnd(code=None, waited=waited)


def wait_reason(folder: RunFolder, node: str) -> str:
    """Return what a check's job waits for, or "" if it doesn't wait."""
    try:
        waiting = queued_job(folder, node)
    except PoolError as error:
        return f"waits, and HTCondor does not say for what: {error}"
    return explain_wait(None, waiting).why if waiting else ""
