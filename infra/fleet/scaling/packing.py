"""The number of new EC2 nodes for the waiting trials that don't fit on existing nodes."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from trialfleet.infra.fleet.htcondor.demand import Group
from trialfleet.infra.fleet.spec.limits import UNBOUNDED
from trialfleet.infra.pool.machines import Resources


@dataclass(frozen=True, kw_only=True)
class Packing:
    """The nodes that waiting trials will use, and the number of new nodes that they need.

    `unfit` are trials that fit neither on a present node nor on an empty, new one.
    """

    used: frozenset[str]
    new: int
    unfit: tuple[Group, ...]


def pack(
    waiting: Iterable[Group],
    free: Mapping[str, Resources],
    new: Resources,
    max_nodes: int = UNBOUNDED,
) -> Packing:
    """Return the nodes that waiting trials will use, and how many new nodes they need.

    `free` has the free resources of each present node, and `new` those of a new one, of which there
    are at most `max_nodes`. The largest trials are placed first, each on the first node with room.
    A gang that can't begin on these nodes gets none.
    """
    left = dict(free)
    fresh: list[_Alike] = []
    unfit: list[Group] = []
    for group in sorted(waiting, key=lambda group: group.need, reverse=True):
        before = dict(left), fresh
        homeless = _fill(left, group.need, group.jobs)
        homeless, fresh = _fill_alike(fresh, group.need, homeless)
        if homeless and not new.count_fitting(group.need):
            unfit.append(Group(need=group.need, jobs=homeless))
        elif homeless:
            more = min(
                math.ceil(homeless / new.count_fitting(group.need)), max_nodes - _count(fresh)
            )
            homeless, added = _fill_alike([_Alike(new, more)], group.need, homeless)
            fresh = [*fresh, *added]
        if group.jobs - homeless < min(group.least, group.jobs):
            left, fresh = before
    used = frozenset(name for name, room in left.items() if room != free[name])
    return Packing(used=used, new=_count(fresh), unfit=tuple(unfit))


def least_new(
    waiting: Iterable[Group], free: Mapping[str, Resources], new: Resources, max_nodes: int
) -> int:
    """Return the smallest number of new nodes that let at least one more waiting job begin.

    Return 0 if `max_nodes` are too few. `pack` explains `free` and `new`.
    """
    waiting = list(waiting)
    of_use = bisect_left(
        range(max_nodes), 1, key=lambda more: pack(waiting, free, new, more + 1).new
    )
    return pack(waiting, free, new, of_use + 1).new if of_use < max_nodes else 0


def never_begins(least: int, nodes: int, slots: int) -> str:
    """Return why a gang that needs `least` jobs to begin can never begin, or an empty text.

    The fleet has at most `nodes` nodes, each with room for `slots` of the gang's jobs.
    """
    if least <= nodes * slots:
        return ""
    return (
        f"a gang begins with {least} jobs (resources.nodes.min), but the fleet has room for at "
        f"most {nodes * slots}: nodes.max is {nodes}, and a node holds {slots} of them"
    )


class _Alike(NamedTuple):
    """New nodes that all have the same `room` left."""

    room: Resources
    nodes: int


def _count(fresh: Iterable[_Alike]) -> int:
    return sum(alike.nodes for alike in fresh)


def _fill(rooms: dict[str, Resources], need: Resources, jobs: int) -> int:
    """Place up to `jobs` jobs, each with the request `need`. Return how many jobs are left.

    The requests of the placed jobs are subtracted from the free resources in `rooms`.
    """
    for name, room in rooms.items():
        if not jobs:
            break
        if taken := min(jobs, room.count_fitting(need)):
            rooms[name] = room.subtract(need, taken)
            jobs -= taken
    return jobs


def _fill_alike(fresh: Iterable[_Alike], need: Resources, jobs: int) -> tuple[int, list[_Alike]]:
    """Place jobs on new nodes. Return how many jobs are left, and the nodes' remaining room."""
    left = []
    for room, nodes in fresh:
        each = room.count_fitting(need)
        full, rest = divmod(min(jobs, nodes * each), each or 1)
        jobs -= full * each + rest
        parts = (
            _Alike(room.subtract(need, each), full),
            _Alike(room.subtract(need, rest), int(rest > 0)),
            _Alike(room, nodes - full - int(rest > 0)),
        )
        left += [part for part in parts if part.nodes]
    return jobs, left
