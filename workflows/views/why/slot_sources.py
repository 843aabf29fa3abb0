"""The facts of `trialfleet why` about a waiting job and the slots that could run it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from trialfleet.classads import JobStatus, plain_attributes, value
from trialfleet.errors import PoolError
from trialfleet.infra.pool.collector import has_negotiator, machine_named
from trialfleet.infra.pool.machines import parse_machines
from trialfleet.workflows.facts.dagman import job_queue
from trialfleet.workflows.facts.dagman.pool_slots import pool_slots
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.rules.slot_matching import prospects
from trialfleet.workflows.views.why.facts import Queued

if TYPE_CHECKING:
    from classad2 import ClassAd


def queued_job(folder: RunFolder, node: str) -> Queued | None:
    """Return the facts about the waiting job of a DAG node and the pool's slots.

    Return None if no job waits. PoolError if HTCondor's queue can't be read.
    """
    job = job_queue.one_idle(folder, node)
    if job is None:
        return None
    named = f"{job['ClusterId']}.{job['ProcId']}"
    job["QDate"] = 0  # the machine that a retry avoids for two minutes is suitable, too
    seconds = max(0.0, time.time() - float(value(job, "EnteredCurrentStatus") or time.time()))
    if value(job, "JobStatus") == JobStatus.BLOCKED:
        return Queued(job=named, seconds=seconds, blocked=True)
    try:
        slots = pool_slots()
        running = job_queue.running_by_run()
        negotiates = has_negotiator()
    except PoolError:
        return Queued(job=named, seconds=seconds)
    own = running[str(folder.root)]
    return Queued(
        job=named,
        seconds=seconds,
        prospects=prospects(job, slots.whole),
        free=prospects(job, slots.free).willing,
        has_negotiator=negotiates,
        draining=_draining(job, slots.whole),
        own=own,
        foreign=running.total() - own,
    )


def _draining(job: Any, slots: list[ClassAd]) -> str:
    """Return why slots drain (take no new jobs) if all slots that fit `job` drain, else ""."""
    drain = [slot for slot in slots if slot.get("Draining") is True]
    stay = [slot for slot in slots if slot.get("Draining") is not True]
    if not drain or prospects(job, stay).fit:
        return ""
    if not (fit := [slot for slot in drain if prospects(job, [slot]).fit]):
        return ""
    machines = parse_machines(map(plain_attributes, fit))
    return next(filter(None, (one.drain_explanation for one in machines)), "no reason was given")


def word_of_machine(machine: str) -> str:
    """Return the reason that a machine reports for taking no trials, or "" if none is known."""
    found = machine_named(machine)
    return found.explanation() if found and found.state() != "well" else ""
