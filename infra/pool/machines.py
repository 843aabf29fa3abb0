"""A pool's machines, from their slots' ClassAds: free resources, idle time, health."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from trialfleet.slots import is_data_slot, is_held, runs_job

OURS = "trialfleet: "  # prefix of the reason of a drain that the manager requested
# The attributes of a slot's ad that are read.
ATTRIBUTES = [
    *("Name", "Machine", "SlotType", "State", "Activity", "NumDynamicSlots", "NumDynamicSlotsTime"),
    *("MyCurrentTime", "LastHeardFrom", "Draining", "DrainReason"),
    *("JobId", "IsDataSlot", "GlobalJobId", "Cpus", "Memory", "GPUs"),
    *("TotalSlotCpus", "TotalSlotMemory", "TotalSlotGPUs", "TrialfleetTrialsPerGpu"),
    *("TrialfleetInstance", "TrialfleetInstanceType", "TrialfleetLifecycle"),
    *("TrialfleetPricePerHour", "TrialfleetGpuHealthy", "TrialfleetGpuReason"),
    *("TrialfleetGpuName", "TrialfleetBandwidth", "TrialfleetLaunchMicroseconds"),
    *("TrialfleetDriverOption", "TrialfleetNote"),
]
# Families of EC2's types with NVIDIA GPUs: g5.xlarge, gr6.4xlarge, p4d.24xlarge; g4ad has AMD's.
_EC2_GPU_TYPE = re.compile(r"(g|gr|p)[0-9](?!ad)")
OFFERING_NOTHING = {"Owner", "Drained"}  # states of a slot that takes no jobs
Ad = Mapping[str, Any]
State = Literal["well", "sick", "draining"]


@dataclass(frozen=True, kw_only=True, order=True)
class Resources:
    """Amounts of GPUs, CPUs and memory (MiB) that a job requests, or that a machine or slot has."""

    gpus: int = 0
    cpus: int = 0
    memory_mb: int = 0

    def __str__(self) -> str:
        gpus = f"{self.gpus} GPU{'s' if self.gpus != 1 else ''}, " if self.gpus else ""
        return f"{gpus}{self.cpus} cpu{'s' if self.cpus != 1 else ''}, {self.memory_mb} MB"

    def __add__(self, other: Resources) -> Resources:
        return self._combine(other, lambda one, another: one + another)

    def count_fitting(self, need: Resources) -> int:
        """Return how many jobs that request `need` fit at once, or a million if `need` is empty."""
        return min(
            self.gpus // need.gpus if need.gpus else 1_000_000,
            self.cpus // need.cpus if need.cpus else 1_000_000,
            self.memory_mb // need.memory_mb if need.memory_mb else 1_000_000,
        )

    def subtract(self, need: Resources, times: int = 1) -> Resources:
        """Return what is left after `times` jobs that request `need`. Amounts may be negative."""
        return self._combine(need, lambda has, asked: has - times * asked)

    def minimum(self, other: Resources) -> Resources:
        """Return the smaller amount of each resource."""
        return self._combine(other, min)

    def _combine(self, other: Resources, combine: Callable[[int, int], int]) -> Resources:
        return Resources(
            gpus=combine(self.gpus, other.gpus),
            cpus=combine(self.cpus, other.cpus),
            memory_mb=combine(self.memory_mb, other.memory_mb),
        )


@dataclass(frozen=True, kw_only=True)
class RunningTrial:
    """A trial or full training that runs on a machine: its run, its region and its DAG node."""

    run: str
    region: str
    node: str


@dataclass(frozen=True, kw_only=True)
class Slot:
    """A slot of a machine.

    A job gets a part of a partitionable slot, as a dynamic slot. The `room` of the partitionable
    slot is what is left.
    """

    name: str
    state: str
    activity: str
    partitionable: bool
    room: Resources

    @property
    def is_taken(self) -> bool:
        """True if the slot is claimed for a job. A claim can last longer than its job."""
        return self.state == "Claimed" and not self.partitionable


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine of the pool, from its slots' ClassAds.

    Attributes:
        slot: the name of the machine's partitionable slot. If there is none, the name of the slot
            with the newest ad.
        free: resources that no job has.
        note: why the node's agent drains the machine or refuses jobs. It may be empty.
        trials: the trials and full trainings among the running jobs.
        idle_since: the time since which no job has had a slot, by the collector's clock. None while
            a job has a slot.
        instance: the id of its EC2 instance. Empty outside of a fleet.
        lifecycle: `spot`, `on-demand` or, outside of a fleet, empty.
        price: USD per hour, or None if unknown.
        healthy: whether the GPU probe found a GPU for jobs. None without a probe. A fleet's node is
            probed before it joins the pool.
        reason: why `healthy` is False, or which of several GPUs failed the probe.
        bandwidth: speed of a copy in the GPU's memory in GB/s, or None if not measured.
        launch_microseconds: time to launch an empty kernel, or None if not measured.
        driver_option: the result of setting an option of the GPU's driver: `set`, `already 0` or a
            problem.
        shares: the number of trials that share a GPU. HTCondor counts each GPU that many times.
    """

    name: str
    slots: tuple[Slot, ...]
    slot: str
    total: Resources
    free: Resources
    draining: bool
    drain_reason: str
    note: str
    jobs: tuple[str, ...]
    trials: tuple[RunningTrial, ...]
    idle_since: datetime | None
    instance: str
    instance_type: str
    lifecycle: str
    price: float | None
    healthy: bool | None
    reason: str
    gpu: str
    bandwidth: float | None
    launch_microseconds: float | None
    driver_option: str
    shares: int = 1

    @property
    def in_use(self) -> Resources:
        """The resources that jobs have now."""
        return _sum(slot.room for slot in self.slots if slot.is_taken)

    @property
    def offered_room(self) -> Resources:
        """The resources that jobs can get now. A slot in state Drained or Owner offers none."""
        return _sum(
            slot.room
            for slot in self.slots
            if not slot.is_taken and slot.state not in OFFERING_NOTHING
        )

    @property
    def is_gpu_machine(self) -> bool:
        """True if HTCondor found GPUs, or if the machine is of an EC2 type that has some."""
        return self.total.gpus > 0 or ec2_type_has_gpus(self.instance_type)

    def is_sick(self) -> bool:
        """Return whether the GPU probe found no healthy GPU on a machine that should have one."""
        return self.is_gpu_machine and self.healthy is False

    def state(self) -> State:
        """Return the machine's state."""
        if self.draining:
            return "draining"
        return "sick" if self.is_sick() else "well"

    def explanation(self) -> str:
        """Return why the machine is in its state, or why GPUs get no trials, or an empty text."""
        state = self.state()
        if state == "draining":
            return self.drain_explanation
        if state == "sick":
            return self.probe_text
        return self.note or (self.reason if self.is_gpu_machine else "")

    @property
    def drain_explanation(self) -> str:
        """The reason of the machine's drain, from HTCondor or else from the agent's note."""
        return (self.drain_reason or self.note).removeprefix(OURS)

    @property
    def probe_text(self) -> str:
        """Why no GPU trials run on the machine. Use this only if it is sick."""
        return f"its GPU failed the probe: {self.reason or 'no reason given'}"


