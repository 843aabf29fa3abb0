"""Facts about queued jobs: how long each has been in its state, and when it started."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trialfleet.classads import JobStatus, Universe
from trialfleet.workflows.facts.jobs.agent_messages import question_time
from trialfleet.workflows.facts.jobs.executions import Execution, ExecutionEnd
from trialfleet.workflows.facts.jobs.job_log import read_starts
from trialfleet.workflows.facts.run_folder.folder import RunFolder, TrialFolder

LONG = 600.0  # seconds; only execution and the wait for a slot normally take longer

# The attributes of a job's ad that `JobFacts` needs, among others.
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


@dataclass(frozen=True, kw_only=True)
class JobFacts:
    """A queued job of a trial, full training or gate.

    Attributes:
        region: the slug of the job's region.
        since: when the job entered its JobStatus, in Unix seconds.
        machine: the machine on which the job runs or last ran; empty if it never ran.
        starts: the job's starts in this attempt; None if its log was not read.
        is_rank: whether the job belongs to a gang.
        asked: since when the agent waits for an answer, in Unix seconds; None if it doesn't.
    """

    region: str
    node: str
    job: str
    status: int
    since: float
    log: str = ""
    machine: str = ""
    starts: tuple[Execution, ...] | None = None
    is_rank: bool = False
    input_mb: float = 0.0
    disk_mb: float = 0.0
    asked: float | None = None

    @property
    def cuts(self) -> list[Execution]:
        """The interrupted executions, including starts that were interrupted before the job ran."""
        return [start for start in self.starts or () if start.end is ExecutionEnd.EVICTED]

    @property
    def executing(self) -> Execution | None:
        """The present execution; None if the job doesn't execute now."""
        return next((start for start in self.starts or () if not start.is_over), None)


def read_jobs(folder: RunFolder, ads: Iterable[Mapping[str, Any]]) -> list[JobFacts]:
    """Return the jobs of a run's trials, full trainings and gates.

    `ads` are ClassAds with the attributes in `ATTRIBUTES`, and with ClusterId,
    EnteredCurrentStatus, JobStatus, JobUniverse and TrialfleetRegion. To save time, a job's event
    log is read only if the job may be in trouble.
    """
    own = (ad for ad in ads if ad["JobUniverse"] == Universe.VANILLA and "TrialfleetNode" in ad)
    return [_job(folder, ad) for ad in own]


def _job(folder: RunFolder, ad: Mapping[str, Any]) -> JobFacts:
    region, node = folder.region(str(ad["TrialfleetRegion"])), str(ad["TrialfleetNode"])
    place = region.node_folder(node)
    is_telling = may_fail(ad) or ad.get("NumShadowStarts", 0) > 1
    starts = None
    if is_telling and place.log.exists():
        starts = tuple(start for start in read_starts(place) if start.proc == ad["ProcId"])
    host = str(ad.get("RemoteHost") or ad.get("LastRemoteHost") or "")
    return JobFacts(
        region=region.root.name,
        node=node,
        job=f"{ad['ClusterId']}.{ad['ProcId']}",
        status=int(ad["JobStatus"]),
        since=float(ad["EnteredCurrentStatus"]),
        log=str(place.log),
        machine=host.rpartition("@")[2],
        starts=starts,
        is_rank="TrialfleetGangMax" in ad,
        input_mb=float(ad.get("TransferInputSizeMB") or 0),
        disk_mb=float(ad.get("DiskUsage") or 0) / 1024,
        asked=question_time(place),
    )


def may_fail(ad: Mapping[str, Any]) -> bool:
    """Return whether a job shows signs that its attempt may be hopeless."""
    status, entered = ad["JobStatus"], ad["EnteredCurrentStatus"]
    if status == JobStatus.IDLE or time.time() - entered <= LONG:
        return bool(ad.get("NumShadowStarts", 0) > 1)
    # In its present slot. After a reconnection the ad doesn't show that the job executes.
    executes = status == JobStatus.RUNNING and ad.get("JobCurrentStartExecutingDate", 0) >= entered
    return not executes


def find_job_folder(folder: RunFolder, ad: Mapping[str, Any]) -> TrialFolder:
    """Return the folder of the trial, full training or gate of the job with the ClassAd `ad`."""
    return folder.region(str(ad["TrialfleetRegion"])).node_folder(str(ad["TrialfleetNode"]))
