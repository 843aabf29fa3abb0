"""The limits of a fleet: numbers, times and costs.

Trials may spend a run's cap minus a reserve. When this amount is spent, the run's waiting and
running trials end. The reserve pays for the full trainings with the best parameters. At the cap the
whole run ends.
"""

from __future__ import annotations

from dataclasses import dataclass

from trialfleet.infra.fleet.spec.price_cap import UNBOUNDED, affordable_nodes, run_cap_reached
from trialfleet.infra.pool.machines import Room

NO_MONEY = "no money is left: "  # prefix of the reason for which a trial's job is removed


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits that a fleet must keep, and what is known of its costs.

    Attributes:
        max_nodes: maximum number of instances, those that are leaving included.
        idle_minutes: idle time after which a node is drained.
        boot_minutes: time that a node may take to join the pool.
        room, price: a new node's resources, and its USD per hour.
        hour_cap: maximum USD per hour of all nodes; None without a cap.
        run_cap: maximum USD of all nodes since the run began; None without a cap.
        spent: USD of all nodes since the run began.
        reserve: the share of `run_cap` that is kept for the full trainings.
        paused: why no node may be launched; empty if launches are allowed.
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

    def affordable_nodes(self, rate: float) -> int:
        """Return how many new nodes can boot before `run_cap` is used up.

        Existing nodes cost `rate` USD per hour. The result is UNBOUNDED without a cap, and -1 if
        the existing nodes alone use up the cap within `boot_minutes`.
        """
        if self.run_cap is None:
            return UNBOUNDED
        left = self.run_cap - self.spent
        return affordable_nodes(left * 60 / self.boot_minutes, rate, self.price)


@dataclass(frozen=True, kw_only=True)
class Stop:
    """An order to end a run's trials, because the run's money is spent.

    With `finals` the run's full trainings and gates must end too.
    """

    reason: str
    finals: bool


def required_stop(limits: Limits, nodes: int, wanted: bool) -> Stop | None:
    """Return which jobs of a run must end; None if none must.

    `nodes` is the number of instances that cost money; `wanted` is True if a job waits for a node.
    """
    cap, spent = limits.run_cap, limits.spent
    if cap is None:
        return None
    reason, share = run_cap_reached(cap, spent), cap * (1 - limits.reserve)
    if not reason and wanted and not nodes and limits.affordable_nodes(0.0) < 1:
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
