"""What a check's job waits for, or where it runs, in a line: from the queue and the pool."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from trialfleet.classads import value
from trialfleet.errors import PoolError
from trialfleet.files import shell_quoted
from trialfleet.infra.pool.status import BLOCKED
from trialfleet.workflows.dagman import job_queue
from trialfleet.workflows.dagman.health import IDLE
from trialfleet.workflows.plan.folder import RunFolder
from trialfleet.workflows.plan.matching import Prospects, pool_slots, prospects

_RUNNING = f"JobStatus == 2 && JobUniverse == {job_queue.VANILLA_UNIVERSE}"
_SHOWN_RUNS = 3


def waits_for(folder: RunFolder, node: str) -> str:
    """Return what the job of a check waits for; empty where it waits no longer, or nobody knows.

    Args:
        folder: the run's.
        node: of the check.
    """
    try:
        job = job_queue.one_idle(folder, node)
        if job is None:
            return ""
        if value(job, "JobStatus") == BLOCKED:
            return "has a slot, and waits for the files that jobs share there"
        found = prospects(job, pool_slots())
        if not found.willing:
            return f"waits for a slot: {found}"
        if prospects(job, pool_slots(whole=False)).willing:
            return "a slot is free for it; HTCondor starts it within seconds"
        return f"waits for a slot: {_busy(found)}{_before(job)}"
    except PoolError as error:
        return f"waits, and HTCondor does not say for what: {error}"


def _busy(found: Prospects) -> str:
    """Who has the slots."""
    jobs = job_queue.query(_RUNNING, ["TrialfleetFolder"])
    by_run = Counter(str(ad.get("TrialfleetFolder", "")) for ad in jobs)
    others = by_run.pop("", 0)
    named = [f"{_count(n)} of {shell_quoted(Path(run))}" for run, n in by_run.most_common()]
    named[_SHOWN_RUNS:] = (
        [f"of {len(named) - _SHOWN_RUNS} more runs"] if named[_SHOWN_RUNS:] else []
    )
    named += [f"{_count(others)} of others"] if others else []
    slots = f"all {found.willing} slots are" if found.willing > 1 else "the one slot is"
    return f"{slots} busy{' with ' if named else ''}{', '.join(named)}"


def _before(job: Any) -> str:
    """How many jobs of the queue have their turn before a job of the same person's."""
    priority, own = value(job, "JobPrio") or 0, value(job, "ClusterId")
    first = f"(JobPrio > {priority} || JobPrio == {priority} && ClusterId < {own})"
    waits = f"(JobStatus == {IDLE} || JobStatus == {BLOCKED})"
    constraint = f"{waits} && JobUniverse == {job_queue.VANILLA_UNIVERSE} && {first}"
    before = len(job_queue.query(constraint, ["ClusterId"]))
    return f"; {_count(before)} wait{'s' if before == 1 else ''} before it" if before else ""


def _count(jobs: int) -> str:
    return f"{jobs} job{'' if jobs == 1 else 's'}"
