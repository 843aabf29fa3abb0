"""The pool's view of a fleet: what its nodes say of themselves, and what the job queue waits for.

A node is one startd with a partitionable slot that says which instance it runs on. The readers of
ads are pure; `look` asks the collector and the schedd.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from typing import Any

from trialfleet.infra.fleet.pool.queries import TRIALS, job_ads, node_ads, of_run
from trialfleet.infra.pool.status import BLOCKED

OURS = "trialfleet: "  # what the reason of a drain begins with that the manager asked for
SINCE = "EnteredCurrentStatus"
IDLE = 1  # JobStatus
# Running, sending its output, suspended; blocked: it has a slot, whose machine gets shared files.
ACTIVE = {2, 6, 7, BLOCKED}


@dataclass(frozen=True, kw_only=True, order=True)
class Room:
    """What a job asks for, or a node has: GPUs, cpus, memory in MiB."""

    gpus: int = 0
    cpus: int = 0
    memory_mb: int = 0

    def __str__(self) -> str:
        """The room in words, such as `1 GPU, 4 cpus, 15000 MB`."""
        gpus = f"{self.gpus} GPU{'s' if self.gpus != 1 else ''}, " if self.gpus else ""
        return f"{gpus}{self.cpus} cpu{'s' if self.cpus != 1 else ''}, {self.memory_mb} MB"

    def holds(self, need: Room) -> int:
        """Return how many jobs of `need` fit side by side; one that asks nothing fits often."""
        pairs = zip(astuple(self), astuple(need), strict=True)
        return min(has // asked if asked else 1_000_000 for has, asked in pairs)

    def without(self, need: Room, times: int = 1) -> Room:
        """Return what is left beside `times` jobs of `need`."""
        return self._with(need, lambda has, asked: has - times * asked)

    def within(self, other: Room) -> Room:
        """Return the lesser of both in each respect."""
        return self._with(other, min)

    def _with(self, other: Room, of: Callable[[int, int], int]) -> Room:
        gpus, cpus, memory = map(of, astuple(self), astuple(other))
        return Room(gpus=gpus, cpus=cpus, memory_mb=memory)


@dataclass(frozen=True, kw_only=True)
class RunningTrial:
    """A trial (or full training) on a node: its run, region and node of the region's graph."""

    run: str
    region: str
    node: str


@dataclass(frozen=True, kw_only=True)
class PoolNode:
    """A node that has joined, by its own account.

    Attributes:
        slot: the name of its partitionable slot, such as `slot1@host`.
        total: all that it has.
        free: what no job has taken.
        healthy: what its GPU probe found; None where none has been made.
        reason: why not, in the probe's words.
        bandwidth: copying on the GPU in GB/s; None if not measured.
        launch_microseconds: of an empty kernel; None if not measured.
        driver_option: what became of the NVIDIA module's option.
        note: why it drains or refuses jobs, in its own words; empty otherwise.
        draining: it takes no new jobs, and gives up those that it has.
        drain_reason: why, in the words of whoever asked for it.
        jobs: ids of the jobs that it runs.
        trials: those of them that are trials.
        idle_since: when its last job ended, by the collector's clock; None while it has one.
        shares: so many trials share each GPU: it counts as so many GPUs.
    """

    instance: str
    slot: str
    machine: str
    total: Room
    free: Room
    healthy: bool | None
    reason: str
    gpu: str
    bandwidth: float | None
    launch_microseconds: float | None
    driver_option: str
    note: str
    draining: bool
    drain_reason: str
    jobs: tuple[str, ...]
    trials: tuple[RunningTrial, ...]
    idle_since: datetime | None
    shares: int = 1

    @property
    def why_draining(self) -> str:
        """Why it drains, in the words of whoever asked for it, or else its own; may be empty."""
        return (self.drain_reason or self.note).removeprefix(OURS)

    @property
    def why_sick(self) -> str:
        """Why it takes no trials, if its GPU failed the probe."""
        return f"its GPU failed the probe: {self.reason or 'no reason given'}"


