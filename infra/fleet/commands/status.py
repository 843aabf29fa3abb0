"""`fleet status`: a fleet's nodes as AWS and the pool see them, and why some aren't in the pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from trialfleet.errors import PoolError
from trialfleet.infra.fleet.aws.clients import Aws
from trialfleet.infra.fleet.commands.boot_log import last_messages
from trialfleet.infra.fleet.htcondor import demand as pool_demand
from trialfleet.infra.fleet.htcondor.demand import Demand, PoolView
from trialfleet.infra.fleet.instances import inventory
from trialfleet.infra.fleet.lifecycle import up
from trialfleet.infra.fleet.scaling.cost_record import updated_record
from trialfleet.infra.fleet.scaling.last_report import current_report
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.infra.fleet.spec.machines import Instance
from trialfleet.infra.pool.machines import Machine

# asked: AWS starts it · booted: it runs but is not in the pool · joined: it takes trials
Stage = Literal["asked", "booted", "joined", "sick", "draining", "ending", "ended"]
_ENDS = {
    "Client.UserInitiatedShutdown": "somebody terminated it",
    "Client.InstanceInitiatedShutdown": "it switched itself off",
}


@dataclass(frozen=True, kw_only=True)
class NodeStatus:
    """An EC2 instance, together with what the pool knows of it.

    Attributes:
        machine: the node in the pool. None if it isn't there, or if the pool doesn't answer.
        boot_message: last line of the node's boot log or console. Empty if the node is in the pool.
        cost: USD so far.
        ended_by: why it has ended, as the fleet's record of costs says. Empty if unknown.
    """

    instance: Instance
    machine: Machine | None
    at: datetime
    boot_message: str
    cost: float
    ended_by: str = ""
    pool_answers: bool = True

    @property
    def stage(self) -> Stage:
        """The stage that the node has reached between its launch and its end."""
        if not self.instance.is_alive:
            return "ended" if self.instance.state == "terminated" else "ending"
        if self.instance.state != "running" or self.machine is None:
            return "asked" if self.instance.state == "pending" else "booted"
        state = self.machine.state()
        return "joined" if state == "well" else state

    @property
    def reason(self) -> str:
        """The reason why the node, or some of its GPUs, takes no trials; empty if they do."""
        stage, state, logged = self.stage, self.instance.state, self.boot_message
        if self.machine is not None and stage in {"draining", "sick", "joined"}:
            why = self.machine.explanation()
            return f"draining: {why or 'no reason given'}" if stage == "draining" else why
        if stage == "asked":
            return "AWS is starting it"
        if stage == "booted" and not self.pool_answers:
            return "the pool can't be asked"
        if stage == "booted" and state == "running":
            since = f"{self.age_minutes:.0f} minutes after its launch"
            if self.is_late:
                since += f", longer than the {up.BOOT_MINUTES} minutes allowed"
            return f"not in the pool {since}; {logged or 'no boot log so far'}"
        ends = {"ending": "AWS is ending it", "ended": "it has ended"}
        if stage not in ends:
            return "; ".join(filter(None, (f"it is {state}", logged)))
        return ": ".join(filter(None, (ends[stage], self._end_reason)))

    @property
    def _end_reason(self) -> str:
        if self.instance.was_taken_back:
            return f"AWS took the spot instance back ({self.instance.ended})"
        if self.ended_by:
            return self.ended_by
        ended = _ENDS.get(self.instance.ended.partition(":")[0], self.instance.ended)
        return "; ".join(filter(None, (ended, self.boot_message)))

    @property
    def age_minutes(self) -> float:
        """Minutes since the node's launch."""
        return (self.at - self.instance.launched) / timedelta(minutes=1)

    @property
    def is_late(self) -> bool:
        """True if the node's age exceeds the time that a node may take to join the pool."""
        return self.age_minutes >= up.BOOT_MINUTES

    @property
    def gpus(self) -> int | None:
        """The number of GPUs of the node, or None while it isn't in the pool."""
        return self.machine.total.gpus // self.machine.shares if self.machine else None

    def to_json(self) -> dict[str, Any]:
        """Return the status for JSON: `instance` as AWS sees it, `machine` as the pool sees it."""
        return {
            "instance": self.instance,
            "stage": self.stage,
            "why": self.reason,
            "age_minutes": self.age_minutes,
            "cost": self.cost,
            "gpus": self.gpus,
            "machine": self.machine,
        }


