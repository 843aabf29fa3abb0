"""The caps on a fleet's costs: whether they are reached, and how many more nodes they allow.

The cap per hour is checked twice before a launch. The autoscaler's decision uses the best
candidate's price, to leave out gangs that would get too few nodes, and to explain why trials wait.
The launch uses each candidate's own price, and all nodes that AWS lists by then. `fleet up` only
makes the second check.
"""

from __future__ import annotations

UNBOUNDED = 1_000_000
_ROUNDING = 1e-9  # 0.3 is three times 0.1


def affordable_nodes(cap: float | None, used: float, price: float) -> int:
    """Return how many more nodes a cap allows; UNBOUNDED without a cap, -1 if `used` exceeds it.

    The cap, `used` by present nodes, and the `price` of a new node are all in USD per hour.
    """
    if cap is None:
        return UNBOUNDED
    if cap - used < -_ROUNDING:
        return -1
    return int((cap - used) / price + _ROUNDING) if price > 0 else UNBOUNDED


def run_cap_reached(cap: float | None, spent: float) -> str:
    """Return why a run must end at its cap; empty if `spent` is less, or without a cap."""
    if cap is None or spent < cap:
        return ""
    return f"the run's cap of ${cap:.2f} is reached: ${spent:.2f} is spent"
