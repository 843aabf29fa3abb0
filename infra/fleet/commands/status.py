"""A fleet as AWS and the pool see it together, and why nodes are not in the pool yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from trialfleet.errors import PoolError
from trialfleet.infra.fleet.aws.clients import Aws
from trialfleet.infra.fleet.commands.boot_log import last_messages
from trialfleet.infra.fleet.dataclass_json import plain
from trialfleet.infra.fleet.instances import inventory
from trialfleet.infra.fleet.lifecycle import up
from trialfleet.infra.fleet.pool import nodes as pool_nodes
from trialfleet.infra.fleet.pool.nodes import Demand, PoolNode, PoolView, RunningTrial
from trialfleet.infra.fleet.scaling import ledger as ledgers
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.infra.fleet.spec.machines import Instance

# asked: AWS starts it · booted: it runs and is not in the pool · joined: it takes trials
Stage = Literal["asked", "booted", "joined", "sick", "draining", "ending", "ended"]


@dataclass(frozen=True, kw_only=True)
class NodeStatus:
    """One instance, joined with what the pool knows of it.

    Attributes:
        stage: how far it is, see `Stage`.
        state: AWS's own word.
        why: what it waits for, or why it takes no trials, or not on all of its GPUs; empty while it
            does.
        price: USD per hour at launch; None if nobody knows.
        age_minutes: since its launch.
        cost: USD so far.
        expires: the end of its lease.
        gpus: GPUs that it has by its own account; None before it has joined.
        gpu: their name.
        bandwidth: copying on the GPU, measured, in GB/s; None if not measured.
        launch_microseconds: of an empty kernel; None if not measured.
        driver_option: what became of the NVIDIA module's option.
        trials: what it runs.
        idle_minutes: since its last job; None while it has one, or before it has joined.
        machine: its name in the pool.
        ended: why it ended, by AWS's code and in its words; empty while it doesn't.
    """

    instance: str
    aws_region: str
    zone: str
    type: str
    lifecycle: str
    stage: Stage
    state: str
    why: str
    price: float | None
    launched: datetime
    age_minutes: float
    cost: float
    expires: datetime | None
    address: str
    run: str
    gpus: int | None = None
    gpu: str = ""
    bandwidth: float | None = None
    launch_microseconds: float | None = None
    driver_option: str = ""
    trials: tuple[RunningTrial, ...] = ()
    idle_minutes: float | None = None
    machine: str = ""
    ended: str = ""


@dataclass(frozen=True, kw_only=True)
class FleetStatus:
    """A fleet at one moment.

    Attributes:
        nodes: its instances, oldest first, those that ended within about an hour among them.
        stages: number of nodes by stage.
        demand: what trials ask for; None while the pool can't be asked.
        price_per_hour: USD of all living nodes.
        spent: USD of all nodes since `since`, ended ones among them, as the record has it.
        since: when the run began; None: since the fleet's record began.
        unpriced: instances in that sum whose price nobody knows; they count as nothing.
        notices: what a reader should know first, e.g. that the pool can't be asked.
    """

    fleet: str
    at: datetime
    nodes: tuple[NodeStatus, ...]
    stages: Mapping[str, int]
    demand: Demand | None
    price_per_hour: float
    spent: float
    since: datetime | None
    unpriced: int
    hour_cap: float | None
    run_cap: float | None
    min_nodes: int
    max_nodes: int
    notices: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the status as plain data."""
        return {"schema": 1, **plain(asdict(self))}


def status(aws: Aws, fleet: Fleet, *, run: str = "", now: datetime | None = None) -> FleetStatus:
    """Return where a fleet stands; changes nothing.

    Cost and demand are those of `run`; without one all that the record has, and all trials.
    """
    now = now or datetime.now(UTC)
    instances = inventory.instances(aws, fleet, gone=True)
    record, cost_notice = _record(aws, fleet, instances, now)
    view, pool_notice = _look(fleet, run)
    here = {node.instance: node for node in view.nodes} if view else {}
    absent = [i for i in instances if i.id not in here and i.state != "pending"]
    words = last_messages(aws, fleet, absent)
    nodes = tuple(
        _node_status(i, here.get(i.id), words.get(i.id, ""), record, now) for i in instances
    )
    if view is None:
        why = "the pool can't be asked"
        nodes = tuple(replace(n, why=why) if n.stage == "booted" else n for n in nodes)
    return FleetStatus(
        fleet=fleet.called,
        at=now,
        nodes=nodes,
        stages=dict(sorted(Counter(node.stage for node in nodes).items())),
        demand=view.demand if view else None,
        price_per_hour=sum(i.price or 0.0 for i in instances if i.alive),
        spent=record.cost(now, record.runs.get(run)),
        since=record.runs.get(run),
        unpriced=sum(lifetime.price is None for lifetime in record.lifetimes.values()),
        hour_cap=fleet.price_cap.hour,
        run_cap=fleet.price_cap.run,
        min_nodes=fleet.nodes.min,
        max_nodes=fleet.nodes.max,
        notices=tuple(filter(None, (pool_notice, cost_notice))),
    )


