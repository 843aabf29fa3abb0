"""A year of spot nodes: trials per dollar, if pools are chosen by experience or by price.

Prices and interruptions are generated with a seed. Prices are AWS's on-demand prices with a
discount of 40 to 70 %, which drifts from day to day. Hours between interruptions of a node, by pool
(an instance type in a zone):

- `traces`: half the pools 1 to 2.5, the others 4 to 23. That is how long V100 nodes lasted in the
  zones that https://github.com/skypilot-org/spot-traces has records of (NSDI '24, "Can't Be Late").
- `advisor`: half 5 %, half 20 % of nodes a month, the outer bands of AWS's Spot Instance Advisor.
- `alike`: 8 in every pool.

Of a request's pools, AWS itself chooses by its free capacity, which only AWS knows. Here it chooses
the pool that is cheapest per weighted unit. Interruptions are memoryless, so avoiding a pool for a
while after one has no benefit here.
"""

from __future__ import annotations

import argparse
import heapq
import math
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count

from trialfleet.infra.fleet.choice import interruption_history
from trialfleet.infra.fleet.instances import fleet_request, launch
from trialfleet.infra.fleet.scaling import instance_costs
from trialfleet.infra.fleet.scaling.instance_costs import Lifetime
from trialfleet.infra.fleet.spec.machines import Candidate, InstanceType, Pool

BOOT = 0.1  # hours until a node takes a trial
TYPES = {"g5.xlarge": 1.006, "g5.2xlarge": 1.212, "g5.4xlarge": 1.624}  # USD/h, one A10G each
ZONES = ("a", "b", "c", "d")
FIRST = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Scenario:
    """A year's conditions: hours between interruptions of good and bad pools, and the trials."""

    bad: tuple[float, float]
    good: tuple[float, float]
    hours: float
    checkpoint: float = math.inf  # hours between checkpoints: none
    lost_minutes: float = 10  # the study's value for them


MONTH = 730.0
ADVISOR = (MONTH / -math.log(0.8),) * 2, (MONTH / -math.log(0.95),) * 2
SCENARIOS = {
    "traces, trials of 2 h without checkpoints": Scenario((1, 2.5), (4, 23), 2, lost_minutes=60),
    "traces, trials of 1 h without checkpoints": Scenario((1, 2.5), (4, 23), 1, lost_minutes=30),
    "traces, checkpoints each 6 minutes": Scenario((1, 2.5), (4, 23), 1, 0.1, lost_minutes=3),
    "advisor, trials of 2 h without checkpoints": Scenario(*ADVISOR, 2, lost_minutes=60),
    "alike, trials of 2 h without checkpoints": Scenario((8, 8), (8, 8), 2, lost_minutes=60),
    "alike, checkpoints each 6 minutes": Scenario((8, 8), (8, 8), 1, 0.1, lost_minutes=3),
}


