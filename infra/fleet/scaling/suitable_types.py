"""The resources for jobs on a node of each instance type, the types on which jobs or gangs fit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial

from trialfleet.errors import InputError, join_names
from trialfleet.infra.fleet.aws import images
from trialfleet.infra.fleet.aws.clients import Aws
from trialfleet.infra.fleet.choice import instance_types
from trialfleet.infra.fleet.htcondor.demand import Group
from trialfleet.infra.fleet.scaling.packing import never_begins
from trialfleet.infra.fleet.spec.fleet import DEFAULT_AMI, Fleet
from trialfleet.infra.fleet.spec.limits import affordable_nodes
from trialfleet.infra.fleet.spec.machines import Candidate, InstanceType
from trialfleet.infra.pool.machines import Resources
from trialfleet.sections import parse_bytes

# The firmware and the kernel keep some of the memory that AWS advertises.
USABLE_MEMORY = 0.95


def node_room(kind: InstanceType, shares: int) -> Resources:
    """Return a node's resources for jobs, if `shares` trials share each GPU."""
    memory = int(kind.memory_mb * USABLE_MEMORY)
    return Resources(gpus=kind.gpus * shares, cpus=kind.vcpus, memory_mb=memory)


@dataclass(frozen=True, kw_only=True)
class SuitableTypes:
    """A job's request (`need` and `disk_bytes`), and the room on nodes of each instance type.

    Attributes:
        rooms: the GPUs, CPUs and memory for jobs on a node, by the name of the instance type.
        disks: the size in bytes of a node's disk for jobs, by the name of the instance type.
        least: the number of jobs that a gang needs to begin. 1 without a gang.
        nodes: the fleet's maximum number of nodes.
    """

    need: Resources
    rooms: dict[str, Resources]
    disk_bytes: float = 0
    disks: dict[str, float] = field(default_factory=dict)
    least: int = 1
    nodes: int = 1

    @property
    def types(self) -> list[str]:
        """The instance types with which the fleet has room for `least` jobs."""
        return [
            name
            for name in sorted(self.rooms)
            if self.nodes * self._count_fitting(name) >= self.least
        ]

    def _count_fitting(self, name: str) -> int:
        disk = self.disks.get(name, 0.0)
        return _count_fitting(self.rooms[name], self.need, disk, self.disk_bytes)

    def __str__(self) -> str:
        if found := self.types:
            return f"nodes of the study's fleet can hold one: {join_names(found, 4)}"
        slots = max(map(self._count_fitting, self.rooms))
        if slots and (why := never_begins(self.least, self.nodes, slots)):
            return why
        if large := [name for name, room in self.rooms.items() if room.count_fitting(self.need)]:
            name = max(large, key=self.disks.__getitem__)
            return (
                "no instance type of the study's fleet can hold one: it needs "
                f"{_gigabytes(self.disk_bytes)} of disk, and the most, of {name}, is "
                f"{_gigabytes(self.disks[name])} (fleet.disk, unless a type has a local disk)"
            )
        name, room = max(self.rooms.items(), key=lambda item: item[1])
        return (
            f"no instance type of the study's fleet can hold one: it needs {self.need}, and the "
            f"largest, {name}, has {room}"
        )


