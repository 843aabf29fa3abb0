"""What a pool is doing, read from its collector and its job queue in JSON."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from trialfleet.classads import from_json

PoolState = Literal["up", "down", "failing"]

# HTCondor's names of the daemons' ads, and the programs that send them. The master sends its own
# some seconds later than the others; its process is looked at instead.
DAEMON_ADS = {
    "Collector": "condor_collector",
    "Negotiator": "condor_negotiator",
    "Scheduler": "condor_schedd",
    "StartD": "condor_startd",
}
BLOCKED = 9  # JobStatus of a job that waits for the files it shares with others to be sent
JOB_STATES = {1: "idle", 2: "running", 3: "removed", 4: "completed", 5: "held", 6: "running"}
JOB_STATES |= {7: "suspended", BLOCKED: "idle"}
SLOT_ATTRIBUTES = "MyType,Name,Machine,State,Activity,Cpus,Memory,GPUs,TotalGPUs,SlotType"
JOB_ATTRIBUTES = "JobStatus,JobUniverse,DAGManJobId,TrialfleetFolder,TrialfleetMode,TrialfleetDaily"
SCHEDULER_UNIVERSE, LOCAL_UNIVERSE = 7, 12  # of jobs that need no slot: DAGMans are of the first
OFFERING_NOTHING = {"Owner", "Drained"}  # states of a slot
TOOL_SECONDS = 20  # a tool that takes longer has nobody to talk to


@dataclass(frozen=True)
class Slot:
    """One slot of an execution point.

    Attributes:
        name: HTCondor's name, for instance `slot1_2@host`.
        machine: the machine that it is of.
        state: `Unclaimed`, `Claimed`…
        activity: `Idle`, `Busy`…
        cpus: cores; of a partitionable slot those that no job has taken.
        memory: MiB, likewise.
        gpus: number of GPUs, likewise.
        partitionable: True for the slot that the others are cut from.
        has_gpu: what HAS_GPU is in the slot: its machine has a GPU.
    """

    name: str
    machine: str
    state: str
    activity: str
    cpus: int
    memory: int
    gpus: int
    partitionable: bool
    has_gpu: bool


@dataclass(frozen=True)
class Machine:
    """What a machine's slots have, and what of it jobs have taken.

    Attributes:
        name: its name.
        cpus_in_use, cpus_free: cores.
        memory_in_use, memory_free: MiB.
        gpus_in_use, gpus_free: number of GPUs.
    """

    name: str
    cpus_in_use: int
    cpus_free: int
    memory_in_use: int
    memory_free: int
    gpus_in_use: int
    gpus_free: int


@dataclass(frozen=True, kw_only=True)
class Queue:
    """The jobs of a queue.

    Attributes:
        runs: how many runs go on in it, each a DAGMan with others below it.
        trials: number of trials' jobs by state: idle, running, held…; zeros left out.
        jobs: the same of all jobs that need a slot, the trials' among them.
        clocks: how many jobs of it start studies' days.
    """

    runs: int = 0
    trials: Mapping[str, int] = field(default_factory=dict)
    jobs: Mapping[str, int] = field(default_factory=dict)
    clocks: int = 0


@dataclass(frozen=True, kw_only=True)
class PoolStatus(Queue):
    """A pool at one moment, with the jobs of its queue; runs' DAGMans are no jobs.

    Attributes:
        state: `up`: all daemons answer; `down`: no process of the pool is left; `failing`: some
            live but the pool doesn't answer (it is starting, or its master died).
        folder: the pool's folder.
        condor_config: its configuration file.
        version: HTCondor's version; empty when the pool was never up.
        master: process number of condor_master; 0 when there is none.
        daemons: names of the daemons that answer, condor_master first.
        slots: by name.
        machines: what they have, by name.
    """

    state: PoolState
    folder: Path
    condor_config: Path
    version: str = ""
    master: int = 0
    daemons: tuple[str, ...] = ()
    slots: tuple[Slot, ...] = ()
    machines: tuple[Machine, ...] = ()


def daemons_and_slots(environment: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[Slot, ...]]:
    """Return the names of the daemons that advertise themselves, and the slots.

    Both are empty when the collector doesn't answer.
    """
    ads = ads_of(["condor_status", "-any", "-json", "-attributes", SLOT_ATTRIBUTES], environment)
    kinds = {ad.get("MyType") for ad in ads or ()}
    daemons = tuple(program for kind, program in DAEMON_ADS.items() if kind in kinds)
    slots = [read_slot(ad) for ad in ads or () if ad.get("MyType") == "Machine"]
    slots.sort(key=lambda slot: (len(slot.name), slot.name))  # slot1_2 before slot1_10
    return daemons, tuple(slots)


def read_slot(ad: Mapping[str, Any]) -> Slot:
    """Return the slot that a machine's ad describes."""
    return Slot(
        name=ad["Name"],
        machine=ad.get("Machine") or ad["Name"].rpartition("@")[2],
        state=ad.get("State", "Unknown"),
        activity=ad.get("Activity", "Unknown"),
        cpus=int(ad.get("Cpus", 0)),
        memory=int(ad.get("Memory", 0)),
        gpus=int(ad.get("GPUs", 0)),
        partitionable=ad.get("SlotType") == "Partitionable",
        has_gpu=int(ad.get("TotalGPUs", 0)) > 0,  # HAS_GPU itself is an expression in the ad
    )


