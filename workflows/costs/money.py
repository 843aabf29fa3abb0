"""Sums of money as people read them: wherever a cost is shown, by this. Pure."""

from __future__ import annotations


def usd(amount: float | None, decimals: int | None = None) -> str:
    """Return a sum of money; empty where nobody knows it.

    What was paid is never shown as zero: less than the last decimal can tell is `<0.0001`.

    Args:
        amount: in USD.
        decimals: how many; default: two of a dollar and more, and of nothing; four of less.
    """
    if amount is None:
        return ""
    if decimals is None:
        decimals = decimals_of(amount)
    least = 10.0**-decimals
    return f"<{least:.{decimals}f}" if 0 < amount < least else f"{amount:,.{decimals}f}"


def decimals_of(amount: float) -> int:
    """Return how many decimals a sum has: to the cent, or to a hundredth of one."""
    return 2 if amount >= 1 or amount == 0 else 4
