"""The table of costs for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from trialfleet.workflows.formatting import usd
from trialfleet.workflows.rules.cost_sums import CostSum
from trialfleet.workflows.views.output import keep_numbers_whole

_NONE = "—"  # of costs that belong to no run or region
_LITTLE = 0.1  # slot hours in total: with less, two decimals would show 0.00
_UNKNOWN = "\N{EN DASH}"
_FIGURES = ("work", "lost", "boot", "idle")


def costs_table(sums: Sequence[CostSum], total: CostSum, by: Sequence[str]) -> Table:
    """Return a table with a row per sum and a row for the total.

    A part of the costs (work, lost, boot, idle) has a column if its total is known and not zero. If
    `by` contains "kind", no part has a column.
    """
    shown = [name for name in _FIGURES if getattr(total, name)] if "kind" not in by else []
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", show_footer=True)
    for place, name in enumerate(by):
        table.add_column(name, footer="" if place else "total", overflow="fold")
    table.add_column("USD", footer=_sum(total.usd), justify="right")
    for name in shown:
        table.add_column(name, footer=_sum(getattr(total, name)), justify="right")
    decimals = 2 if total.hours >= _LITTLE else 4
    table.add_column("slot hours", footer=f"{total.hours:.{decimals}f}", justify="right")
    for one in sums:
        figures = [one.usd, *(getattr(one, name) for name in shown)]
        table.add_row(
            *(Text(one.key[name] or _NONE) for name in by),
            *map(_sum, figures),
            f"{one.hours:.{decimals}f}",
        )
    keep_numbers_whole(table)
    return table


def _sum(amount: float | None) -> str:
    return _UNKNOWN if amount is None else usd(amount)
