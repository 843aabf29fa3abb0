"""The report as a table in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trialfleet.workflows.output import keep_numbers_whole
from trialfleet.workflows.report.analysis import unreported
from trialfleet.workflows.report.formatting import column_decimals, duration, fixed, signed
from trialfleet.workflows.report.groups import group_of, outcome
from trialfleet.workflows.report.model import RegionReport, Report

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

_STYLES = {"worse": "red", "kept": "yellow"}


def summary_table(report: Report) -> Table:
    """One row per region: trials, tuned against default settings, gain, time, status.

    Trials are the completed ones; a column of failed ones stands beside them if there are any.

    Time is the region's own, from its first trial's start to its last trial's end. Below the table
    stands what to know of each region whose tuned settings are worse than the default ones.
    """
    from rich.table import Table
    from rich.text import Text

    decimals = report_decimals(report)
    best_decimals = column_decimals([row.objective.tuned for row in report.regions])
    with_best = report.metric != report.report_metric
    failed = report.failed > 0
    table = Table(header_style="bold", caption=_caption(report), caption_justify="left")
    table.add_column("region", overflow="fold")
    numeric = ["trials", "failed"] if failed else ["trials"]
    numeric += [f"best {report.metric}"] if with_best else []
    numeric += [f"{report.report_metric} tuned", "default", "gain", "time"]
    for title in numeric:
        table.add_column(Text(title), justify="right")
    table.add_column("state", overflow="fold")
    for row in report.regions:
        table.add_row(
            Text(row.name),
            f"{row.finished}/{row.budget_trials}",
            *([Text(str(row.failed) if row.failed else "", style="red")] if failed else []),
            *([Text(fixed(row.objective.tuned, best_decimals))] if with_best else []),
            Text(fixed(row.report.tuned, decimals)),
            Text(fixed(row.report.default, decimals)),
            _gain(row, decimals),
            Text(duration(row.wall_seconds), no_wrap=True),
            Text(outcome(row), style=_STYLES.get(group_of(row), "")),
        )
    keep_numbers_whole(table)
    return table


def _caption(report: Report) -> Text | None:
    from rich.text import Text

    worse = [line for row in report.regions if row.worse is not None for line in _worse(row)]
    lines = [*worse, report.advice] if worse else []
    if warning := unreported(report.report_metric, report.regions):
        lines.append(warning)
    return Text("\n".join(lines), style="red") if lines else None


def _worse(row: RegionReport) -> list[str]:
    sentence = (
        f"{row.name}: tuned is worse than default. {row.worse} {row.next_step or ''}".rstrip()
    )
    return [sentence, row.next_command] if row.next_command else [sentence]


def report_decimals(report: Report) -> int | None:
    """The decimals of every number of the report metric, so that columns can be compared."""
    return column_decimals(
        [
            value
            for row in report.regions
            for value in (row.report.default, row.report.tuned, row.final_metric)
        ]
    )


def _gain(row: RegionReport, decimals: int | None) -> Text:
    from rich.text import Text

    gain = row.report.gain
    style = "" if not gain else "green" if gain > 0 else "red"
    return Text(signed(gain, decimals), style=style)
