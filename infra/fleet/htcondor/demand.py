"""The resources that waiting and running jobs request, and a fleet's nodes in the pool."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from trialfleet.classads import IN_SLOT, JobStatus, Universe
from trialfleet.errors import PoolError
from trialfleet.infra.pool import schedd
from trialfleet.infra.pool.collector import read_machines
from trialfleet.infra.pool.machines import Machine, Resources, moment, number, parse_room

# TRIALS are trials' jobs. A DAG's other jobs have no TrialfleetNode, or run on the access point.
OF_RUNS = f"TrialfleetRun isnt undefined && JobUniverse == {Universe.VANILLA}"
TRIALS = f"{OF_RUNS} && TrialfleetNode isnt undefined"
NAMES = ["GlobalJobId", "TrialfleetRun", "TrialfleetRegion", "TrialfleetNode"]
# The attributes by which the schedd groups jobs. Jobs of one autocluster have equal requirements.
GROUP_ATTRIBUTES = [
    *("JobStatus", "JobUniverse", "AutoClusterId", "RequestCpus", "RequestGPUs", "RequestMemory"),
    *("TrialfleetRun", "TrialfleetFolder", "TrialfleetGangMin"),
]
FIRST_ATTRIBUTES = [
    *("ClusterId", "ProcId", "EnteredCurrentStatus", "Requirements"),
    *("RequestDisk", "TransferInputSizeMB"),  # the disk's expression refers to the size
]
GANG_ATTRIBUTES = sorted({*GROUP_ATTRIBUTES, *FIRST_ATTRIBUTES})
AS_TEXT = {"Requirements"}  # kept as an unevaluated expression
SINCE = "EnteredCurrentStatus"
ACTIVE = IN_SLOT | {JobStatus.BLOCKED}
WANTING = ACTIVE | {JobStatus.IDLE}
Ad = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Group:
    """Trials with equal requests, or jobs of one gang (a training over several jobs).

    Attributes:
        need: the resources that each job requests, besides `disk_bytes` of a disk.
        requirements: the ClassAd expression that a slot must also satisfy.
        since: when the first job began to wait or to run. None if HTCondor doesn't say.
        least: the number of jobs that must still start before the gang can train. 1 without a gang.
    """

    need: Resources
    jobs: int
    disk_bytes: float = 0
    requirements: str = ""
    since: datetime | None = None
    least: int = 1


@dataclass(frozen=True, kw_only=True)
class Demand:
    """The trials that wait for a slot (`idle`) or run (`active`), the largest request first."""

    idle: tuple[Group, ...] = ()
    active: tuple[Group, ...] = ()

    @property
    def waiting_trials(self) -> int:
        """The number of waiting trials."""
        return sum(group.jobs for group in self.idle)

    @property
    def running_trials(self) -> int:
        """The number of running trials."""
        return sum(group.jobs for group in self.active)


@dataclass(frozen=True, kw_only=True)
class PoolView:
    """A fleet's nodes in the pool, and what trials in the queue request, at one moment."""

    nodes: tuple[Machine, ...]
    demand: Demand


def read_pool(
    fleet: str | None = None, run: str = "", folder: str = "", *, named: bool = True
) -> PoolView:
    """Return a fleet's nodes in the pool, and what a run's trials request.

    `run` and `folder` choose the run as in `select_run`. If `fleet` is None, the nodes of all
    fleets are returned. With `named`, the result has each node's jobs and trials. PoolError if
    several runs have the id `run`.
    """
    demand = read_demand(_jobs(run, folder))
    return PoolView(nodes=fleet_machines(fleet, named=named, whole=named), demand=demand)


def _jobs(run: str, folder: str) -> list[Ad]:
    """Return a ClassAd for each group of equal trials in the queue, and for each job of a gang.

    The schedd can't group jobs by the `FIRST_ATTRIBUTES`. A group gets these attributes from its
    first job, because this job gets a slot first. Until the first node joins, HTCondor does not
    compare the jobs' requirements, so jobs of one group may have different requirements.
    """
    own = f"{OF_RUNS} && TrialfleetRun =?= {quote(run)}" if run else OF_RUNS
    found = select_run(schedd.groups(own, GROUP_ATTRIBUTES), run, folder)
    alike = [ad for ad in found if ad.get("JobStatus") in WANTING and not _is_of_gang(ad)]
    ids = [_first(ad) for ad in alike]
    firsts = {
        f"{job['ClusterId']}.{job['ProcId']}": job
        for job in (schedd.query(_ids_constraint(ids), FIRST_ATTRIBUTES, AS_TEXT) if ids else ())
    }
    gangs: list[Ad] = []
    if any(map(_is_of_gang, found)):
        of_gangs = f"{own} && TrialfleetGangMin isnt undefined"
        gangs = select_run(schedd.query(of_gangs, GANG_ATTRIBUTES, AS_TEXT), run, folder)
    return [*({**firsts.get(id_, {}), **ad} for ad, id_ in zip(alike, ids, strict=True)), *gangs]


