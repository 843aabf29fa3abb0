"""Where trials that wait find room: on which nodes that are there, and on how many new ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trialfleet.infra.fleet.pool.nodes import Group, Room


@dataclass(frozen=True, kw_only=True)
class Packing:
    """Where trials that wait will go.

    Attributes:
        used: nodes that they fill, wholly or in part.
        new: number of nodes that are missing.
        unfit: trials that not even a new node could hold.
    """

    used: frozenset[str]
    new: int
    unfit: tuple[Group, ...]


def pack(waiting: Iterable[Group], free: Mapping[str, Room], new: Room) -> Packing:
    """Return where trials go: the largest first, each into the first node with room for it.

    Args:
        waiting: what they ask for.
        free: the room on nodes that are there or come, in the order in which they are filled.
        new: the room on a node that isn't asked for yet.
    """
    left = dict(free)
    fresh: dict[str, Room] = {}
    unfit: list[Group] = []
    for group in sorted(waiting, key=lambda group: group.need, reverse=True):
        homeless = _fill(fresh, group.need, _fill(left, group.need, group.jobs))
        if homeless and not new.holds(group.need):
            unfit.append(Group(need=group.need, jobs=homeless))
            continue
        while homeless:
            fresh[f"new {len(fresh)}"] = new
            homeless = _fill(fresh, group.need, homeless)
    used = frozenset(name for name, room in left.items() if room != free[name])
    return Packing(used=used, new=len(fresh), unfit=tuple(unfit))


def _fill(rooms: dict[str, Room], need: Room, jobs: int) -> int:
    """Take the room of `jobs` jobs, as far as there is any; return how many found none."""
    for name, room in rooms.items():
        taken = min(jobs, room.holds(need))
        rooms[name] = room.without(need, taken)
        jobs -= taken
    return jobs
