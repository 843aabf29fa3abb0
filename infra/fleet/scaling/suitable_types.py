"""Which of a fleet's instance types could hold a job, before any node is there."""

from __future__ import annotations

from dataclasses import dataclass

from trialfleet.errors import first_of
from trialfleet.infra.fleet.aws.clients import Aws
from trialfleet.infra.fleet.choice import instance_types
from trialfleet.infra.fleet.pool.nodes import Room
from trialfleet.infra.fleet.scaling.saved_state import room_of
from trialfleet.infra.fleet.spec.fleet import Fleet


@dataclass(frozen=True, kw_only=True)
class SuitableTypes:
    """What a fleet's nodes have for a job.

    Attributes:
        need: what it asks for.
        rooms: what a node of each type has.
    """

    need: Room
    rooms: dict[str, Room]

    @property
    def types(self) -> list[str]:
        """The types whose nodes could hold it."""
        return [name for name, room in sorted(self.rooms.items()) if room.holds(self.need)]

    def __str__(self) -> str:
        """In a line."""
        if found := self.types:
            return f"nodes of the study's fleet can hold one: {first_of(found, 4)}"
        name, room = max(self.rooms.items(), key=lambda item: item[1])
        return (
            f"no instance type of the study's fleet can hold one: it needs {self.need}, and the "
            f"largest, {name}, has {room}"
        )


def suitable_types(aws: Aws, fleet: Fleet, need: Room) -> SuitableTypes | None:
    """Return what the nodes of a fleet have for a job; None where AWS knows none of their types.

    Raises:
        InputError: an instance type exists nowhere.
        FleetError: AWS can't be asked, or refuses.
    """
    kinds = [k for region in fleet.aws_regions for k in instance_types.resolve(aws, fleet, region)]
    rooms = {kind.name: room_of(kind, fleet.shares) for kind in kinds}
    return SuitableTypes(need=need, rooms=rooms) if rooms else None
