"""The facts about a run's jobs that the rule for troubles reads: from the queue and their logs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trialfleet.workflows.jobs.executions import Execution
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
    "TrialfleetMode",
    "TrialfleetNode",
]
_VANILLA = 5  # JobUniverse
_IDLE, _RUNNING = 1, 2  # JobStatus
_SPOOLED = 10_000  # the spool's folders go by the remainders of a job's numbers


def read_jobs(folder: RunFolder, ads: Iterable[Mapping[str, Any]]) -> list[JobFacts]:
    """Return the jobs of a run's trials, full trainings and gates.

    A job's log is read where that can tell of trouble.

    Args:
        folder: the run's.
        ads: its jobs, with `ATTRIBUTES` and those that health.py reads.
    """
    own = [ad for ad in ads if ad["JobUniverse"] == _VANILLA and "TrialfleetNode" in ad]
    return [_job(folder, ad) for ad in own]


def _job(folder: RunFolder, ad: Mapping[str, Any]) -> JobFacts:
    log = place_of(folder, ad).log
    since = float(ad["EnteredCurrentStatus"])
    is_telling = may_fail(ad) or ad.get("NumShadowStarts", 0) > 1
    starts = tuple(_starts(log, int(ad["ProcId"]))) if is_telling and log.exists() else None
    host = str(ad.get("RemoteHost") or ad.get("LastRemoteHost") or "")
    return JobFacts(
        region=str(ad["TrialfleetRegion"]),
        node=str(ad["TrialfleetNode"]),
        job=f"{ad['ClusterId']}.{ad['ProcId']}",
        status=int(ad["JobStatus"]),
        since=since,
        log=str(log),
        machine=host.rpartition("@")[2],
        starts=starts,
        checkpointed=any(start.saved for start in starts or ()) and _has_checkpoint(ad),
        is_rank="TrialfleetGangMax" in ad,
        input_mb=float(ad.get("TransferInputSizeMB") or 0),
        disk_mb=float(ad.get("DiskUsage") or 0) / 1024,
    )


def may_fail(ad: Mapping[str, Any]) -> bool:
    """Return whether a job may be one whose attempt is to fail, by its ad alone."""
    is_late = ad["JobStatus"] != _IDLE and time.time() - ad["EnteredCurrentStatus"] > LONG
    if is_late and _executes(ad):
        return False
    return bool(is_late or ad.get("NumShadowStarts", 0) > 1)


def _executes(ad: Mapping[str, Any]) -> bool:
    """Whether a job that has a slot executes there; after a reconnection its ad doesn't say so."""
    began = ad.get("JobCurrentStartExecutingDate", 0)
    return bool(ad["JobStatus"] == _RUNNING and began >= ad["EnteredCurrentStatus"])


def _starts(log: Path, proc: int) -> list[Execution]:
    return [start for start in read_starts(log) if start.proc == proc]


def place_of(folder: RunFolder, ad: Mapping[str, Any]) -> TrialFolder:
    """Return the folder of the trial, full training or gate whose job has this ad."""
    region = folder.region(str(ad["TrialfleetRegion"]))
    ends = {"final": region.best, "evaluate": region.gate}
    return ends.get(str(ad.get("TrialfleetMode"))) or region.trial(str(ad["TrialfleetNode"]))


def _has_checkpoint(ad: Mapping[str, Any]) -> bool:
    """Return whether what HTCondor saved of an evicted job has anything in checkpoint/.

    Output and reports are saved, too, and take no trainer further. Where the spool can't be read,
    what was saved counts.
    """
    import htcondor2

    cluster, proc = int(ad["ClusterId"]), int(ad["ProcId"])
    spool = Path(str(htcondor2.param.get("SPOOL", "")))
    saved = spool / f"{cluster % _SPOOLED}/{proc % _SPOOLED}/cluster{cluster}.proc{proc}.subproc0"
    try:
        return any((saved / TrialFolder(saved).checkpoint.name).iterdir())
    except FileNotFoundError:
        return False
    except OSError:
        return True
