"""A run in HTCondor's job queue: its DAGMan jobs and its trials' jobs, found by their attributes.

Every job of a run carries `TrialfleetFolder`, the run's folder, so a run that was submitted by hand
with condor_submit_dag is found like one that `trialfleet submit` started.
"""

from __future__ import annotations

import json
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
        held: jobs on hold.
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
            HeldJob(job=_job_id(ad), node=ad["TrialfleetNode"], reason=_hold_reason(ad))
            for ad in sorted(trials, key=lambda ad: ad["ClusterId"])
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


def submit(folder: RunFolder, dag: Path) -> str:
    """Submit a DAG file, going on from its rescue file if it has one. Returns the job's id.

    Raises:
        PoolError: no HTCondor is reachable, or it refused the job.
    """
    schedd = _schedd()
    import htcondor2

    options = {"UpdateSubmit": True, "AutoRescue": 1, "BatchName": f"{folder.root.name}"}
    try:
        description = htcondor2.Submit.from_dag(str(dag), options)
        return f"{schedd.submit(description).cluster()}.0"
    except htcondor2.HTCondorException as error:
        raise PoolError(f"HTCondor refused {str(dag)!r}: {error}") from error


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


def _job_id(ad: dict[str, Any]) -> str:
    return f"{ad['ClusterId']}.{ad['ProcId']}"


def _hold_reason(ad: dict[str, Any]) -> str:
    return str(ad.get("HoldReason", "no reason given"))


def _nodes(ads: list[dict[str, Any]], statuses: set[int]) -> frozenset[str]:
    return frozenset(ad["TrialfleetNode"] for ad in ads if ad["JobStatus"] in statuses)


# -- what DAGMan leaves in files ----------------------------------------------------------------


def dag_exit_code(dag: Path) -> int | None:
    """Return the exit code of the last DAGMan that ran `dag`; None if none has ended yet."""
    try:
        metrics = json.loads(dag.with_name(dag.name + ".metrics").read_text())
        return int(metrics["exitcode"])
    except (OSError, ValueError, KeyError):
        return None


def rescue_file(dag: Path) -> Path | None:
    """Return the newest rescue file of `dag`, which a resume goes on from, if there is one."""
    rescues = sorted(dag.parent.glob(f"{dag.name}.rescue[0-9][0-9][0-9]"))
    return rescues[-1] if rescues else None
