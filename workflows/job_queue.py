"""A run in HTCondor's job queue: its DAGMan jobs and its trials' jobs, found by their attributes.

Every job of a run carries `TrialfleetFolder`, the run's folder, so a run that was submitted by hand
with condor_submit_dag is found like one that `trialfleet submit` started.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trialfleet.errors import PoolError
from trialfleet.infra.pool import connect, use
from trialfleet.workflows.folder import RunFolder
from trialfleet.workflows.render import classad_string

_IDLE, _RUNNING, _HELD = 1, 2, 5
_SCHEDULER_UNIVERSE = 7
_TRANSFERRING, _SUSPENDED = 6, 7


@dataclass(frozen=True, kw_only=True)
class HeldJob:
    """A job that waits for a person."""

    job: str
    node: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class QueuedRun:
    """What the job queue says of a run.

    Attributes:
        root: the job id of the DAGMan job that runs study.dag, or a region's DAG by itself.
        root_held: its hold reason, if it is on hold.
        running: nodes of trials (and full trainings) whose jobs run.
        idle: nodes whose jobs wait for a slot.
        held: jobs on hold, those of DAGMan and the optimiser among them.
        regions: slugs of the regions whose DAGMan job is in the queue.
    """

    root: str | None
    root_held: str | None
    running: frozenset[str]
    idle: frozenset[str]
    held: tuple[HeldJob, ...]
    regions: frozenset[str]


def look_up(folder: RunFolder) -> QueuedRun:
    """Return what the job queue holds of a run.

    Raises:
        PoolError: no HTCondor is reachable.
    """
    ads = query(
        _of_run(folder),
        [
            "ClusterId",
            "ProcId",
            "JobStatus",
            "JobUniverse",
            "DAGManJobId",
            "HoldReason",
            "TrialfleetNode",
            "TrialfleetRegion",
        ],
    )
    dags = [ad for ad in ads if _is_dagman(ad)]
    roots = [ad for ad in dags if "DAGManJobId" not in ad]
    trials = [ad for ad in ads if "TrialfleetNode" in ad]
    root = roots[0] if roots else None
    return QueuedRun(
        root=_job_id(root) if root else None,
        root_held=_hold_reason(root) if root and root["JobStatus"] == _HELD else None,
        running=_nodes(trials, {_RUNNING, _TRANSFERRING, _SUSPENDED}),
        idle=_nodes(trials, {_IDLE}),
        held=tuple(
            HeldJob(job=_job_id(ad), node=_node(ad), reason=_hold_reason(ad))
            for ad in sorted(ads, key=lambda ad: ad["ClusterId"])
            if ad["JobStatus"] == _HELD
        ),
        regions=frozenset(ad["TrialfleetRegion"] for ad in dags if "TrialfleetRegion" in ad),
    )


def _of_run(folder: RunFolder) -> str:
    return f"TrialfleetFolder =?= {classad_string(folder.root)}"


def query(constraint: str, projection: list[str]) -> list[dict[str, Any]]:
    """Return the ads of the queue's jobs that satisfy a ClassAd constraint.

    Raises:
        PoolError: no HTCondor is reachable.
    """
    schedd = _schedd()
    import htcondor2

    try:
        return [dict(ad) for ad in schedd.query(constraint=constraint, projection=projection)]
    except htcondor2.HTCondorException as error:
        raise PoolError(f"HTCondor's schedd does not answer: {error}") from error


def submit(folder: RunFolder) -> str:
    """Submit a run's graph, going on from its rescue file if it has one. Returns the job's id.

    What a DAGMan that is gone left behind is cleared away first. It would send the new one into
    recovery, to wait for jobs that no queue knows; the study knows what is finished.

    Raises:
        PoolError: no HTCondor is reachable, or it refused the job.
    """
    schedd = _schedd()
    import htcondor2

    for files in folder.all_dags():
        files.lock.unlink(missing_ok=True)
        files.nodes_log.unlink(missing_ok=True)
    options = {"UpdateSubmit": True, "AutoRescue": 1, "BatchName": folder.root.name}
    try:
        with _quiet():
            description = htcondor2.Submit.from_dag(str(folder.dag), options)
        return f"{schedd.submit(description).cluster()}.0"
    except htcondor2.HTCondorException as error:
        raise PoolError(f"HTCondor refused {str(folder.dag)!r}: {error}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what a library prints off standard output, which belongs to our caller."""
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        with Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def remove(folder: RunFolder) -> None:
    """Ask for the removal of a run's jobs; DAGMan writes a rescue file when it is removed."""
    schedd = _schedd()
    import htcondor2

    own = f"{_of_run(folder)} && DAGManJobId =?= undefined"
    try:
        schedd.act(htcondor2.JobAction.Remove, own, reason="trialfleet stop")
    except htcondor2.HTCondorException as error:
        raise PoolError(f"HTCondor refused to remove the run's jobs: {error}") from error


def _schedd() -> Any:
    use(connect())
    import htcondor2

    try:
        return htcondor2.Schedd()
    except htcondor2.HTCondorException as error:
        raise PoolError(
            f"HTCondor's schedd can't be found: {error}; start a pool with: trialfleet pool up"
        ) from error


def _is_dagman(ad: dict[str, Any]) -> bool:
    return ad["JobUniverse"] == _SCHEDULER_UNIVERSE and (
        "DAGManJobId" not in ad or "TrialfleetRegion" in ad
    )


def _node(ad: dict[str, Any]) -> str:
    """The node whose job this is: a trial's, a region's DAGMan, or one of the run's own."""
    own = "study.dag" if _is_dagman(ad) else "optimizer"
    return str(ad.get("TrialfleetNode") or ad.get("TrialfleetRegion") or own)


def _job_id(ad: dict[str, Any]) -> str:
    return f"{ad['ClusterId']}.{ad['ProcId']}"


def _hold_reason(ad: dict[str, Any]) -> str:
    return str(ad.get("HoldReason", "no reason given"))


def _nodes(ads: list[dict[str, Any]], statuses: set[int]) -> frozenset[str]:
    return frozenset(ad["TrialfleetNode"] for ad in ads if ad["JobStatus"] in statuses)