def ec2_type_has_gpus(name: str) -> bool:
    """Return whether an EC2 instance type's name says that it has NVIDIA GPUs."""
    return _EC2_GPU_TYPE.match(name) is not None


# --- Reading ads ----------------------------------------------------------------------------------


def parse_machines(ads: Iterable[Ad], jobs: Iterable[Ad] = ()) -> tuple[Machine, ...]:
    """Return the machines that have the slots of `ads`, sorted by name.

    The machines list a running trial only if its job's ClassAd is in `jobs`. A machine is left out
    if `ads` has only its dynamic slots.
    """
    names = {"run": "TrialfleetRun", "region": "TrialfleetRegion", "node": "TrialfleetNode"}
    trials = {
        job["GlobalJobId"]: RunningTrial(**{key: _text(job, name) for key, name in names.items()})
        for job in jobs
        if "GlobalJobId" in job
    }
    by_machine: dict[str, list[Ad]] = defaultdict(list)
    for ad in ads:
        if key := _text(ad, "TrialfleetInstance") or machine_name(ad):
            by_machine[key].append(ad)
    found = (_machine(own, trials) for own in by_machine.values())
    return tuple(sorted(filter(None, found), key=lambda machine: (machine.name, machine.instance)))


def machine_name(ad: Ad) -> str:
    """Return the name of the machine that has the slot with this ClassAd."""
    return _text(ad, "Machine") or _text(ad, "Name").rpartition("@")[2]


