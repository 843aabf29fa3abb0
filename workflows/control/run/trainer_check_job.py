"""The job of `--check`, which is in no DAG: its submission, its removal, and what it waits for."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trialfleet import untrusted_files
from trialfleet.classads import JobStatus, Universe, value
from trialfleet.ctrl_c import delay_ctrl_c
from trialfleet.errors import PoolError
from trialfleet.files import shell_quoted
from trialfleet.infra.pool import schedd
from trialfleet.infra.pool.processes import run_captured
from trialfleet.workflows.facts.dagman import job_queue
from trialfleet.workflows.facts.dagman.pool_slots import pool_slots
from trialfleet.workflows.facts.jobs.executions import read_events
from trialfleet.workflows.facts.run_folder.folder import RunFolder, TrialFolder
from trialfleet.workflows.rules.slot_matching import prospects

_POLL = 0.2  # seconds
_LOOK_EVERY = 1.0  # seconds between two checks why the job waits
_REMOVED = -1002  # DAGMan's code for a removed job
_SHOWN_RUNS = 3


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
    """Return what a check's job waits for; "" if the job runs or is not in the queue."""
    try:
        job = job_queue.one_idle(folder, node)
        if job is None:
            return ""
        if value(job, "JobStatus") == JobStatus.BLOCKED:
            return "has a slot; its files are being sent to the slot's machine"
        slots = pool_slots()
        found = prospects(job, slots.whole)
        if not found.willing:
            return f"waits for a slot: {found}"
        running = job_queue.running_by_run()
        if not running and prospects(job, slots.free).willing:
            return "a slot is free for it; HTCondor starts it within seconds"
        one = found.willing == 1
        all_busy = "the one slot is busy" if one else f"all {found.willing} slots are busy"
        return f"waits for a slot: {_busy_runs(running) or all_busy}{_jobs_before(job)}"
    except PoolError as error:
        return f"waits, and HTCondor does not say for what: {error}"


def _busy_runs(running: Counter[str]) -> str:
    """Return a phrase that names the runs whose jobs have slots; "" if there are none.

    Free slots are not mentioned, because HTCondor may have assigned them to jobs already.
    """
    by_run = running.copy()
    others = by_run.pop("", 0)
    named = [f"{_count(n)} of {shell_quoted(Path(run))}" for run, n in by_run.most_common()]
    named[_SHOWN_RUNS:] = (
        [f"of {len(named) - _SHOWN_RUNS} more runs"] if named[_SHOWN_RUNS:] else []
    )
    named += [f"{_count(others)} of others"] if others else []
    return f"{', '.join(named)} {'runs' if running.total() == 1 else 'run'}" if named else ""


def _jobs_before(job: Any) -> str:
    priority, own = value(job, "JobPrio") or 0, value(job, "ClusterId")
    first = f"(JobPrio > {priority} || JobPrio == {priority} && ClusterId < {own})"
    constraint = f"{job_queue.WAITS} && JobUniverse == {Universe.VANILLA} && {first}"
    before = len(schedd.query(constraint, ["ClusterId"]))
    return f"; {_count(before)} wait{'s' if before == 1 else ''} before it" if before else ""


def _count(jobs: int) -> str:
    return f"{jobs} job{'' if jobs == 1 else 's'}"
