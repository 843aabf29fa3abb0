"""The tables of `trialfleet trials`, `best` and `cost` in a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from trialfleet.workflows.formatting import column_decimals, duration, usd
from trialfleet.workflows.rules.cost_sums import CostSum
from trialfleet.workflows.status.run_trials import Trial
from trialfleet.workflows.status.status_types import BestSettings
from trialfleet.workflows.views.output import LongTable, keep_numbers_whole, pairs, plain_table
from trialfleet.workflows.views.terminal.status_view import value_text

_WIDE = 120  # columns of a terminal
_DIGITS = 6  # significant ones, of the greatest value in a column
_NONE = "—"  # of costs that belong to no run or region
_LITTLE = 0.1  # slot hours in total: with less, two decimals would show 0.00
_UNKNOWN = "\N{EN DASH}"
_FIGURES = ("work", "lost", "boot", "idle")


def trials_table(trials: list[Trial], metric: str, width: int = _WIDE) -> LongTable:
    """Return a table with a row per trial.

    Columns of costs, of metrics other than `metric` and of errors are left out if they are empty.
    If `width` (the terminal's characters per line) is below 120, the columns of machines and of
    other metrics are left out, too.
    """
    decimals = column_decimals([trial.value for trial in trials], _DIGITS)
    rows = [_trial_cells(trial, metric, decimals) for trial in trials]
    numbers = {"trial", metric, "attempts", "time", "USD"}
    names = ["region", "trial", "state", metric, "attempts", "time", "USD"]
    names += ["machine", "parameters", "metrics"] if width >= _WIDE else ["parameters"]
    names += ["error"]
    empty = {name for name in ("USD", "metrics", "error") if not any(row[name] for row in rows)}
    names = [name for name in names if name not in empty]
    table = plain_table(*names, right=numbers)
    shown = LongTable(table, [[row[name] for name in names] for row in rows])
    keep_numbers_whole(table)
    settings = (pair for row in rows for pair in row["parameters"].split("  "))
    table.columns[names.index("parameters")].min_width = max(map(len, settings), default=0)
    return shown


def _trial_cells(trial: Trial, metric: str, decimals: int | None) -> dict[str, str]:
    others = {name: value for name, value in trial.metrics.items() if name != metric}
    predicted = value_text(trial.predicted, decimals)
    return {
        metric: value_text(trial.value, decimals) or (predicted and f"~{predicted}"),
        "region": trial.region,
        "trial": str(trial.trial),
        "state": trial.state,
        "attempts": str(trial.attempts or ""),
        "time": duration(trial.compute_seconds),
        "USD": usd(trial.usd),
        "machine": trial.machine or "",
        "parameters": pairs(trial.params, 4),
        "metrics": pairs(others, 4),
        "error": trial.error or "",
    }


def best_table(best: list[BestSettings], metric: str) -> Table:
    """Return a table of the best settings, with a row per region."""
    columns = ("region", "state", "trial", metric, "parameters")
    table = plain_table(*columns, right={"trial", metric})
    decimals = column_decimals([entry.value for entry in best], _DIGITS)
    for entry in best:
        table.add_row(
            Text(entry.region),
            entry.stage,
            str(entry.trial),
            value_text(entry.value, decimals),
            Text(pairs(entry.params, 4)),
        )
    keep_numbers_whole(table)
    return table


def costs_table(sums: Sequence[CostSum], total: CostSum, by: Sequence[str]) -> Table:
    """Return a table with a row per sum and a row for the total.

    A part of the costs (work, lost, boot, idle) has a column if its total is known and not zero. If
    `by` contains "kind", no part has a column, because the rows show the parts.
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
