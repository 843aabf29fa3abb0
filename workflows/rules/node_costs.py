"""The costs of a fleet's EC2 nodes, split into jobs, boot time and idle time, by run.

For each node with its price p and its life from launch to end:

    total = p · life, which is also the node's cost in the fleet's record (cost_record.py)
    jobs  = the sum of the costs of its jobs                              (slot_price.py)
    boot  = p · (joined - launched), at most total - jobs
    idle  = total - jobs - boot

So a fleet's items add up to the cost in the fleet's record. If the jobs of a node cost more than
its total, according to the logs, their costs are scaled down to the total. This happens if trials
with and without GPUs shared the node, because their shares may add up to more than 1. It also
happens if the node ended earlier than the logs say.

Boot and idle time is charged to the runs and regions that used the node, in proportion to their
jobs' costs. If no run used the node, the run for which it was launched is charged. For a node
without a price, no boot or idle time is charged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from trialfleet.infra.fleet.scaling.instance_costs import Lifetime
from trialfleet.workflows.facts.jobs.slot_price import HOUR
from trialfleet.workflows.rules.cost_sums import CostItem, Kind


def add_node_costs(
    items: Iterable[CostItem], lifetimes: Mapping[str, Lifetime], now: datetime
) -> list[CostItem]:
    """Return the costs of jobs, with the costs of EC2 nodes' boot and idle time added.

    `items` are the costs of jobs. `lifetimes` has the lifetime of each node, by EC2 instance.
    Running nodes are charged until `now`, or until their leases end if that is earlier.
    """
    by_node: dict[str, list[CostItem]] = {name: [] for name in lifetimes}
    found: list[CostItem] = []
    for item in items:
        by_node.get(item.instance or "", found).append(item)
    for name, jobs in by_node.items():
        found += _node(name, lifetimes[name], jobs, now)
    return found


def _node(name: str, life: Lifetime, jobs: Sequence[CostItem], now: datetime) -> list[CostItem]:
    if life.price is None:
        return list(jobs)
    until = life.end_time(now)
    total = life.cost(until)
    used = sum(job.usd or 0.0 for job in jobs)
    part = min(1.0, total / used) if used else 1.0
    paid = [job if job.usd is None else replace(job, usd=job.usd * part) for job in jobs]
    rest = max(0.0, total - used * part)
    joined = life.joined or until
    booting = life.price * max(0.0, (joined - life.launched) / timedelta(hours=1))
    boot = min(rest, booting)
    overhead = {Kind.BOOT: boot, Kind.IDLE: rest - boot}
    whose = paid if used else [CostItem(run=life.run, kind=Kind.IDLE, seconds=0, usd=1.0)]
    return [
        *paid,
        *(
            replace(one, kind=kind, usd=usd, seconds=usd / life.price * HOUR, instance=name)
            for kind, whole in overhead.items()
            if whole > 0 and life.price > 0
            for one, usd in _divide_cost(whole, whose)
        ),
    ]


def _divide_cost(usd: float, jobs: Sequence[CostItem]) -> list[tuple[CostItem, float]]:
    shares: dict[CostItem, float] = {}
    for job in jobs:
        whose = replace(job, kind=Kind.IDLE, seconds=0.0, usd=None, instance=None)
        shares[whose] = shares.get(whose, 0.0) + (job.usd or 0.0)
    whole = sum(shares.values())
    return [(one, usd * share / whole) for one, share in shares.items() if share]