@dataclass(frozen=True, kw_only=True)
class FleetStatus:
    """A fleet at one moment.

    Attributes:
        nodes: oldest first, including those that ended in about the last hour.
        demand: what the trials in the queue request, or None if the pool does not answer.
        price_per_hour: USD per hour of all living nodes.
        spent: USD of all nodes since `since`, including ended ones.
        since: when the run began. If None, `spent` has all costs in the fleet's record.
        silent: the errors of AWS regions that did not list their nodes, by region. Nodes there are
            missing in `nodes`.
        notices: what else could not be read, such as an unreachable pool, and why the autoscaler
            launches no nodes.
    """

    fleet: str
    at: datetime
    nodes: tuple[NodeStatus, ...]
    stages: Mapping[str, int]
    demand: Demand | None
    price_per_hour: float
    spent: float
    since: datetime | None
    hour_cap: float | None
    run_cap: float | None
    min_nodes: int
    max_nodes: int
    silent: Mapping[str, str]
    notices: tuple[str, ...]

    def has_settled(self, ids: Set[str]) -> bool:
        """Return whether each node in `ids` accepts trials, is sick or late, or leaves or ended."""

        def is_settled(node: NodeStatus) -> bool:
            return node.stage not in {"asked", "booted"} or node.is_late

        return ids <= {node.instance.id for node in self.nodes if is_settled(node)}

    def unfit_nodes(self, ids: Set[str]) -> list[NodeStatus]:
        """Return the nodes in `ids` that accept no trials, except those that drain on purpose."""
        fit = {"joined", "draining"}
        return [node for node in self.nodes if node.instance.id in ids and node.stage not in fit]

    def to_json(self) -> dict[str, Any]:
        """Return the status as JSON data."""
        nodes = [node.to_json() for node in self.nodes]
        return {"schema": 1, **vars(self), "nodes": nodes}


def status(aws: Aws, fleet: Fleet, *, run: str = "", now: datetime | None = None) -> FleetStatus:
    """Return the present state of a fleet.

    If `run` is given, only this run's trials and the costs since its start count. Otherwise the
    trials of all runs and all recorded costs count. FleetError if no AWS region lists its nodes.
    """
    now = now or datetime.now(UTC)
    fleet, unknown = inventory.with_earlier_regions(aws, fleet)  # nodes there still cost money
    listing = inventory.list_by_region(aws, fleet)
    if len(listing.silent) == len(fleet.aws_regions):
        raise listing.silent[fleet.home]
    instances = listing.instances
    record, cost_notice = updated_record(aws, fleet, listing, now)
    since = record.runs.get(run)
    view, pool_notice = _read_pool(fleet, run)
    here = {node.instance: node for node in view.nodes} if view else {}
    absent = [i for i in instances if i.id not in here and i.state != "pending"]
    messages = last_messages(aws, fleet, absent)
    nodes = tuple(
        NodeStatus(
            instance=i,
            machine=here.get(i.id),
            at=now,
            boot_message=messages.get(i.id, ""),
            cost=record.lifetimes[i.id].cost(now),
            ended_by=record.lifetimes[i.id].why,
            pool_answers=view is not None,
        )
        for i in instances
    )
    return FleetStatus(
        fleet=fleet.full_name,
        at=now,
        nodes=nodes,
        stages=dict(sorted(Counter(node.stage for node in nodes).items())),
        demand=view.demand if view else None,
        price_per_hour=sum(i.price or 0.0 for i in instances if i.is_alive),
        spent=record.cost(now, since),
        since=since,
        hour_cap=fleet.price_cap.hour,
        run_cap=fleet.price_cap.run,
        min_nodes=fleet.nodes.min,
        max_nodes=fleet.nodes.max,
        silent={aws_region: str(error) for aws_region, error in listing.silent.items()},
        notices=(
            *filter(None, (pool_notice, cost_notice, unknown)),
            *_autoscaler_notices(fleet.full_name, run),
        ),
    )


def _autoscaler_notices(fleet: str, run: str) -> list[str]:
    """Return what the autoscaler on this machine last reported on nodes that it can't start."""
    report = current_report(fleet, run) or {}
    lines = {
        "scaling": (report.get("step") or {}).get("notes") or (),
        "failing": [report.get("error")],
    }
    found = lines.get(str(report.get("state")), ())
    return [f"the autoscaler, at {report.get('at')}: {line}" for line in found]


def _read_pool(fleet: Fleet, run: str) -> tuple[PoolView | None, str]:
    try:
        return pool_demand.read_pool(fleet.full_name, run), ""
    except PoolError as error:
        return None, f"the pool can't be asked, so it is unknown which nodes are in it: {error}"