def _machine(ads: list[Ad], trials: Mapping[str, RunningTrial]) -> Machine | None:
    """Return the machine that has these slots, or None if all of them are dynamic."""
    cut = [ad for ad in ads if ad.get("SlotType") == "Dynamic"]
    uncut = sorted((ad for ad in ads if ad.get("SlotType") != "Dynamic"), key=_last_heard)
    own = list({ad.get("Name"): ad for ad in uncut}.values())
    if not own:
        return None
    ad = max(own, key=lambda each: (each.get("SlotType") == "Partitionable", _last_heard(each)))
    jobs = [each for each in ads if runs_job(each)]
    running = [trials[each["GlobalJobId"]] for each in jobs if each.get("GlobalJobId") in trials]
    healthy = ad.get("TrialfleetGpuHealthy")
    whole = [_parse_slot(each) for each in own]
    return Machine(
        name=machine_name(ad),
        # slot1_2 comes before slot1_10
        slots=tuple(sorted((*whole, *map(_parse_slot, cut)), key=lambda s: (len(s.name), s.name))),
        slot=_text(ad, "Name"),
        total=_sum(parse_room(each, "TotalSlot{}") for each in own),
        free=_sum(slot.room for slot in whole if not slot.is_taken),
        draining=ad.get("Draining") is True,
        drain_reason=_text(ad, "DrainReason"),
        note=_text(ad, "TrialfleetNote"),
        jobs=tuple(sorted(str(each["JobId"]) for each in jobs)),
        trials=tuple(sorted(running, key=lambda trial: (trial.run, trial.node))),
        idle_since=_idle_start(ad, ads),
        instance=_text(ad, "TrialfleetInstance"),
        instance_type=_text(ad, "TrialfleetInstanceType"),
        lifecycle=_text(ad, "TrialfleetLifecycle"),
        price=number(ad, "TrialfleetPricePerHour") or None,
        healthy=healthy if isinstance(healthy, bool) else None,
        reason=_text(ad, "TrialfleetGpuReason"),
        gpu=_text(ad, "TrialfleetGpuName"),
        bandwidth=number(ad, "TrialfleetBandwidth"),
        launch_microseconds=number(ad, "TrialfleetLaunchMicroseconds"),
        driver_option=_text(ad, "TrialfleetDriverOption"),
        shares=int(number(ad, "TrialfleetTrialsPerGpu") or 1),
    )


def _parse_slot(ad: Ad) -> Slot:
    return Slot(
        name=_text(ad, "Name"),
        state=_text(ad, "State") or "Unknown",
        activity=_text(ad, "Activity") or "Unknown",
        partitionable=ad.get("SlotType") == "Partitionable",
        room=parse_room(ad, "{}"),
    )


def _idle_start(ad: Ad, slots: Sequence[Ad]) -> datetime | None:
    """Return the time since which no job has held a slot, or None while a job holds one.

    Return None also if `ad`, a partitionable slot's ad, counts a new dynamic slot whose own ad is
    still missing.
    """
    keep_files = sum(map(is_data_slot, slots))
    if any(map(is_held, slots)) or (number(ad, "NumDynamicSlots") or 0) > keep_files:
        return None
    now = number(ad, "MyCurrentTime") or 0
    since = number(ad, "NumDynamicSlotsTime") or now
    # The machine's clock may differ from the collector's, so it only measures the duration.
    return moment(_last_heard(ad) - max(0.0, now - since))


def _last_heard(ad: Ad) -> float:
    return number(ad, "LastHeardFrom") or 0.0


def _sum(rooms: Iterable[Resources]) -> Resources:
    return sum(rooms, Resources())


def parse_room(ad: Ad, names: str) -> Resources:
    """Return the resources (GPUs, CPUs, memory) in a ClassAd.

    `names` is the pattern of the ad's attribute names, such as `Request{}`.
    """
    gpus, cpus, memory = (
        int(number(ad, names.format(resource)) or 0) for resource in ("GPUs", "Cpus", "Memory")
    )
    return Resources(gpus=gpus, cpus=cpus, memory_mb=memory)


def number(ad: Ad, name: str) -> float | None:
    """Return an attribute's number, or None if the attribute is missing or not a number."""
    value = ad.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _text(ad: Ad, name: str) -> str:
    value = ad.get(name)
    return value if isinstance(value, str) else ""


def moment(seconds: float) -> datetime:
    """Return the time for a ClassAd's number of seconds (Unix time)."""
    return datetime.fromtimestamp(seconds, UTC)