@dataclass(frozen=True, kw_only=True)
class Group:
    """Trials that ask for the same, or jobs of one gang.

    Attributes:
        need: what each asks for.
        requirements: its other demands on a node, as a ClassAd expression.
        jobs: how many they are.
        since: when the first of them began to wait, or to run; None if HTCondor doesn't say.
        least: fewer than so many at once are of no use: a gang that waits begins with its min.
    """

    need: Room
    jobs: int
    requirements: str = ""
    since: datetime | None = None
    least: int = 1


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What the trials in the job queue ask for.

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

    nodes: tuple[PoolNode, ...]
    demand: Demand


def look(fleet: str | None = None, run: str = "", folder: str = "") -> PoolView:
    """Return the nodes of a fleet, or of every fleet; and what trials ask for, of a run or of all.

    A run is known by its folder, or else by its id.

    Raises:
        PoolError: several runs have that id.
    """
    jobs = job_ads(TRIALS)
    demand = read_demand(of_run(jobs, run, folder))
    return PoolView(nodes=read_nodes(node_ads(fleet), jobs), demand=demand)


def nodes(fleet: str | None = None) -> list[PoolNode]:
    """Return the nodes that have joined."""
    return list(look(fleet).nodes)


# --- Reading ads ----------------------------------------------------------------------------------


def read_nodes(
    slots: Iterable[Mapping[str, Any]], jobs: Iterable[Mapping[str, Any]] = ()
) -> tuple[PoolNode, ...]:
    """Return the nodes that the ads of slots describe, by instance.

    Running jobs get their names by the ads of trials.
    """
    trials = {job["GlobalJobId"]: read_trial(job) for job in jobs if "GlobalJobId" in job}
    of: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for ad in slots:
        if isinstance(ad.get("TrialfleetInstance"), str):
            of[ad["TrialfleetInstance"]].append(ad)
    found = (_read_node(ads, trials) for _, ads in sorted(of.items()))
    return tuple(node for node in found if node is not None)


def _read_node(ads: list[Mapping[str, Any]], trials: Mapping[str, RunningTrial]) -> PoolNode | None:
    """Return the node of one instance; of two ads of the slot, the later one counts."""
    whole = [ad for ad in ads if ad.get("SlotType") == "Partitionable"]
    if not whole:
        return None
    ad = max(whole, key=lambda each: _number(each, "LastHeardFrom") or 0)
    jobs = [each for each in ads if _runs_a_job(each)]
    running = [trials[each["GlobalJobId"]] for each in jobs if each.get("GlobalJobId") in trials]
    healthy = ad.get("TrialfleetGpuHealthy")
    return PoolNode(
        instance=ad["TrialfleetInstance"],
        slot=_text(ad, "Name"),
        machine=_text(ad, "Machine"),
        total=_room(ad, "TotalSlotGPUs", "TotalSlotCpus", "TotalSlotMemory"),
        free=_room(ad, "GPUs", "Cpus", "Memory"),
        healthy=healthy if isinstance(healthy, bool) else None,
        reason=_text(ad, "TrialfleetGpuReason"),
        gpu=_text(ad, "TrialfleetGpuName"),
        bandwidth=_number(ad, "TrialfleetBandwidth"),
        launch_microseconds=_number(ad, "TrialfleetLaunchMicroseconds"),
        driver_option=_text(ad, "TrialfleetDriverOption"),
        note=_text(ad, "TrialfleetNote"),
        draining=ad.get("Draining") is True,
        drain_reason=_text(ad, "DrainReason"),
        jobs=tuple(sorted(str(each["JobId"]) for each in jobs)),
        trials=tuple(sorted(running, key=lambda trial: (trial.run, trial.node))),
        idle_since=_idle_since(ad, busy=bool(jobs)),
        shares=int(_number(ad, "TrialfleetTrialsPerGpu") or 1),
    )


