"""A run's jobs in HTCondor's queue, and the submission of its DAGs.

Functions that contact the schedd raise PoolError if it is unreachable or refuses the request.
"""

from __future__ import annotations

import math
import os
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from trialfleet.classads import HELD_BY_A_PERSON, IN_SLOT, JobStatus, Universe
from trialfleet.errors import PoolError, TrialfleetError
from trialfleet.infra.pool import schedd
from trialfleet.infra.pool import status as pool_status
from trialfleet.render import classad_string
from trialfleet.workflows.facts.jobs.job_facts import ATTRIBUTES
from trialfleet.workflows.facts.jobs.slot_price import SLOT_OF_JOB
from trialfleet.workflows.facts.run_folder.folder import DagFiles, RunFolder

PROJECTION = [
    *ATTRIBUTES,
    "AutoClusterId",
    "ClusterId",
    "DAGManJobId",
    "DAGNodeName",
    "DAG_NodesPostrun",
    "DAG_NodesPrerun",
    "EnteredCurrentStatus",
    "ExitCode",
    "HoldReason",
    "HoldReasonCode",
    "JobCoolDownExpiration",
    "JobStatus",
    "JobUniverse",
    "NumJobCoolDowns",
    "TrialfleetFolder",
    "TrialfleetRegion",
]
Ad = dict[str, Any]

# Selects the DAGMans of runs' whole graphs, and of regions that were submitted alone.
_ROOTS = (
    f"JobUniverse == {Universe.SCHEDULER} && DAGManJobId =?= undefined "
    "&& TrialfleetFolder =!= undefined"
)
WAITS = f"(JobStatus == {JobStatus.IDLE} || JobStatus == {JobStatus.BLOCKED})"


def is_dagman(ad: Ad) -> bool:
    """Return whether a job is the DAGMan of a run or of a region."""
    return ad["JobUniverse"] == Universe.SCHEDULER and (
        "DAGManJobId" not in ad or "TrialfleetRegion" in ad
    )


@dataclass(frozen=True, kw_only=True)
class HeldJob:
    """A job on hold that waits for a person."""

    job: str
    node: str
    reason: str

    def is_of(self, slug: str) -> bool:
        """Return whether this is a job of the region `slug` or the region's DAGMan."""
        return self.node.partition(".")[0] == slug

    def __str__(self) -> str:
        return f"job {self.job} of {self.node} is on hold: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class QueuedRun:
    """The jobs of a run that are in the queue.

    Attributes:
        root: the job id of the run's DAGMan. If a person submitted only a region's DAG, this is the
            job id of the region's DAGMan. None if no DAGMan is in the queue.
        root_held: why the DAGMan `root` is on hold; None if it isn't.
        running: DAG nodes with a job in a slot. DAG nodes with a held job that HTCondor will remove
            count, too, because no person has to act.
        idle: DAG nodes that have a waiting job and are not in `running`.
        held: jobs on hold that wait for a person.
        regions: slugs of the regions whose DAGMan job is in the queue.
        ads: the ClassAds of all jobs of the run.
    """

    root: str | None
    root_held: str | None
    running: frozenset[str]
    idle: frozenset[str]
    held: tuple[HeldJob, ...]
    regions: frozenset[str]
    ads: tuple[dict[str, Any], ...]

    @cached_property
    def running_ads(self) -> list[dict[str, Any]]:
        """The ClassAds of the running jobs of DAG nodes."""
        trials = (ad for ad in self.ads if ad.get("TrialfleetNode") in self.running)
        return [ad for ad in trials if ad["JobStatus"] == JobStatus.RUNNING]

    @cached_property
    def running_jobs(self) -> dict[str, dict[str, Any]]:
        """The ClassAd of each DAG node's running job; for a gang, of its longest-running job."""

        def began(ad: dict[str, Any]) -> float:
            return float(ad.get("JobCurrentStartExecutingDate", math.inf))

        return {
            ad["TrialfleetNode"]: ad for ad in sorted(self.running_ads, key=began, reverse=True)
        }


def look_up(folder: RunFolder) -> QueuedRun:
    """Return a run's jobs that are in the queue."""
    ads = schedd.query(run_constraint(folder), [*PROJECTION, *SLOT_OF_JOB.values(), "ProcId"])
    dags = [ad for ad in ads if is_dagman(ad)]
    roots = [ad for ad in dags if "DAGManJobId" not in ad]
    trials = [ad for ad in ads if "TrialfleetNode" in ad]
    root = roots[0] if roots else None
    running = _nodes(trials, IN_SLOT)
    running |= _nodes(filter(_is_being_ended, trials), {JobStatus.HELD})
    return QueuedRun(
        root=_job_id(root) if root else None,
        root_held=_hold_reason(root) if root and root["JobStatus"] == JobStatus.HELD else None,
        running=running,
        idle=_nodes(trials, {JobStatus.IDLE, JobStatus.BLOCKED}) - running,  # a gang may be both
        held=tuple(
            HeldJob(job=_job_id(ad), node=_node(ad), reason=_hold_reason(ad))
            for ad in sorted(ads, key=lambda ad: ad["ClusterId"])
            if ad["JobStatus"] == JobStatus.HELD and not _is_being_ended(ad)
        ),
        regions=frozenset(ad["TrialfleetRegion"] for ad in dags if "TrialfleetRegion" in ad),
        ads=tuple(ads),
    )


