"""Decisions on how many EC2 nodes to launch, and which nodes to drain or end.

The functions only decide, and call neither AWS nor HTCondor. The fleet grows at once for waiting
trials that fit on no node. Nodes that have been idle for a while are drained, and then terminated.
A busy node is drained only if a cap is exceeded, or if a person scales the fleet down.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache
from typing import Literal

from trialfleet.infra.fleet.htcondor.demand import Demand, Group
from trialfleet.infra.fleet.scaling.packing import Packing, least_new, pack
from trialfleet.infra.fleet.spec.limits import Limits, run_cap_reached
from trialfleet.infra.fleet.spec.machines import Candidate, Instance
from trialfleet.infra.pool.machines import OURS, Machine, Resources

SILENT_MINUTES = 5.0  # a node that the pool has not seen for this time counts as lost
MATCH_MINUTES = 5.0  # trials that waited this long don't match a node that was free this long
Phase = Literal[
    "coming",  # launched; not yet in the pool
    "late",  # … for longer than a boot may take
    "silent",  # was in the pool; not seen for a short while
    "lost",  # … for longer than SILENT_MINUTES; or stopped by somebody
    "sick",  # in the pool; its GPU failed the probe, so trials don't run there
    "draining",  # takes no more trials; some may still be leaving
    "withdrawn",  # … and is empty: drained by its agent or a person, who may want to inspect it
    "drained",  # … and is empty: drained by the manager, or long ago
    "busy",
    "idle",
]
OPEN: frozenset[Phase] = frozenset({"coming", "silent", "busy", "idle"})  # usable, now or soon
GONE: frozenset[Phase] = frozenset({"late", "lost", "drained"})  # no longer usable
LEAVING: frozenset[Phase] = GONE | {"draining", "withdrawn"}


@dataclass(frozen=True, kw_only=True)
class Node:
    """An instance that costs money, together with what the pool knows of it.

    `room` has all resources for jobs, free or used. `machine` is None while the node isn't in the
    pool. `seen` is when the pool last knew the node, or None if it never did.
    """

    instance: Instance
    room: Resources
    machine: Machine | None = None
    seen: datetime | None = None

    @property
    def id(self) -> str:
        """The instance's id."""
        return self.instance.id


