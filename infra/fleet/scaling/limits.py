"""Within what a fleet is scaled: counts, times, and what it may cost."""

from __future__ import annotations

from dataclasses import dataclass

from trialfleet.infra.fleet.spec.price_cap import UNBOUNDED, nodes_within
from trialfleet.infra.pool.machines import Room


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Within what the fleet is scaled.

    Attributes:
        min_nodes: nodes to keep even when nothing waits.
        max_nodes: instances at most, those on their way out among them.
        idle_minutes: for how long a node is idle before it is drained.
        boot_minutes: for how long a node may take to join.
        room: what a new node has.
        price: USD per hour of a new node.
        hour_cap: USD per hour of all nodes; None: no cap.
        run_cap: USD of all nodes since the run began; None: no cap.
        reserve: the share of run_cap that is kept for the full trainings.
        spent: USD of all nodes since the run began.
        paused: why no node may be asked for just now, in words; empty: it may.
    """

    min_nodes: int
    max_nodes: int
    idle_minutes: float
    boot_minutes: float
    room: Room
    price: float
    hour_cap: float | None = None
    run_cap: float | None = None
    reserve: float = 0.0
    spent: float = 0.0
    paused: str = ""

    def run_pays_for(self, rate: float) -> int:
        """Return how many new nodes the rest of the run's cap pays for until they are of use.

        `rate` is USD per hour of the nodes that there are.
        """
        if self.run_cap is None:
            return UNBOUNDED
        left = self.run_cap - self.spent
        return nodes_within(left * 60 / self.boot_minutes, rate, self.price)
