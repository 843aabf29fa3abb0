"""The pool's view of a fleet: what its nodes say of themselves, and what the job queue waits for.

The readers of ads are pure; `read_pool` asks the collector and the schedd.
"""

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
from trialfleet.infra.pool.machines import Machine, Room, moment, number, room

# A trial's job; the graph's own jobs carry the run but no node of it, or run on the access point.
TRIALS = (
    "TrialfleetRun isnt undefined && TrialfleetNode isnt undefined "
    f"&& JobUniverse == {Universe.VANILLA}"
)
NAMES = ["GlobalJobId", "TrialfleetRun", "TrialfleetRegion", "TrialfleetNode"]
JOB_ATTRIBUTES = [
    *("JobStatus", "ClusterId", "RequestCpus", "RequestGPUs", "RequestMemory", "Requirements"),
    *("EnteredCurrentStatus", "TrialfleetFolder", "TrialfleetGangMin", *NAMES),
]
AS_TEXT = {"Requirements"}  # what a job asks of a node, whichever that will be
SINCE = "EnteredCurrentStatus"
ACTIVE = IN_SLOT | {JobStatus.BLOCKED}
Ad = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Group:
    """Trials that ask for the same, or jobs of one gang.

    Attributes:
        need: what each asks for.
        requirements: its other demands on a node, as a ClassAd expression.
        jobs: how many they are.
        since: when the first of them began to wait, or to run; None if HTCondor doesn't say.
        least: the smallest number of them that is of use at once: a gang begins with its min.
    """

    need: Room
    jobs: int
    requirements: str = ""
    since: datetime | None = None
    least: int = 1


@dataclass(frozen=True, kw_only=True)
class Demand:
    """The slots that the trials in the job queue ask for.

    Attributes:
        idle: those that wait for a slot, the largest first.
        active: those that run.
    """

    idle: tuple[Group, ...] = ()
    active: tuple[Group, ...] = ()

    @property
    def waiting(self) -> int:
        """The number of trials that wait."""
        return sum(group.jobs for group in self.idle)

    @property
    def running(self) -> int:
        """The number of trials that run."""
        return sum(group.jobs for group in self.active)


@dataclass(frozen=True, kw_only=True)
class PoolView:
    """The pool at one moment."""

    nodes: tuple[Machine, ...]
    demand: Demand


def read_pool(fleet: str | None = None, run: str = "", folder: str = "") -> PoolView:
    """Return the nodes of a fleet, or of every fleet; and what trials ask for, of a run or of all.

    A run is known by its folder, or else by its id.

    Raises:
        PoolError: several runs have that id.
    """
    jobs = schedd.query(TRIALS, JOB_ATTRIBUTES, AS_TEXT)
    demand = read_demand(of_run(jobs, run, folder))
    return PoolView(nodes=_machines(fleet, jobs), demand=demand)


def fleet_machines(fleet: str | None = None, *, named: bool = False) -> tuple[Machine, ...]:
    """Return the machines of a fleet, or of every fleet, that have joined the pool.

    Only where their trials are to be `named` is the schedd asked.
    """
    in_slots = f"{TRIALS} && JobStatus != {JobStatus.IDLE}"
    return _machines(fleet, schedd.query(in_slots, NAMES) if named else ())


def _machines(fleet: str | None, jobs: Iterable[Ad]) -> tuple[Machine, ...]:
    own = f" && TrialfleetFleet =?= {quoted(fleet)}" if fleet is not None else ""
    return read_machines(f"TrialfleetInstance isnt undefined{own}", jobs)


def of_run(jobs: Iterable[Ad], run: str, folder: str = "") -> list[Ad]:
    """Return the jobs of one run: by its folder, or else by its id, or of all without either.

    Raises:
        PoolError: several runs have that id, and no folder says which is meant.
    """
    if folder:
        return [job for job in jobs if job.get("TrialfleetFolder") == folder]
    own = [job for job in jobs if not run or job.get("TrialfleetRun") == run]
    folders = sorted({str(job.get("TrialfleetFolder")) for job in own})
    if run and len(folders) > 1:
        raise PoolError(
            f"trials of several runs called {run!r} are in the queue: {', '.join(folders)}"
        )
    return own


def quoted(text: str) -> str:
    """Return `text` as a ClassAd string."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def read_demand(jobs: Iterable[Mapping[str, Any]]) -> Demand:
    """Return what the ads of trials ask for; jobs on hold or ended ask for nothing."""
    jobs = list(jobs)
    return Demand(idle=_groups(jobs, {JobStatus.IDLE}), active=_groups(jobs, ACTIVE))


def _groups(jobs: Sequence[Mapping[str, Any]], statuses: Collection[int]) -> tuple[Group, ...]:
    """Return the jobs in these states, grouped by what they ask for, the largest first.

    Of gangs that ask for the same the oldest comes first: it is the one that gets slots.
    """
    of: dict[tuple[Room, str, int], list[Mapping[str, Any]]] = defaultdict(list)
    for job in jobs:
        if job.get("JobStatus") in statuses:
            need = room(job, "Request{}")
            of[need, str(job.get("Requirements", "")), -_gang(job)].append(job)
    begun = Counter(_gang(job) for job in jobs if job.get("JobStatus") in ACTIVE)
    return tuple(
        Group(
            need=need,
            requirements=requirements,
            jobs=len(alike),
            since=min((moment(at) for job in alike if (at := number(job, SINCE))), default=None),
            least=_least(alike[0], begun),
        )
        for (need, requirements, _), alike in sorted(
            of.items(), reverse=True, key=lambda item: item[0]
        )
    )


def _gang(job: Mapping[str, Any]) -> int:
    """Return which gang a job is of, the jobs of one submission; 0: of none."""
    return int(number(job, "ClusterId") or 0) if number(job, "TrialfleetGangMin") else 0


def _least(job: Mapping[str, Any], begun: Mapping[int, int]) -> int:
    """Return how many more of a gang's jobs it takes for the gang to train; 1 where it does."""
    if not (gang := _gang(job)):
        return 1
    return max(1, int(number(job, "TrialfleetGangMin") or 1) - begun[gang])