def machines_of(slots: Iterable[Slot]) -> tuple[Machine, ...]:
    """Return what each machine has in use and free, by name.

    A partitionable slot has what is left of it; those that are cut from it have what jobs took.
    """
    by_machine: dict[str, list[Slot]] = {}
    for slot in slots:
        by_machine.setdefault(slot.machine, []).append(slot)
    return tuple(_machine(name, by_machine[name]) for name in sorted(by_machine))


def _machine(name: str, slots: list[Slot]) -> Machine:
    used = [slot for slot in slots if not slot.partitionable and slot.state == "Claimed"]
    free = [slot for slot in slots if slot not in used and slot.state not in OFFERING_NOTHING]
    return Machine(
        name=name,
        cpus_in_use=sum(slot.cpus for slot in used),
        cpus_free=sum(slot.cpus for slot in free),
        memory_in_use=sum(slot.memory for slot in used),
        memory_free=sum(slot.memory for slot in free),
        gpus_in_use=sum(slot.gpus for slot in used),
        gpus_free=sum(slot.gpus for slot in free),
    )


def look_at_queue(environment: Mapping[str, str]) -> Queue | None:
    """Return the jobs in the queue; None when the schedd doesn't answer."""
    ads = ads_of(["condor_q", "-allusers", "-json", "-attributes", JOB_ATTRIBUTES], environment)
    return None if ads is None else queue_of(ads)


def queue_of(ads: Iterable[Mapping[str, Any]]) -> Queue:
    """Return what the ads of a queue's jobs come to."""
    everything, own = list(ads), {SCHEDULER_UNIVERSE, LOCAL_UNIVERSE}
    jobs = [ad for ad in everything if ad.get("JobUniverse") not in own]
    dags = [ad for ad in everything if ad.get("JobUniverse") == SCHEDULER_UNIVERSE]
    return Queue(
        runs=sum("TrialfleetFolder" in ad and "DAGManJobId" not in ad for ad in dags),
        trials=_by_state(ad for ad in jobs if ad.get("TrialfleetMode") == "tune"),
        jobs=_by_state(jobs),
        clocks=sum("TrialfleetDaily" in ad for ad in everything),
    )


def _by_state(ads: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    counts = Counter(JOB_STATES.get(ad["JobStatus"], "in another state") for ad in ads)
    return dict(sorted(counts.items()))


def ads_of(command: list[str], environment: Mapping[str, str]) -> list[dict[str, Any]] | None:
    """Return the ads that a tool prints as JSON.

    None if the tool is missing, fails, or finds nobody to talk to in time.
    """
    try:
        done = subprocess.run(
            command,
            env=dict(environment),
            capture_output=True,
            text=True,
            check=False,
            timeout=TOOL_SECONDS,
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return from_json(done.stdout) if done.returncode == 0 else None
