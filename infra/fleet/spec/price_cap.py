"""The caps on what a fleet costs: whether they are reached, how many more nodes they pay for.

The cap per hour is asked about twice before a node comes. The decision asks at the price of the
best pool: it must know how many nodes there may be, to begin no gang that they don't suffice for,
and to say what holds trials back. The launch asks at the price of each pool that is left once the
best has no room, and beside all nodes that AWS lists by then; for `fleet up` nothing else asks.
"""

from __future__ import annotations

UNBOUNDED = 1_000_000
_ROUNDING = 1e-9  # 0.3 is three times 0.1


def nodes_within(cap: float | None, used: float, price: float) -> int:
    """Return how many nodes of a price a cap pays for beside what is used, all in USD per hour.

    None of them where exactly the cap is used; -1 where more is.
    """
    if cap is None:
        return UNBOUNDED
    if cap - used < -_ROUNDING:
        return -1
    return int((cap - used) / price + _ROUNDING) if price > 0 else UNBOUNDED


def run_cap_reached(cap: float | None, spent: float) -> str:
    """Say that a run has spent its cap; nothing where it hasn't, or has none."""
    if cap is None or spent < cap:
        return ""
    return f"the run's cap of ${cap:.2f} is reached: ${spent:.2f} is spent"
