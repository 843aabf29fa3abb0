"""A fleet with an AWS account, a pool and a clock of its own, in which an autoscaler steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.fleet.mock_aws.moto_account import Account, account, candidate, fleet, inputs
from tests.fleet.mock_aws.nodes_at_hand import ONE_GPU, pool_node
from trialfleet.errors import FleetError, PoolError
from trialfleet.infra.fleet.htcondor.demand import Demand, Group, PoolView
from trialfleet.infra.fleet.instances import inventory
from trialfleet.infra.fleet.scaling.autoscaler import Autoscaler, Connections
from trialfleet.infra.fleet.scaling.price_cap_stop import PriceCapStop
from trialfleet.infra.fleet.scaling.scaling_decision import Removal
from trialfleet.infra.fleet.spec.machines import Candidate, Instance
from trialfleet.infra.pool.machines import Machine


class World:
    """An autoscaler's surroundings, and the results of its acts.

    Attributes:
        pool: the nodes that the collector knows.
        waiting: trials that wait for a slot.
        waiting_since: since when the first of them does.
        candidates: where nodes may be had; none: that can't be found out.
        troubles: the errors of AWS regions without candidates.
        silent: the pool does not answer.
        unwilling: why no node can be drained; empty: each can.
        undrainable: an instance of whose node that can't even be asked.
        finals: whether those that wait are full trainings.
        ends: whether the queue lets trials be removed.
        stops: what the autoscaler had end of which run; trials that wait are gone then.
        messages: what the autoscaler told of its doings.
    """

    def __init__(self, account: Account, **changes: Any) -> None:
        self.account = account
        self.fleet = fleet(**{"zones": ["eu-west-1a"], **changes})
        self.now = datetime.now(UTC)
        self.ticks = 0.0
        self.pool: dict[str, Machine] = {}
        self.waiting = 0
        self.waiting_since: datetime | None = None
        self.candidates: list[Candidate] = [candidate()]
        self.troubles: list[str] = []
        self.silent = False
        self.finals = False
        self.ends = True
        self.unwilling = ""
        self.undrainable = ""
        self.stops: list[tuple[str, PriceCapStop]] = []
        self.messages: list[str] = []

    def autoscaler(self, run: str = "") -> Autoscaler:
        """Return a new one: the manager may have been restarted."""
        return Autoscaler(
            self.account.aws, self.fleet, self.connections(), run=run, progress=self.messages.append
        )

    def connections(self) -> Connections:
        """Return the autoscaler's connections to its surroundings."""
        return Connections(
            inputs=lambda _aws, _fleet: inputs(),
            choose=lambda _aws, _fleet, tell: self._choose(tell),
            read_run=lambda _fleet, _run: self._look(),
            end=self._end,
            drain=self._drain,
            clock=lambda: self.now,
            ticks=lambda: self.ticks,
        )

    def later(self, *, minutes: float) -> None:
        self.now += timedelta(minutes=minutes)
        self.ticks += 60 * minutes

    def set_clock(self, *, minutes: float) -> None:
        """Set the manager's clock, so that it shows so much more, or less."""
        self.now += timedelta(minutes=minutes)

    def living(self) -> list[Instance]:
        return inventory.instances(self.account.aws, self.fleet)

    def join(self, *, idle: float | None = 0, **changes: Any) -> list[str]:
        """Let every instance join that hasn't."""
        new = [i.id for i in self.living() if i.id not in self.pool]
        for name in new:
            since = None if idle is None else self.now - timedelta(minutes=idle)
            self.pool[name] = replace(pool_node(name, idle=idle), idle_since=since, **changes)
        return new

    def change(self, name: str, **changes: Any) -> None:
        self.pool[name] = replace(self.pool[name], **changes)

    def _choose(self, tell: Callable[[str], object]) -> Sequence[Candidate]:
        for trouble in self.troubles:
            tell(trouble)
        if not self.candidates:
            raise FleetError("no candidate is left:\n  g5.xlarge costs more than the ceiling")
        return self.candidates

    def _look(self) -> PoolView:
        if self.silent:
            raise PoolError("the collector does not answer")
        group = Group(need=ONE_GPU, jobs=self.waiting, since=self.waiting_since)
        running = any(node.idle_since is None for node in self.pool.values())
        demand = Demand(
            idle=(group,) if self.waiting else (),
            active=(Group(need=ONE_GPU, jobs=1),) if running else (),
        )
        return PoolView(nodes=tuple(self.pool.values()), demand=demand)

    def _end(self, run: str, stop: PriceCapStop) -> int:
        if not self.ends:
            raise PoolError("the schedd does not answer")
        self.stops.append((run, stop))
        if self.finals and not stop.finals:
            return 0
        ended, self.waiting = self.waiting, 0
        return ended

    def _drain(self, node: Machine, removal: Removal) -> str:
        if node.instance == self.undrainable:
            raise PoolError("condor_drain is not on PATH")
        if not self.unwilling:
            reason = f"trialfleet: {removal.reason}"
            self.change(node.instance, draining=True, drain_reason=reason)
        return self.unwilling


@contextmanager
def world(**changes: Any) -> Iterator[World]:
    """Give an empty world."""
    with account() as own:
        yield World(own, **changes)
