"""The reason why the job of a trainer's check waits, as a line of text."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from trialfleet.classads import JobStatus, Universe, value
from trialfleet.errors import PoolError
from trialfleet.files import shell_quoted
from trialfleet.infra.pool import schedd
from trialfleet.workflows.facts.dagman import job_queue
from trialfleet.workflows.facts.dagman.pool_slots import pool_slots
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.rules.slot_matching import prospects

_SHOWN_RUNS = 3


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
    """Return the runs whose jobs have slots, in words; "" if there are none.

    Free slots are not mentioned: on a busy pool HTCondor has already given them to other jobs.
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