def run_constraint(folder: RunFolder, region: str | None = None) -> str:
    """Return the ClassAd constraint that selects a run's jobs, or only those of a region."""
    run = f"TrialfleetFolder =?= {classad_string(folder.root)}"
    return run if region is None else f"{run} && TrialfleetRegion =?= {classad_string(region)}"


def one_idle(folder: RunFolder, node: str) -> Any:
    """Return all attributes of a waiting job of a DAG node; None if the node has none."""
    waits = f"{run_constraint(folder)} && {WAITS} && TrialfleetMode =!= undefined"
    return one_job(f"{waits} && TrialfleetNode == {classad_string(node)}")


def one_job(constraint: str) -> Any:
    """Return all attributes of a job that satisfies `constraint`; None if no job does."""
    with schedd.connect_schedd() as reached:
        return next(iter(reached.query(constraint=constraint, limit=1)), None)


def running_by_run() -> Counter[str]:
    """Return the number of each run's running jobs, by the run's folder.

    Jobs that belong to no run are counted under "".
    """
    constraint = f"JobStatus == {JobStatus.RUNNING} && JobUniverse == {Universe.VANILLA}"
    jobs = schedd.query(constraint, ["TrialfleetFolder"])
    return Counter(str(ad.get("TrialfleetFolder", "")) for ad in jobs)


def runs_in_progress(environment: Mapping[str, str]) -> list[Path]:
    """Return the folders of the queued runs of the pool that the variables `environment` select.

    The result is empty if the queue is unreachable.
    """
    tool = ["condor_q", "-allusers", "-json", "-attributes", "TrialfleetFolder", "-constraint"]
    ads = pool_status.read_ads([*tool, _ROOTS], environment)
    return sorted({Path(ad["TrialfleetFolder"]) for ad in ads or ()})


def find_fleet_runs(fleet: str) -> list[Path]:
    """Return the folders of the queued runs that use the fleet `fleet`.

    These are the runs whose study names the fleet, and the runs with trials on the fleet's nodes.
    """
    from trialfleet.infra.fleet.htcondor.demand import fleet_machines

    ads = schedd.query(_ROOTS, ["TrialfleetFolder", "TrialfleetRun"])
    there: set[str] = set()
    with suppress(PoolError):
        machines = fleet_machines(fleet, named=True)
        there = {trial.run for machine in machines for trial in machine.trials}
    found = {Path(ad["TrialfleetFolder"]): ad.get("TrialfleetRun") in there for ad in ads}
    return [place for place, is_there in sorted(found.items()) if is_there or _names(place, fleet)]


def _names(place: Path, fleet: str) -> bool:
    from trialfleet.workflows.study.frozen import load_frozen

    with suppress(TrialfleetError, OSError):
        own = load_frozen(RunFolder(place).study).study.fleet
        return own is not None and own.full_name == fleet
    return False


def submit(files: DagFiles) -> str:
    """Submit a DAG and return the job id of its DAGMan.

    DAG nodes that the rescue DAG lists as finished don't run again.
    """
    options = {"UpdateSubmit": True, "AutoRescue": 1, "BatchName": files.dag.parent.name}
    with schedd.connect_schedd(f"HTCondor refused {str(files.dag)!r}") as reached:
        import htcondor2

        with _discard_output():
            description = htcondor2.Submit.from_dag(str(files.dag), options)
        description["initialdir"] = str(files.dag.parent)  # as if submitted in this folder by hand
        return f"{reached.submit(description).cluster()}.0"


def submit_job(description: str) -> str:
    """Submit a job and return its id; `description` is the text of a submit file."""
    with schedd.connect_schedd("HTCondor refused a job") as reached:
        import htcondor2

        return f"{reached.submit(htcondor2.Submit(description)).cluster()}.0"


@contextmanager
def _discard_output() -> Iterator[None]:
    """Discard what HTCondor's Python bindings print to stdout during the `with` block."""
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        with Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _node(ad: dict[str, Any]) -> str:
    if is_dagman(ad):
        return str(ad.get("TrialfleetRegion", "study.dag"))
    return str(ad.get("TrialfleetNode") or ad.get("DAGNodeName") or _job_id(ad))


def _is_being_ended(ad: dict[str, Any]) -> bool:
    """Return whether HTCondor will remove a held job.

    HTCondor removes a held job of a trial unless a person put the job on hold.
    """
    is_trial = "TrialfleetNode" in ad and ad["JobUniverse"] == Universe.VANILLA
    return is_trial and ad.get("HoldReasonCode") != HELD_BY_A_PERSON


def _job_id(ad: dict[str, Any]) -> str:
    return f"{ad['ClusterId']}.{ad['ProcId']}"


def _hold_reason(ad: dict[str, Any]) -> str:
    return str(ad.get("HoldReason") or "no reason given")


def _nodes(ads: Iterable[dict[str, Any]], statuses: Collection[int]) -> frozenset[str]:
    return frozenset(ad["TrialfleetNode"] for ad in ads if ad["JobStatus"] in statuses)