@dataclass(frozen=True, kw_only=True)
class Removal:
    """A node to drain or to terminate. With `only_idle`, the node stays if it now has a job."""

    instance: str
    reason: str
    only_idle: bool = False


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The decision of one step of the autoscaler.

    Attributes:
        least: the smallest useful number of new nodes: 1, or as many as a gang needs to begin.
        drain: nodes that must take no more trials, and are terminated once they are empty.
        terminate: nodes to end at once: they have no job, or the pool has lost them.
    """

    launch: int = 0
    least: int = 1
    drain: tuple[Removal, ...] = ()
    terminate: tuple[Removal, ...] = ()
    reasons: tuple[str, ...] = ()


def decide(demand: Demand, nodes: Sequence[Node], limits: Limits, now: datetime) -> Decision:
    """Return what to launch, drain and terminate. `nodes` are all instances that cost money."""
    fleet = _Fleet(nodes, limits, now)
    # At the run's cap all nodes are drained, so that trials save checkpoints.
    if reason := run_cap_reached(limits.run_cap, limits.spent):
        return replace(_decide_removal(fleet, fleet.release_order(), reason), reasons=(reason,))
    free, (allowed, bound) = fleet.free_rooms(), _allowance(fleet)
    packing = pack(demand.idle, free, limits.room, allowed)
    wanted = pack(demand.idle, free, limits.room).new
    over = _over_the_hour_cap(fleet)
    idle = _idle_too_long(fleet, packing.used, over)
    lacking = limits.min_nodes - len(fleet.in_phases(OPEN))
    launch, wanted = max(packing.new, min(lacking, allowed), 0), max(wanted, lacking)
    held_back = f"{wanted - launch} more nodes would be useful: {bound}" if launch < wanted else ""
    cap = f"all nodes together cost more than the cap of ${limits.hour_cap or 0.0:.2f} per hour"
    rest = _decide_removal(fleet, over, cap)
    return replace(
        rest,
        launch=launch,
        least=max(1, least_new(demand.idle, free, limits.room, launch)),
        drain=(*rest.drain, *(_was_idle(fleet, node) for node in idle)),
        reasons=tuple(filter(None, (_unfit_text(packing, limits.room), held_back))),
    )


def affordable(
    candidates: Sequence[Candidate],
    rooms: Mapping[str, Resources],
    waiting: Sequence[Group],
    nodes: Sequence[Node],
    limits: Limits,
    now: datetime,
) -> tuple[list[Candidate], int]:
    """Return the candidates for which the caps on costs pay, and how many nodes of the first.

    The number is 1, or as many as a gang needs to begin. `rooms` has the resources of a new node,
    by type. If the caps pay for no spot candidate, all spot ones are kept, and likewise the
    on-demand ones. If they pay for none at all, the cheapest comes first.
    """
    if limits.hour_cap is None and limits.run_cap is None:
        return list(candidates), 1
    fleet = _Fleet(nodes, limits, now)
    rate, free = fleet.rate(fleet.not_in_phases(GONE)), fleet.free_rooms()
    gangs = any(group.least > 1 for group in waiting)

    @cache
    def needed(kind: str) -> int:
        return max(1, least_new(waiting, free, rooms[kind], limits.max_nodes)) if gangs else 1

    paid = [
        one
        for one in candidates
        if replace(limits, price=one.price).affordable_nodes(rate) >= needed(one.type.name)
    ]
    lifecycles = {one.lifecycle for one in paid}
    rest = [one for one in candidates if one.lifecycle not in lifecycles]
    if not paid:
        rest.sort(key=lambda one: needed(one.type.name) * one.price)
    found = [*paid, *rest]
    return found, needed(found[0].type.name) if found else 1


def unmatched_trials(
    demand: Demand, nodes: Sequence[Node], limits: Limits, now: datetime
) -> list[tuple[Group, Node]]:
    """Return waiting trials that match no node, each group with an idle node that has room.

    HTCondor matches within seconds. If trials have waited and the node was idle for minutes, the
    trials' requirements exclude this node. They also exclude a new node of the same type.
    """
    fleet = _Fleet(nodes, limits, now)
    free = [n for n in fleet.in_phases({"idle"}) if fleet.idle_minutes(n) >= MATCH_MINUTES]
    rooms = {n.id: n.machine.free for n in free if n.machine}
    found: list[tuple[Group, Node]] = []
    for group in demand.idle:
        if group.since is not None and _minutes(group.since, now) >= MATCH_MINUTES:
            used = pack([group], rooms, Resources(), 0).used
            found += [(group, node) for node in free if node.id in used][:1]
    return found


def phase(node: Node, limits: Limits, now: datetime) -> Phase:
    """Return the node's phase, such as coming, idle, busy or lost."""
    if node.instance.state in {"stopping", "stopped"}:
        return "lost"
    if node.machine is not None:
        return _phase_in_pool(node.machine, limits, now)
    if node.seen is not None:
        return "silent" if _minutes(node.seen, now) < SILENT_MINUTES else "lost"
    return "coming" if _minutes(node.instance.launched, now) < limits.boot_minutes else "late"


def _phase_in_pool(node: Machine, limits: Limits, now: datetime) -> Phase:
    if node.idle_since is None:
        return "draining" if node.draining else "busy"
    if node.draining:
        long_ago = _minutes(node.idle_since, now) >= limits.idle_minutes
        return "drained" if long_ago or node.drain_reason.startswith(OURS) else "withdrawn"
    return "sick" if node.is_sick() else "idle"


