"""A run's money: whether the rest of its cap pays for trials, or for full trainings alone.

Trials may spend the cap but for a reserve. Once they have, those of the run that wait or run end,
and the reserve pays for the full training of each region's best settings. At the cap all of it
ends.
"""

from __future__ import annotations

from dataclasses import dataclass

from trialfleet.infra.fleet.scaling.limits import Limits
from trialfleet.infra.fleet.spec.price_cap import run_cap_reached

NO_MONEY = "no money is left: "  # how the reason begins with which a trial's job is removed


@dataclass(frozen=True, kw_only=True)
class Stop:
    """The end of a run's trials for want of money.

    Attributes:
        reason: why, for people.
        finals: the full trainings end with them.
    """

    reason: str
    finals: bool


def stop(limits: Limits, nodes: int, wanted: bool) -> Stop | None:
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