def spent(aws: Aws, fleet: Fleet) -> float:
    """Return what a fleet has cost so far in USD, as far as that is known."""
    return current_record(aws, fleet).cost(datetime.now(UTC))


def current_record(aws: Aws, fleet: Fleet, now: datetime | None = None) -> ledgers.Ledger:
    """Return a fleet's record of costs, brought up to date with what AWS lists now."""
    listed = inventory.instances(aws, fleet, gone=True)
    return _record(aws, fleet, listed, now or datetime.now(UTC))[0]


def _node_status(
    instance: Instance, pool: PoolNode | None, words: str, record: ledgers.Ledger, now: datetime
) -> NodeStatus:
    stage = _stage(instance, pool)
    known = NodeStatus(
        instance=instance.id,
        aws_region=instance.aws_region,
        zone=instance.zone,
        type=instance.type,
        lifecycle=instance.lifecycle,
        stage=stage,
        state=instance.state,
        why=_why(stage, instance, pool, words, now),
        price=instance.price,
        launched=instance.launched,
        age_minutes=_minutes(instance.launched, now),
        cost=record.lifetimes[instance.id].cost(now),
        expires=instance.expires,
        address=instance.address,
        run=instance.run,
        ended=instance.ended,
    )
    if pool is None:
        return known
    return replace(
        known,
        gpus=pool.total.gpus // pool.shares,
        gpu=pool.gpu,
        bandwidth=pool.bandwidth,
        launch_microseconds=pool.launch_microseconds,
        driver_option=pool.driver_option,
        trials=pool.trials,
        idle_minutes=_minutes(pool.idle_since, now) if pool.idle_since else None,
        machine=pool.machine,
    )


def _stage(instance: Instance, pool: PoolNode | None) -> Stage:
    if not instance.alive:
        return "ended" if instance.state == "terminated" else "ending"
    if instance.state != "running" or pool is None:
        return "asked" if instance.state == "pending" else "booted"
    if pool.draining:
        return "draining"
    fit = pool.healthy is True or (pool.healthy is None and not pool.total.gpus)
    return "joined" if fit else "sick"


def _why(stage: Stage, instance: Instance, pool: PoolNode | None, words: str, now: datetime) -> str:
    if pool is not None and stage in {"draining", "sick", "joined"}:
        return _why_in_pool(stage, pool)
    if stage == "asked":
        return "AWS is starting it"
    if stage == "booted" and instance.state == "running":
        minutes = _minutes(instance.launched, now)
        since = f"{minutes:.0f} minutes after its launch"
        if minutes >= up.BOOT_MINUTES:
            since += f", which is more than the {up.BOOT_MINUTES} that it may take"
        return f"not in the pool {since}; {words or 'it has reported nothing of its boot yet'}"
    ends = {"ending": "AWS is ending it", "ended": "it has ended"}
    return "; ".join(filter(None, (ends.get(stage, f"it is {instance.state}"), words)))


def _why_in_pool(stage: Stage, pool: PoolNode) -> str:
    if stage == "draining":
        return f"draining: {pool.why_draining or 'no reason given'}"
    if stage == "sick":
        return pool.why_sick if pool.healthy is False else "its GPU has not been probed yet"
    return pool.note or pool.reason


def _record(
    aws: Aws, fleet: Fleet, instances: Sequence[Instance], now: datetime
) -> tuple[ledgers.Ledger, str]:
    """Return what was spent until now, and why that isn't all, if it isn't."""
    record, notice = ledgers.load_or_tell(aws, fleet)
    return (record or ledgers.Ledger()).noted(instances, now), notice


def _look(fleet: Fleet, run: str) -> tuple[PoolView | None, str]:
    try:
        return pool_nodes.look(fleet.called, run), ""
    except PoolError as error:
        return None, f"the pool can't be asked, so nobody knows which nodes are in it: {error}"


def _minutes(since: datetime, now: datetime) -> float:
    return (now - since) / timedelta(minutes=1)