class _Fleet:
    def __init__(self, nodes: Sequence[Node], limits: Limits, now: datetime) -> None:
        self.nodes, self.limits, self.now = nodes, limits, now
        self._phases = {node.id: phase(node, limits, now) for node in nodes}

    def phase(self, node: Node) -> Phase:
        return self._phases[node.id]

    def in_phases(self, phases: Iterable[Phase]) -> list[Node]:
        return [node for node in self.nodes if self.phase(node) in phases]

    def not_in_phases(self, phases: Iterable[Phase]) -> list[Node]:
        return [node for node in self.nodes if self.phase(node) not in phases]

    def free_rooms(self) -> Mapping[str, Resources]:
        """Return each usable node's free GPUs, CPUs and memory, by the node's id.

        Busy nodes come first, then idle ones, then those that still boot. Jobs fill the nodes in
        this order. Of each kind, the cheapest comes first, so that expensive nodes stay empty.
        Nodes that the pool no longer sees are left out: their free resources are unknown.
        """
        order: tuple[Phase, ...] = ("busy", "idle", "coming")
        usable = self.in_phases(order)
        usable.sort(key=lambda n: (order.index(self.phase(n)), self.price(n), n.id))
        return {
            node.id: node.machine.free if node.machine else node.room
            for node in usable
            if node.machine is None or not node.machine.is_sick()
        }

    def release_order(self) -> list[Node]:
        """Return the nodes that can be ended, the least useful first.

        Nodes with sick GPUs come first, then nodes that still boot, then idle ones, then busy ones.
        Of each kind, the most expensive comes first. Nodes that the pool no longer sees are left
        out, because they may run a trial, and can't be drained.
        """
        order: tuple[Phase, ...] = ("sick", "coming", "idle", "busy")
        return sorted(
            self.in_phases(order), key=lambda n: (order.index(self.phase(n)), -self.price(n), n.id)
        )

    def price(self, node: Node) -> float:
        return node.instance.price_or(self.limits.price)

    def rate(self, nodes: Iterable[Node]) -> float:
        return sum(self.price(node) for node in nodes)

    def idle_minutes(self, node: Node) -> float:
        idle_since = node.machine and node.machine.idle_since
        return _minutes(idle_since, self.now) if idle_since else 0.0


# --- Up -------------------------------------------------------------------------------------------


def _allowance(fleet: _Fleet) -> tuple[int, str]:
    """Return how many new nodes all limits allow, and the tightest limit as text."""
    limits, rate = fleet.limits, fleet.rate(fleet.not_in_phases(GONE))
    bounds = {
        f"the fleet has at most {limits.max_nodes} nodes": limits.max_nodes - len(fleet.nodes)
    }
    if limits.hour_cap is not None:
        text = f"the cap is ${limits.hour_cap:.2f} per hour, and the nodes cost ${rate:.2f}"
        bounds[text] = limits.affordable_in_hour(rate)
    if limits.run_cap is not None:
        left = limits.run_cap - limits.spent
        text = f"${left:.2f} is left of the run's cap of ${limits.run_cap:.2f}"
        bounds[text] = limits.affordable_in_run(rate)
    if limits.paused:
        bounds[limits.paused] = 0
    bound, allowed = min(bounds.items(), key=lambda item: item[1])
    return max(0, allowed), bound


# --- Down -----------------------------------------------------------------------------------------


def _idle_too_long(fleet: _Fleet, used: frozenset[str], over: Sequence[Node]) -> list[Node]:
    """Return the nodes to drain because no trial used them for `idle_minutes`.

    Nodes in `used` stay, because waiting trials will use them. Nodes in `over` are left out,
    because they end in any case. At least `limits.min_nodes` nodes without sick GPUs stay.
    """
    going = {node.id for node in over}
    staying = [node for node in fleet.nodes if node.id not in going]
    rested = [
        node
        for node in staying
        if fleet.phase(node) in {"idle", "sick"}
        and node.id not in used
        and fleet.idle_minutes(node) >= fleet.limits.idle_minutes
    ]
    sick = [node for node in rested if fleet.phase(node) == "sick"]
    spare = [node for node in rested if fleet.phase(node) == "idle"]
    spare.sort(key=lambda n: (-fleet.price(n), -fleet.idle_minutes(n), n.id))
    dispensable = sum(fleet.phase(node) in OPEN for node in staying) - fleet.limits.min_nodes
    return sick + spare[: max(0, dispensable)]


