"""Where trials that wait find room: on which nodes that are there, and on how many new ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trialfleet.infra.fleet.pool.demand import Group
from trialfleet.infra.fleet.spec.price_cap import UNBOUNDED
from trialfleet.infra.pool.machines import Room


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


def pack(
    waiting: Iterable[Group], free: Mapping[str, Room], new: Room, most: int = UNBOUNDED
) -> Packing:
    """Return where trials go: the largest first, each into the first node with room for it.

    A gang that would not begin, for want of nodes beyond the most, goes nowhere: it holds none of
    those that are there, and none is missing for it.

    Args:
        waiting: what they ask for.
        free: the room on nodes that are there or come, in the order in which they are filled.
        new: the room on a node that isn't asked for yet.
        most: so many new nodes there may be.
    """
    left = dict(free)
    fresh: dict[str, Room] = {}
    unfit: list[Group] = []
    for group in sorted(waiting, key=lambda group: group.need, reverse=True):
        before = dict(left), dict(fresh)
        homeless = _fill(fresh, group.need, _fill(left, group.need, group.jobs))
        if homeless and not new.holds(group.need):
            unfit.append(Group(need=group.need, jobs=homeless))
        else:
            while homeless and len(fresh) < most:
                fresh[f"new {len(fresh)}"] = new
                homeless = _fill(fresh, group.need, homeless)
        if group.jobs - homeless < min(group.least, group.jobs):
            left, fresh = before
    used = frozenset(name for name, room in left.items() if room != free[name])
    return Packing(used=used, new=len(fresh), unfit=tuple(unfit))


def least_new(waiting: Iterable[Group], free: Mapping[str, Room], new: Room, most: int) -> int:
    """Return the smallest number of new nodes that is of any use; 0 where none is."""
    waiting = list(waiting)
    return next(
        (found for few in range(1, most + 1) if (found := pack(waiting, free, new, few).new)),
        0,
    )


def never_begins(least: int, nodes: int, slots: int) -> str:
    """Return why a gang that begins with `least` jobs never can, in words; empty if it can.

    The fleet has at most `nodes` nodes, each with room for `slots` of its jobs.
    """
    if least <= nodes * slots:
        return ""
    return (
        f"a gang begins with {least} jobs (resources.nodes.min), and the fleet never has room for "
        f"more than {nodes * slots}: nodes.max is {nodes}, and a node holds {slots} of them"
    )


def _fill(rooms: dict[str, Room], need: Room, jobs: int) -> int:
    """Take the room of `jobs` jobs, as far as there is any; return how many found none."""
    for name, room in rooms.items():
        taken = min(jobs, room.holds(need))
        rooms[name] = room.without(need, taken)
        jobs -= taken
    return jobs