def _count_fitting(room: Resources, need: Resources, disk: float, disk_bytes: float) -> int:
    """Return how many jobs fit, each of which requests `need` and `disk_bytes` of a disk."""
    count = room.count_fitting(need)
    return min(count, int(disk // disk_bytes)) if disk_bytes else count


def _gigabytes(size: float) -> str:
    return f"{size / 2**30:.0f} GB"


def suitable_types(
    aws: Aws, fleet: Fleet, need: Resources, least: int = 1, disk_bytes: float = 0
) -> SuitableTypes | None:
    """Return which of a fleet's types can hold a job, or None if AWS has none of the types."""
    rooms, disks = {}, {}
    find_image = cache(partial(images.find, aws, fleet))  # the same for many types
    for aws_region, kinds in instance_types.resolve_everywhere(aws, fleet).items():
        for kind in kinds:
            rooms[kind.name] = node_room(kind, fleet.shares)
            disks[kind.name] = _disk(fleet, kind)
            if not kind.local_disks_gb and disk_bytes > disks[kind.name]:  # the image may have more
                root_gib = find_image(aws_region, kind.architecture).root_gib
                disks[kind.name] = max(disks[kind.name], root_gib * 2**30)
    if not rooms:
        return None
    return SuitableTypes(
        need=need,
        rooms=rooms,
        disk_bytes=disk_bytes,
        disks=disks,
        least=least,
        nodes=fleet.nodes.max,
    )


def _disk(fleet: Fleet, kind: InstanceType) -> float:
    """Return the size in bytes of a node's disk for jobs.

    AWS's own image joins all local disks. On other images, jobs get one local disk, perhaps the
    smallest. Without local disks, jobs use the root volume. Its size is `fleet.disk`, unless the
    image's root disk is larger, which this function doesn't know.
    """
    if kind.local_disks_gb:
        joined = fleet.ami == DEFAULT_AMI
        return 1e9 * (sum(kind.local_disks_gb) if joined else min(kind.local_disks_gb))
    return parse_bytes(fleet.disk)


def can_begin(
    fleet: Fleet, candidate: Candidate, need: Resources, least: int = 1, disk_bytes: float = 0
) -> bool:
    """Return whether the fleet may have enough nodes of `candidate` for `least` jobs.

    Each job requests `need` and `disk_bytes`. The limits are `nodes.max` and `price_cap.hour`.
    """
    paid = affordable_nodes(fleet.price_cap.hour, 0.0, candidate.price)
    room = node_room(candidate.type, fleet.shares)
    slots = _count_fitting(room, need, _disk(fleet, candidate.type), disk_bytes)
    return least <= min(fleet.nodes.max, paid) * slots


def suitable(
    fleet: Fleet, candidates: Iterable[Candidate], waiting: Iterable[Group]
) -> list[Candidate]:
    """Return the candidates whose nodes suit all groups of `waiting` jobs.

    The groups are tried in turn. A group that would leave no candidate is ignored.
    """
    found = list(candidates)
    kinds = dict.fromkeys((group.need, group.least, group.disk_bytes) for group in waiting)
    for kind in kinds:
        found = [one for one in found if can_begin(fleet, one, *kind)] or found
    return found


@dataclass(frozen=True, kw_only=True)
class GangNeed:
    """The number of jobs of a gang (a training over several jobs), and what each job requests."""

    min: int
    max: int
    need: Resources


@dataclass(frozen=True, kw_only=True)
class GangPrice:
    """The number and price of the nodes that a gang needs.

    A gang begins with `min` jobs on `min_nodes` nodes, and may grow to `max` jobs on `max_nodes`
    nodes, at most the fleet's `nodes.max`. `type` is like `g5.xlarge spot`. Prices are in USD.
    """

    min: int
    max: int
    min_nodes: int
    max_nodes: int
    min_per_hour: float
    max_per_hour: float
    type: str

    def __str__(self) -> str:
        return (
            f"a gang of {self.min} to {self.max} jobs takes {self.min_nodes} to {self.max_nodes} "
            f"nodes of {self.type}: {self.min_per_hour:.2f} to {self.max_per_hour:.2f} USD per hour"
        )


def gang_price(fleet: Fleet, gang: GangNeed, candidates: Sequence[Candidate]) -> GangPrice:
    """Return the number and price of the nodes for a gang, all of the first suitable candidate.

    InputError if the fleet's limits allow too few nodes for the gang to begin.
    """
    chosen = next((one for one in candidates if can_begin(fleet, one, gang.need, gang.min)), None)
    if chosen is None:
        raise InputError(_why_none(fleet, gang, candidates))
    held = node_room(chosen.type, fleet.shares).count_fitting(gang.need)
    nodes = [-(-jobs // held) for jobs in (gang.min, gang.max)]
    most = min(nodes[1], fleet.nodes.max)
    return GangPrice(
        min=gang.min,
        max=gang.max,
        min_nodes=nodes[0],
        max_nodes=most,
        min_per_hour=nodes[0] * chosen.price,
        max_per_hour=most * chosen.price,
        type=f"{chosen.type.name} {chosen.lifecycle}",
    )


def _why_none(fleet: Fleet, gang: GangNeed, candidates: Sequence[Candidate]) -> str:
    held = {one: node_room(one.type, fleet.shares).count_fitting(gang.need) for one in candidates}
    if why := never_begins(gang.min, fleet.nodes.max, max(held.values())):
        return why
    costs = (
        -(-gang.min // slots) * one.price
        for one, slots in held.items()
        if gang.min <= slots * fleet.nodes.max
    )
    return (
        f"a gang needs {gang.min} jobs to begin (`resources.nodes.min`), and their nodes cost at "
        f"least {min(costs):.2f} USD per hour, but `price_cap.hour` is {fleet.price_cap.hour:g}: "
        "raise the cap, or lower `resources.nodes.min`"
    )