def _over_the_hour_cap(fleet: _Fleet) -> list[Node]:
    going, limits = fleet.release_order(), fleet.limits
    rate = fleet.rate(fleet.not_in_phases(LEAVING))
    over: list[Node] = []
    for node in going:
        if limits.affordable_in_hour(rate) >= 0:
            break
        over.append(node)
        rate -= fleet.price(node)
    return over


def decide_downscale(count: int, nodes: Sequence[Node], limits: Limits, now: datetime) -> Decision:
    """Return what to drain and terminate so that `count` nodes stay, as a person has asked.

    Nodes with sick GPUs go first, then nodes that still boot, then idle ones, then busy ones.
    """
    fleet = _Fleet(nodes, limits, now)
    surplus = max(0, len(fleet.not_in_phases(LEAVING)) - count)
    return _decide_removal(
        fleet, fleet.release_order()[:surplus], f"the fleet is scaled to {count} node(s)"
    )


def left_alone(
    demand: Demand, nodes: Sequence[Node], limits: Limits, reason: str, now: datetime
) -> Decision:
    """Return the nodes to drain and terminate when the fleet's autoscaler ends.

    A node stays if it is busy, or if a waiting trial of any run will use it. At least
    `limits.min_nodes` nodes without sick GPUs stay.
    """
    fleet = _Fleet(nodes, limits, now)
    used = pack(demand.idle, fleet.free_rooms(), limits.room, 0).used
    going = [n for n in fleet.release_order() if fleet.phase(n) != "busy" and n.id not in used]
    sick = [node for node in going if fleet.phase(node) == "sick"]
    spare = [node for node in going if fleet.phase(node) != "sick"]
    dispensable = max(0, len(fleet.in_phases(OPEN)) - limits.min_nodes)
    found = _decide_removal(fleet, sick + spare[:dispensable], reason)
    return replace(found, drain=tuple(replace(one, only_idle=True) for one in found.drain))


def _decide_removal(fleet: _Fleet, going: Sequence[Node], reason: str) -> Decision:
    """Return the decision to end the nodes `going`, and all late, lost or drained nodes.

    Nodes of `going` that are in the pool are drained, all others terminated at once.
    """
    gone = (
        Removal(instance=node.id, reason=_gone_reason(node, fleet.limits, fleet.now))
        for node in fleet.in_phases(GONE)
    )
    drain = (Removal(instance=node.id, reason=reason) for node in going if node.machine)
    coming = (Removal(instance=node.id, reason=reason) for node in going if not node.machine)
    return Decision(drain=tuple(drain), terminate=(*gone, *coming))


# --- Why ------------------------------------------------------------------------------------------


def _gone_reason(node: Node, limits: Limits, now: datetime) -> str:
    if node.instance.state not in {"pending", "running"}:
        return f"it is {node.instance.state}"
    if node.machine is not None:
        return ": ".join(filter(None, ("it is drained", node.machine.drain_explanation)))
    if node.seen is not None:
        return f"the pool has not seen it for {_minutes(node.seen, now):.0f} minutes"
    return f"it has not joined within {limits.boot_minutes:g} minutes of its launch"


def _was_idle(fleet: _Fleet, node: Node) -> Removal:
    reason = f"idle for {fleet.idle_minutes(node):.0f} minutes"
    if fleet.phase(node) == "sick" and node.machine:
        reason = node.machine.probe_text
    return Removal(instance=node.id, reason=reason, only_idle=True)


def _unfit_text(packing: Packing, room: Resources) -> str:
    if not packing.unfit:
        return ""
    jobs, need = sum(group.jobs for group in packing.unfit), packing.unfit[0].need
    return (
        f"{jobs} trial(s) ask for more than a node has, e.g. {need};"
        f" a new node has {room}: choose larger instance types, or request less"
    )


def _minutes(since: datetime, now: datetime) -> float:
    return (now - since) / timedelta(minutes=1)
