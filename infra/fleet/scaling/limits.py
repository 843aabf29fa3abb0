"""Within what a fleet is scaled: counts, times, and what it may cost.

Trials may spend a run's cap but for a reserve. Once they have, those of the run that wait or run
end, and the reserve pays for the full training of each region's best settings. At the cap all of it
ends.
"""

from __future__ import annotations

from dataclasses import dataclass

from trialfleet.infra.fleet.spec.price_cap import UNBOUNDED, nodes_within, run_cap_reached
from trialfleet.infra.pool.machines import Room

NO_MONEY = "no money is left: "  # how the reason begins with which a trial's job is removed


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


@dataclass(frozen=True, kw_only=True)
class Stop:
    """The end of a run's trials for want of money.

    Attributes:
        reason: why, for people.
        finals: the full trainings end with them.
    """

    reason: str
    finals: bool


def required_stop(limits: Limits, nodes: int, wanted: bool) -> Stop | None:
    """Return what of a run has to end, if anything.

    Args:
        limits: the run's cap, what is spent of it and what a new node costs.
        nodes: the number of instances that cost money.
        wanted: whether anything waits for a node.
    """
    cap, spent = limits.run_cap, limits.spent
    if cap is None:
        return None
    reason, share = run_cap_reached(cap, spent), cap * (1 - limits.reserve)
    if not reason and wanted and not nodes and limits.run_pays_for(0.0) < 1:
        # Nothing costs anything any more, so that the cap would never be reached.
        reason = (
            f"${cap - spent:.2f} of the run's cap of ${cap:.2f} is less than a new node costs "
            f"until it is of use (${limits.price:.2f} per hour, {limits.boot_minutes:g} minutes)"
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