@dataclass
class Market:
    """The pools of a year."""

    scenario: Scenario
    seed: int
    lasting: dict[Pool, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        draw = random.Random(self.seed)  # noqa: S311 - a replay
        pools: list[Pool] = [(kind, f"eu-west-1{zone}", "spot") for kind in TYPES for zone in ZONES]
        bad = set(draw.sample(pools, len(pools) // 2))
        for pool in pools:
            low, high = self.scenario.bad if pool in bad else self.scenario.good
            self.lasting[pool] = math.exp(draw.uniform(math.log(low), math.log(high)))
        level = {pool: draw.uniform(0.3, 0.6) for pool in pools}
        shift = dict.fromkeys(pools, 0.0)
        self._prices: list[dict[Pool, float]] = []
        for _ in range(366):
            shift = {pool: 0.9 * shift[pool] + draw.gauss(0, 0.02) for pool in pools}
            self._prices.append(
                {one: TYPES[one[0]] * max(0.2, level[one] + shift[one]) for one in pools}
            )

    def candidates(self, now: datetime) -> list[Candidate]:
        """Return what AWS offers, the cheapest first."""
        prices = self._prices[min((now - FIRST).days, len(self._prices) - 1)]
        return sorted((_candidate(one, prices[one]) for one in prices), key=lambda c: c.cost)


def _candidate(pool: Pool, price: float) -> Candidate:
    kind = InstanceType(
        name=pool[0],
        vcpus=4,
        memory_mb=16_384,
        gpus=1,
        gpu="A10G",
        gpu_memory_mb=24_576,
        architecture="x86_64",
    )
    return Candidate(type=kind, aws_region="eu-west-1", zone=pool[1], lifecycle="spot", price=price)


Choose = Callable[[list[Candidate], list[Lifetime], datetime], Candidate]


def avoiding(candidates: list[Candidate], records: list[Lifetime], now: datetime) -> Candidate:
    """Return the cheapest pool, if possible without an interruption in the last 15 minutes."""
    shunned = {
        one.pool
        for one in records[-50:]
        if one.taken_back and now - one.taken_back < interruption_history.RECENT
    }
    return min(candidates, key=lambda one: (one.pool in shunned, one.price))


def cheapest(candidates: list[Candidate], _: list[Lifetime], __: datetime) -> Candidate:
    """Return the cheapest pool."""
    return min(candidates, key=lambda one: one.price)


def learning(
    candidates: list[Candidate],
    records: list[Lifetime],
    now: datetime,
    *,
    lost_minutes: float = 10,
) -> Candidate:
    """Return the cheapest pool per weight in the request that trialfleet's history makes."""
    known = instance_costs.learn_history(records, now).apply(candidates, lost_minutes)
    first = next(launch.requests(sorted(known, key=lambda one: one.cost), one_type=False))
    weights = fleet_request.pool_weights(first)
    return min(first, key=lambda one: one.price / weights[one])


@dataclass
class _Node:
    pool: Pool
    price: float
    launched: datetime
    taken_back: datetime
    left: float = 0.0  # hours that the trial took yet which it runs; 0: it runs none
    begun: datetime = FIRST


def trials_per_dollar(
    market: Market, choose: Choose, *, nights: int, trials: int, nodes: int
) -> float:
    """Return the number of trials per dollar that a year of nights finishes."""
    draw = random.Random(market.seed + 1)  # noqa: S311 - a replay
    records, cost = list[Lifetime](), 0.0
    for night in range(nights):
        cost += _night(market, choose, records, draw, FIRST + timedelta(days=night), trials, nodes)
        oldest = FIRST + timedelta(days=night - 40)
        records[:] = [one for one in records if oldest < one.end_time(oldest)]
    return nights * trials / cost


def _night(
    market: Market,
    choose: Choose,
    records: list[Lifetime],
    draw: random.Random,
    begin: datetime,
    trials: int,
    nodes: int,
) -> float:
    waiting, cost, number = [market.scenario.hours] * trials, 0.0, count()
    events: list[tuple[datetime, int, _Node]] = []

    def start(now: datetime) -> None:
        chosen = choose(market.candidates(now), records, now)
        lasts = timedelta(hours=draw.expovariate(1 / market.lasting[chosen.pool]))
        node = _Node(chosen.pool, chosen.price, now, now + lasts)
        ready = min(now + timedelta(hours=BOOT), node.taken_back)
        heapq.heappush(events, (ready, next(number), node))

    for _ in range(nodes):
        start(begin)
    while events:
        now, _, node = heapq.heappop(events)
        interrupted = now >= node.taken_back
        if interrupted and node.left:
            waiting.append(_left(market.scenario, node, now))
        if not interrupted and waiting:
            node.left, node.begun = waiting.pop(), now
            ends = min(now + timedelta(hours=node.left), node.taken_back)
            heapq.heappush(events, (ends, next(number), node))
            continue
        cost += node.price * ((now - node.launched) / timedelta(hours=1))
        records.append(
            Lifetime(
                type=node.pool[0],
                zone=node.pool[1],
                lifecycle=node.pool[2],
                price=node.price,
                launched=node.launched,
                ended=now,
                taken_back=now if interrupted else None,
            )
        )
        if interrupted and waiting:
            start(now)
    return cost


def _left(scenario: Scenario, node: _Node, now: datetime) -> float:
    """Return the hours that an interrupted trial still needs."""
    if math.isinf(scenario.checkpoint):
        return node.left
    done = (now - node.begun) / timedelta(hours=1)
    return node.left - math.floor(done / scenario.checkpoint) * scenario.checkpoint


def main() -> None:
    """Print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--nights", type=int, default=365)
    parser.add_argument("--trials", type=int, default=32, help="of a night")
    parser.add_argument("--nodes", type=int, default=8)
    given = parser.parse_args()
    size = {"nights": given.nights, "trials": given.trials, "nodes": given.nodes}
    print(f"{'trials per dollar, as a ratio to':<44}{'cheapest first':>24}{'… avoiding':>24}")
    for name, scenario in SCENARIOS.items():
        against: dict[str, list[float]] = {"cheapest": [], "avoiding": []}
        for seed in range(given.seeds):
            market = Market(scenario, seed)
            ours = partial(learning, lost_minutes=scenario.lost_minutes)
            finished = trials_per_dollar(market, ours, **size)
            for rival in (cheapest, avoiding):
                plain = trials_per_dollar(market, rival, **size)
                against[rival.__name__].append(finished / plain)
        print(f"{name:<44}{_summary(against['cheapest']):>24}{_summary(against['avoiding']):>24}")
        sys.stdout.flush()


def _summary(ratios: list[float]) -> str:
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    return f"{mean:.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


if __name__ == "__main__":
    main()
