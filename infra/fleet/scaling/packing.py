"""Where trials that wait find room: on which nodes that are there, and on how many new ones."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

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
    fresh: list[_Alike] = []
    unfit: list[Group] = []
    for group in sorted(waiting, key=lambda group: group.need, reverse=True):
        before = dict(left), fresh
        homeless = _fill(left, group.need, group.jobs)
        homeless, fresh = _fill_alike(fresh, group.need, homeless)
        if homeless and not new.holds(group.need):
            unfit.append(Group(need=group.need, jobs=homeless))
        elif homeless:
            more = min(math.ceil(homeless / new.holds(group.need)), most - _count(fresh))
            homeless, added = _fill_alike([_Alike(new, more)], group.need, homeless)
            fresh = [*fresh, *added]
        if group.jobs - homeless < min(group.least, group.jobs):
            left, fresh = before
    used = frozenset(name for name, room in left.items() if room != free[name])
    return Packing(used=used, new=_count(fresh), unfit=tuple(unfit))


def least_new(waiting: Iterable[Group], free: Mapping[str, Room], new: Room, most: int) -> int:
    """Return the smallest number of new nodes that is of any use; 0 where none is."""
    waiting = list(waiting)
    of_use = bisect_left(range(most), 1, key=lambda more: pack(waiting, free, new, more + 1).new)
    return pack(waiting, free, new, of_use + 1).new if of_use < most else 0


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


class _Alike(NamedTuple):
    """New nodes with the same room left."""

    room: Room
    nodes: int


def _count(fresh: Iterable[_Alike]) -> int:
    return sum(alike.nodes for alike in fresh)


def _fill(rooms: dict[str, Room], need: Room, jobs: int) -> int:
    """Take the room of `jobs` jobs, as far as there is any; return how many found none."""
    for name, room in rooms.items():
        if not jobs:
            break
        if taken := min(jobs, room.holds(need)):
            rooms[name] = room.without(need, taken)
            jobs -= taken
    return jobs


def _fill_alike(fresh: Iterable[_Alike], need: Room, jobs: int) -> tuple[int, list[_Alike]]:
    """Do the same on new nodes; return how many found none, and the nodes with what is left."""
    left = []
    for room, nodes in fresh:
        each = room.holds(need)
        full, rest = divmod(min(jobs, nodes * each), each or 1)
        jobs -= full * each + rest
        parts = (
            _Alike(room.without(need, each), full),
            _Alike(room.without(need, rest), int(rest > 0)),
            _Alike(room, nodes - full - int(rest > 0)),
        )
        left += [part for part in parts if part.nodes]
    return jobs, left
