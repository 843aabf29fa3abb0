"""Jobs whose common files (a region's shared files) never arrive. See docs/htcondor-findings.md."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from trialfleet.classads import JobStatus
from trialfleet.workflows.facts.jobs.executions import read_events
from trialfleet.workflows.facts.jobs.job_facts import find_job_folder
from trialfleet.workflows.facts.run_folder.folder import RunFolder

REPAIR = "HTCondor doesn't start it although no files are on their way; it gets its own copy"
OWN_COPY = "TrialfleetOwnCopy"
_GRACE = 10.0  # seconds until a transfer has begun, or a job runs whose files have arrived
_STARTED = "TransferStarted"

Ad = dict[str, Any]


class Transfer(NamedTuple):
    """The last event about common files in a job's log."""

    is_over: bool
    time: float


def overdue_jobs(folder: RunFolder, ads: Iterable[Ad], now: float) -> list[Ad]:
    """Return the ClassAds of jobs whose common files will not arrive by themselves.

    The result also contains jobs that an interrupted repair left on hold. `ads` are the ClassAds of
    the run's jobs, with the attributes of `job_queue.PROJECTION`.
    """
    waiting, cut_off = defaultdict(list), []
    for ad in ads:
        if REPAIR in ad.get("HoldReason", ""):
            cut_off.append(ad)
        elif ad["JobStatus"] == JobStatus.BLOCKED and "TrialfleetNode" in ad:
            last = _last_transfer(find_job_folder(folder, ad).log, ad["ClusterId"])
            waiting[ad["TrialfleetRegion"]].append((ad, last))
    return cut_off + [ad for jobs in waiting.values() for ad in without_transfer(jobs, now)]


def without_transfer(waiting: list[tuple[Ad, Transfer | None]], now: float) -> list[Ad]:
    """Return those of a region's `waiting` jobs whose common files will not arrive by themselves.

    The returned jobs have waited for over 10 s. Either the transfer of the job's files has ended
    although the job still waits, or no waiting job of the region has a transfer in progress.
    `waiting` has each job with the last event about its common files.
    """
    is_sending = any(  # transfers that began before the job's wait were interrupted
        last is not None and not last.is_over and last.time >= ad["EnteredCurrentStatus"]
        for ad, last in waiting
    )
    return [
        ad
        for ad, last in waiting
        if abs(now - ad["EnteredCurrentStatus"]) > _GRACE
        and ((last is not None and last.is_over) or not is_sending)
    ]


def _last_transfer(log: Path, job: int) -> Transfer | None:
    found = [
        Transfer(event.get("Type") != _STARTED, event.time)
        for event in read_events(log)
        if event.kind == "COMMON_FILES" and event.cluster == job
    ]
    return found[-1] if found else None
