"""What must be remembered from one look at the fleet to the next.

Neither AWS nor the collector tells it: when the pool last knew a node, and which instances were
just asked for and are not listed yet. A node is never given up for what was before this watch
began, nor for the time in which the pool could not be asked: after the manager has been restarted,
nodes that train need a while to come back to it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from trialfleet.infra.fleet.scaling.decision import Node
from trialfleet.infra.fleet.spec.machines import Instance, InstanceType
from trialfleet.infra.pool.machines import Machine, Room

UNLISTED = timedelta(minutes=2)  # by then AWS lists what it launched
# Of the memory that AWS names, the firmware and the kernel keep some.
USABLE_MEMORY = 0.95


def room_of(kind: InstanceType, shares: int) -> Room:
    """Return what a node of this type offers, where so many trials share a GPU."""
    memory = int(kind.memory_mb * USABLE_MEMORY)
    return Room(gpus=kind.gpus * shares, cpus=kind.vcpus, memory_mb=memory)


class Watch:
    """The memory of one autoscaler."""

    def __init__(self, now: datetime) -> None:
        self._began = now
        self._seen: dict[str, datetime] = {}
        self._fresh: dict[str, Instance] = {}
        self._blind = False

    def launched(self, instances: Iterable[Instance]) -> None:
        """Remember instances that AWS just started."""
        self._fresh.update({instance.id: instance for instance in instances})

    @property
    def unlisted(self) -> list[Instance]:
        """The instances that were started, and not listed by the last look."""
        return list(self._fresh.values())

    def living(
        self, listed: Iterable[Instance], now: datetime, silent: Collection[str] = ()
    ) -> list[Instance]:
        """Return the instances that cost money: those listed, and those just launched.

        In `silent` AWS regions, which list nothing, those that were launched last are there still.
        """
        listed = list(listed)
        known = {instance.id for instance in listed}
        self._fresh = {
            name: instance
            for name, instance in self._fresh.items()
            if name not in known
            and (now - instance.launched < UNLISTED or instance.aws_region in silent)
        }
        return [*(i for i in listed if i.alive), *self._fresh.values()]

    def blinded(self) -> None:
        """Remember that the pool could not be asked."""
        self._blind = True

    def nodes(
        self,
        instances: Iterable[Instance],
        pool: Iterable[Machine],
        rooms: Mapping[str, Room],
        usual: Room,
        now: datetime,
    ) -> list[Node]:
        """Return the living instances joined with what the pool says of them.

        Those that have not joined will have the room that `rooms` has for their type, or else the
        usual one.
        """
        if self._blind:
            self._seen = dict.fromkeys(self._seen, now)
            self._blind = False
        here = {node.instance: node for node in pool}
        self._seen.update(dict.fromkeys(here, now))
        nodes = [self._node(i, here.get(i.id), rooms.get(i.type, usual)) for i in instances]
        self._seen = {node.id: node.seen for node in nodes if node.seen}
        return nodes

    def _node(self, instance: Instance, machine: Machine | None, room: Room) -> Node:
        return Node(
            instance=replace(instance, launched=max(instance.launched, self._began)),
            room=machine.total if machine else room,
            machine=machine,
            seen=self._seen.get(instance.id),
        )


def usual_room(room: Room, kind: str, nodes: Iterable[Node]) -> Room:
    """Return what a new node of a type will offer: no more than those that have joined do."""
    for node in nodes:
        if node.machine and node.instance.type == kind:
            room = room.within(node.machine.total)
    return room
