"""The limits of a fleet: numbers, times and costs.

Trials may spend a run's cap minus a reserve. Then the run's waiting and running trials end, and the
reserve pays for the full training of each region's best parameters. At the cap the whole run ends.
"""

from __future__ import annotations

from dataclasses import dataclass

from trialfleet.infra.fleet.spec.price_cap import UNBOUNDED, nodes_within, run_cap_reached
from trialfleet.infra.pool.machines import Room

NO_MONEY = "no money is left: "  # prefix of the reason for which a trial's job is removed


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of a fleet.

    Attributes:
        max_nodes: maximum number of instances, including those that are leaving.
        idle_minutes: idle time after which a node is drained.
        boot_minutes: time that a node may take to join.
        room, price: resources and USD per hour of a new node.
        hour_cap: USD per hour of all nodes.
        run_cap, spent: USD of all nodes since the run began.
        reserve: the share of run_cap that is kept for the full trainings.
        paused: why launches are paused; empty if they are not.
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
        """Return how many new nodes the rest of the cap pays during a boot.

        Existing nodes cost `rate` USD per hour.
        """
        if self.run_cap is None:
            return UNBOUNDED
        left = self.run_cap - self.spent
        return nodes_within(left * 60 / self.boot_minutes, rate, self.price)


@dataclass(frozen=True, kw_only=True)
class Stop:
    """The end of a run's trials because its money is spent; `finals`: full trainings end, too."""

    reason: str
    finals: bool


def required_stop(limits: Limits, nodes: int, wanted: bool) -> Stop | None:
    """Return which jobs of a run have to end; None if all may continue.

    `nodes` instances cost money; `wanted` is True if a job waits for a node.
    """
    cap, spent = limits.run_cap, limits.spent
    if cap is None:
        return None
    reason, share = run_cap_reached(cap, spent), cap * (1 - limits.reserve)
    if not reason and wanted and not nodes and limits.run_pays_for(0.0) < 1:
        # Without nodes costs don't grow, so the cap would never be reached.
        reason = (
            f"${cap - spent:.2f} of the run's cap of ${cap:.2f} is less than a new node costs "
            f"until it is useful (${limits.price:.2f} per hour, {limits.boot_minutes:g} minutes)"
        )
    if reason:
        return Stop(reason=NO_MONEY + reason, finals=True)
    if spent < share:
        return None
    reason = (
        f"trials have spent ${spent:.2f}; ${cap - share:.2f} of the run's cap of ${cap:.2f} "
        "is kept for the full trainings"
    )
    return Stop(reason=NO_MONEY + reason, finals=False)