def _first(group: Ad) -> str:
    """Return the id of a group's first job.

    The group's ClassAd has the jobs' ids as the text `JobIds`, such as `7.0` or `7.0 ... 9.3`.
    """
    return str(group["JobIds"]).split()[0].rstrip(",")


def _ids_constraint(ids: Iterable[str]) -> str:
    """Return a constraint that selects the jobs `ids`.

    It may also select other jobs, because it tests cluster and process numbers separately.
    """
    parts = [id_.split(".") for id_ in ids]
    clusters, procs = (",".join(sorted({part[i] for part in parts})) for i in (0, 1))
    return f"member(ClusterId, {{{clusters}}}) && member(ProcId, {{{procs}}})"


def fleet_machines(
    fleet: str | None = None, *, named: bool = False, whole: bool = True
) -> tuple[Machine, ...]:
    """Return the machines of a fleet that have joined the pool.

    If `fleet` is None, the machines of all fleets are returned. With `named`, the result has each
    machine's trials. Without `whole`, the result lacks the jobs' ids, because the dynamic slots, in
    which jobs run, are not read.
    """
    own = f" && TrialfleetFleet =?= {quote(fleet)}" if fleet is not None else ""
    uncut = "" if whole else ' && SlotType =!= "Dynamic"'
    in_slots = f"{TRIALS} && JobStatus != {JobStatus.IDLE}"
    jobs = schedd.query(in_slots, NAMES) if named else ()
    return read_machines(f"TrialfleetInstance isnt undefined{own}{uncut}", jobs)


def select_run(jobs: Iterable[Ad], run: str, folder: str = "") -> list[Ad]:
    """Return those of `jobs` that belong to one run, or all if no run is given.

    The run is the one in `folder` or, if `folder` is empty, the one with the id `run`. PoolError if
    several runs have this id.
    """
    if folder:
        return [job for job in jobs if job.get("TrialfleetFolder") == folder]
    own = [job for job in jobs if not run or job.get("TrialfleetRun") == run]
    folders = sorted({str(job.get("TrialfleetFolder")) for job in own})
    if run and len(folders) > 1:
        raise PoolError(
            f"trials of several runs called {run!r} are in the queue: {', '.join(folders)}; "
            "stop all but one with: trialfleet stop FOLDER"
        )
    return own


def quote(text: str) -> str:
    """Return `text` as a quoted string in ClassAd syntax."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def read_demand(jobs: Iterable[Mapping[str, Any]]) -> Demand:
    """Return what `jobs` request. Each ClassAd in `jobs` stands for `JobCount` equal jobs."""
    jobs = list(jobs)
    return Demand(idle=_groups(jobs, {JobStatus.IDLE}), active=_groups(jobs, ACTIVE))


def _groups(jobs: Sequence[Mapping[str, Any]], statuses: Collection[int]) -> tuple[Group, ...]:
    """Return the jobs with one of `statuses` in groups, the largest request first."""
    of: dict[tuple[Resources, float, str, int], list[Mapping[str, Any]]] = defaultdict(list)
    for job in jobs:
        if job.get("JobStatus") in statuses:
            need, disk = parse_room(job, "Request{}"), (number(job, "RequestDisk") or 0) * 1024
            # Among equal gangs, the oldest comes first.
            of[need, disk, str(job.get("Requirements", "")), -_gang(job)].append(job)
    begun = Counter(_gang(job) for job in jobs if job.get("JobStatus") in ACTIVE)
    return tuple(
        Group(
            need=need,
            disk_bytes=disk,
            requirements=requirements,
            jobs=sum(int(number(job, "JobCount") or 1) for job in alike),
            since=min((moment(at) for job in alike if (at := number(job, SINCE))), default=None),
            least=_least(alike[0], begun),
        )
        for (need, disk, requirements, _), alike in sorted(
            of.items(), reverse=True, key=lambda item: item[0]
        )
    )


def _gang(job: Mapping[str, Any]) -> int:
    """Return a number that identifies a job's gang, or 0 if the job has none."""
    return int(number(job, "ClusterId") or 0) if _is_of_gang(job) else 0


def _is_of_gang(job: Mapping[str, Any]) -> bool:
    return bool(number(job, "TrialfleetGangMin"))


def _least(job: Mapping[str, Any], begun: Mapping[int, int]) -> int:
    """Return how many jobs must still start before a job's gang can train, but at least 1."""
    if not (gang := _gang(job)):
        return 1
    return max(1, int(number(job, "TrialfleetGangMin") or 1) - begun[gang])
