"""The autoscaler's memory of its nodes: facts that neither AWS nor HTCondor knows.

The autoscaler remembers when each node was last seen in the pool, and which new nodes AWS doesn't
list yet. A node has a limited time to join the pool. This time begins again when the autoscaler
starts, and after each outage of the pool, because nodes need a while to connect after a restart of
the manager.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from trialfleet.infra.fleet.scaling.scaling_decision import Node
from trialfleet.infra.fleet.spec.machines import Instance
from trialfleet.infra.pool.machines import Machine, Resources

UNLISTED = timedelta(minutes=2)  # AWS lists new instances within this time


class KnownNodes:
    """The memory that one autoscaler's process has of its nodes."""

    def __init__(self, now: datetime) -> None:
        self._answers_since = now
        self._seen: dict[str, datetime] = {}
        self._fresh: dict[str, Instance] = {}
        self._blind = False

    def add_launched(self, instances: Iterable[Instance]) -> None:
        """Remember instances that AWS has just started."""
        self._fresh.update({instance.id: instance for instance in instances})

    @property
    def unlisted_instances(self) -> list[Instance]:
        """The new instances that AWS's last listing did not contain."""
        return list(self._fresh.values())

    def living_instances(
        self, listed: Iterable[Instance], now: datetime, silent: Collection[str] = ()
    ) -> list[Instance]:
        """Return the living instances of `listed`, and new ones that AWS does not list yet.

        An instance that is not listed yet counts as alive for two minutes after its launch. In the
        AWS regions `silent`, which did not answer, it counts as alive until the region answers.
        """
        listed = list(listed)
        known = {instance.id for instance in listed}
        self._fresh = {
            name: instance
            for name, instance in self._fresh.items()
            if name not in known
            and (now - instance.launched < UNLISTED or instance.aws_region in silent)
        }
        return [*(i for i in listed if i.is_alive), *self._fresh.values()]

    def note_no_answer(self) -> None:
        """Remember that the pool did not answer."""
        self._blind = True

    def nodes(
        self,
        instances: Iterable[Instance],
        pool: Iterable[Machine],
        rooms: Mapping[str, Resources],
        usual: Resources,
        now: datetime,
    ) -> list[Node]:
        """Return the instances as nodes, each with its machine in the pool, if it has one.

        A node without a machine gets the resources in `rooms` for its instance type. If the type is
        missing there, the node gets `usual`.
        """
        if self._blind:
            self._seen = dict.fromkeys(self._seen, now)
            self._answers_since, self._blind = now, False
        here = {node.instance: node for node in pool}
        self._seen.update(dict.fromkeys(here, now))
        nodes = [self._node(i, here.get(i.id), rooms.get(i.type, usual)) for i in instances]
        self._seen = {node.id: node.seen for node in nodes if node.seen}
        return nodes

    def _node(self, instance: Instance, machine: Machine | None, room: Resources) -> Node:
        return Node(
            instance=replace(instance, launched=max(instance.launched, self._answers_since)),
            room=machine.total if machine else room,
            machine=machine,
            seen=self._seen.get(instance.id),
        )
