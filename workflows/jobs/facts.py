"""The facts about a run's jobs that the rule for troubles reads: from the queue and their logs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from trialfleet.classads import JobStatus, Universe
from trialfleet.workflows.jobs.agent_words import asked_since
from trialfleet.workflows.jobs.current import has_checkpoint, place_at
from trialfleet.workflows.jobs.job_log import read_starts
from trialfleet.workflows.jobs.troubles import LONG, JobFacts
from trialfleet.workflows.plan.folder import RunFolder, TrialFolder

# What is read of a job's ad.
ATTRIBUTES = [
    "DiskUsage",
    "JobCurrentStartExecutingDate",
    "LastRemoteHost",
    "NumShadowStarts",
    "ProcId",
    "RemoteHost",
    "TransferInputSizeMB",
    "TrialfleetGangMax",
    "TrialfleetNode",
]


def read_jobs(folder: RunFolder, ads: Iterable[Mapping[str, Any]]) -> list[JobFacts]:
    """Return the jobs of a run's trials, full trainings and gates.

    A job's log is read where that can tell of trouble. The `ads` have `ATTRIBUTES` and those that
    health.py reads.
    """
    own = (ad for ad in ads if ad["JobUniverse"] == Universe.VANILLA and "TrialfleetNode" in ad)
    return [_job(folder, ad) for ad in own]


def _job(folder: RunFolder, ad: Mapping[str, Any]) -> JobFacts:
    region, node = folder.region(str(ad["TrialfleetRegion"])), str(ad["TrialfleetNode"])
    place = region.of_node(node)
    log = place.log
    since = float(ad["EnteredCurrentStatus"])
    is_telling = may_fail(ad) or ad.get("NumShadowStarts", 0) > 1
    starts = None
    if is_telling and log.exists():
        starts = tuple(start for start in read_starts(place) if start.proc == ad["ProcId"])
    host = str(ad.get("RemoteHost") or ad.get("LastRemoteHost") or "")
    return JobFacts(
        region=str(ad["TrialfleetRegion"]),
        node=node,
        job=f"{ad['ClusterId']}.{ad['ProcId']}",
        status=int(ad["JobStatus"]),
        since=since,
        log=str(log),
        machine=host.rpartition("@")[2],
        starts=starts,
        checkpointed=any(start.saved for start in starts or ())
        and has_checkpoint(place_at(region, node)),
        is_rank="TrialfleetGangMax" in ad,
        input_mb=float(ad.get("TransferInputSizeMB") or 0),
        disk_mb=float(ad.get("DiskUsage") or 0) / 1024,
        asked=asked_since(place),
    )


def may_fail(ad: Mapping[str, Any]) -> bool:
    """Return whether a job may be one whose attempt is to fail, by its ad alone."""
    status, entered = ad["JobStatus"], ad["EnteredCurrentStatus"]
    is_late = status != JobStatus.IDLE and time.time() - entered > LONG
    # in the slot that it has; after a reconnection its ad doesn't say so
    executes = status == JobStatus.RUNNING and ad.get("JobCurrentStartExecutingDate", 0) >= entered
    if is_late and executes:
        return False
    return bool(is_late or ad.get("NumShadowStarts", 0) > 1)


def place_of(folder: RunFolder, ad: Mapping[str, Any]) -> TrialFolder:
    """Return the folder of the node, full training or gate whose job has this ad."""
    return folder.region(str(ad["TrialfleetRegion"])).of_node(str(ad["TrialfleetNode"]))
