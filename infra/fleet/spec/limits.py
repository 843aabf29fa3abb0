"""A fleet's limits, and how many more nodes its caps on costs allow.

The autoscaler checks the hourly cap twice: when it decides on launches, by the price of the best
candidate for which the caps pay, and at a launch, by the prices of all requested candidates and of
all nodes that AWS lists. Only the first check can say why trials wait. `fleet up` makes only the
second check.
"""

from __future__ import annotations

from dataclasses import dataclass

from trialfleet.infra.pool.machines import Resources

NO_MONEY = "no money is left: "  # prefix of the reason for which a trial's job is removed
UNBOUNDED = 1_000_000
_ROUNDING = 1e-9  # so that a cap of 0.3 allows three nodes that cost 0.1 each


def affordable_nodes(cap: float | None, used: float, price: float) -> int:
    """Return how many more nodes a cap on costs per hour allows.

    The present nodes cost `used`, and a new node costs `price`. All amounts are in USD per hour.
    Return UNBOUNDED without a cap, and -1 if the present nodes exceed the cap.
    """
    if cap is None:
        return UNBOUNDED
    if cap - used < -_ROUNDING:
        return -1
    return int((cap - used) / price + _ROUNDING) if price > 0 else UNBOUNDED


def run_cap_reached(cap: float | None, spent: float) -> str:
    """Return why a run must end, or an empty text if its cap on costs is not reached."""
    if cap is None or spent < cap:
        return ""
    return f"the run's cap of ${cap:.2f} is reached: ${spent:.2f} is spent"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits that a fleet must keep, and what is known of its costs.

    Attributes:
        max_nodes: maximum number of living instances, including those that are draining.
        boot_minutes: time that a node may take to join the pool.
        room, price: the resources of a new node, and its price in USD per hour.
        hour_cap: maximum USD per hour of all nodes, or None without a cap.
        run_cap: maximum USD of all nodes since the run began, or None without a cap.
        spent: USD of all nodes since the run began.
        reserve: the share of `run_cap` that is kept for the full trainings.
        paused: why no node may be launched. Empty if launches are allowed.
    """

    min_nodes: int
    max_nodes: int
    idle_minutes: float
    boot_minutes: float
    room: Resources
    price: float
    hour_cap: float | None = None
    run_cap: float | None = None
    reserve: float = 0.0
    spent: float = 0.0
    paused: str = ""

    def affordable_nodes(self, rate: float) -> int:
        """Return how many new nodes both caps allow if existing nodes cost `rate` USD per hour."""
        return min(self.affordable_in_hour(rate), self.affordable_in_run(rate))

    def affordable_in_hour(self, rate: float) -> int:
        """Return how many new nodes `hour_cap` allows. -1 if the existing nodes exceed it."""
        return affordable_nodes(self.hour_cap, rate, self.price)

    def affordable_in_run(self, rate: float) -> int:
        """Return how many new nodes can boot before `run_cap` is used up.

        Existing nodes cost `rate` USD per hour. Return UNBOUNDED without a cap, and -1 if the
        existing nodes alone use up the cap within `boot_minutes`.
        """
        if self.run_cap is None:
            return UNBOUNDED
        left = self.run_cap - self.spent
        return affordable_nodes(left * 60 / self.boot_minutes, rate, self.price)