def _runs_a_job(slot: Mapping[str, Any]) -> bool:
    """Whether a slot was cut for a job that runs in it.

    Those in which HTCondor keeps the files that jobs share name a job too: the first of these.
    """
    return slot.get("SlotType") == "Dynamic" and "JobId" in slot and not slot.get("IsDataSlot")


def _idle_since(ad: Mapping[str, Any], *, busy: bool) -> datetime | None:
    """Return when the last slot that was cut from the node's slot was given back.

    A node that keeps files which jobs share isn't idle: more of these jobs may come. HTCondor gives
    that slot back 5 minutes (KEEP_DATA_CLAIM_IDLE) after the last of them, or when the node drains.

    The startd tells that by its own clock; its distance from the startd's now, taken off the
    collector's time of the same ad, is right also where the clocks differ.
    """
    if busy or (_number(ad, "NumDynamicSlots") or 0) > 0:
        return None
    now, heard = _number(ad, "MyCurrentTime") or 0, _number(ad, "LastHeardFrom") or 0
    since = _number(ad, "NumDynamicSlotsTime") or now
    return _moment(heard - max(0.0, now - since))


def read_trial(job: Mapping[str, Any]) -> RunningTrial:
    """Return the trial whose job this is."""
    return RunningTrial(
        run=_text(job, "TrialfleetRun"),
        region=_text(job, "TrialfleetRegion"),
        node=_text(job, "TrialfleetNode"),
    )


def read_demand(jobs: Iterable[Mapping[str, Any]]) -> Demand:
    """Return what the ads of trials ask for; jobs on hold or ended ask for nothing."""
    jobs = list(jobs)
    return Demand(idle=_groups(jobs, {IDLE}), active=_groups(jobs, ACTIVE))


def _groups(jobs: Sequence[Mapping[str, Any]], statuses: set[int]) -> tuple[Group, ...]:
    """Return the jobs in one of these states by what they ask for, the largest first.

    Of gangs that ask for the same the oldest comes first: it is the one that gets slots.
    """
    of: dict[tuple[Room, str, int], list[Mapping[str, Any]]] = defaultdict(list)
    for job in jobs:
        if job.get("JobStatus") in statuses:
            need = _room(job, "RequestGPUs", "RequestCpus", "RequestMemory")
            of[need, str(job.get("Requirements", "")), -_gang(job)].append(job)
    begun = Counter(_gang(job) for job in jobs if job.get("JobStatus") in ACTIVE)
    return tuple(
        Group(
            need=need,
            requirements=requirements,
            jobs=len(alike),
            since=min((_moment(at) for job in alike if (at := _number(job, SINCE))), default=None),
            least=_least(alike[0], begun),
        )
        for (need, requirements, _), alike in sorted(
            of.items(), reverse=True, key=lambda item: item[0]
        )
    )


def _gang(job: Mapping[str, Any]) -> int:
    """Return which gang a job is of, the jobs of one submission; 0: of none."""
    return int(_number(job, "ClusterId") or 0) if _number(job, "TrialfleetGangMin") else 0


def _least(job: Mapping[str, Any], begun: Mapping[int, int]) -> int:
    """Return how many more of a gang's jobs it takes for the gang to train; 1 where it does."""
    if not (gang := _gang(job)):
        return 1
    return max(1, int(_number(job, "TrialfleetGangMin") or 1) - begun[gang])


def _room(ad: Mapping[str, Any], gpus: str, cpus: str, memory: str) -> Room:
    has = [int(_number(ad, name) or 0) for name in (gpus, cpus, memory)]
    return Room(gpus=has[0], cpus=has[1], memory_mb=has[2])


def _number(ad: Mapping[str, Any], name: str) -> float | None:
    value = ad.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _text(ad: Mapping[str, Any], name: str) -> str:
    value = ad.get(name)
    return value if isinstance(value, str) else ""


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
