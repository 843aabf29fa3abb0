"""The summary that `trialfleet report` shows in a terminal."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from trialfleet.errors import join_names
from trialfleet.workflows.formatting import (
    BETTER,
    column_decimals,
    duration,
    fixed_point,
    signed_number,
)
from trialfleet.workflows.rules.states import Stage
from trialfleet.workflows.views.output import Fitting, keep_numbers_whole
from trialfleet.workflows.views.report.advice import unreported_note
from trialfleet.workflows.views.report.groups import find_group, outcome
from trialfleet.workflows.views.report.report_numbers import report_decimals
from trialfleet.workflows.views.report.report_types import RegionReport, Report

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

_LONGEST_WORD = 24  # columns of a word in a name before it is folded
_IN_FULL, _NAMED = 2, 8  # regions with notes, or with names, in a terminal
_STYLES = {"worse": "red", "kept": "yellow"}


def fitted_summary(report: Report) -> Fitting:
    """Return the summary table, with fewer columns on a narrow terminal."""
    narrow = partial(summary_table, report, with_best=False)
    without = Fitting(lambda room: narrow(with_time=room))
    return Fitting(lambda whole: summary_table(report) if whole else without)


def summary_table(report: Report, *, with_best: bool = True, with_time: bool = True) -> Table:
    """Return a table with a row per region, and with notes on problems below the rows.

    The column of trials counts ended trials. A region's time is from its first trial's start to its
    last trial's end, without pauses. `with_best` adds the best value of the objective if settings
    are compared by another metric.
    """
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    decimals = report_decimals(report)
    best_decimals = column_decimals([row.objective.tuned for row in report.regions])
    with_best = with_best and report.is_apart
    failed = report.failed > 0
    table = Table(
        header_style="bold",
        title=Text(_title(report, with_best)),
        title_justify="left",
        caption=_caption(report),
        caption_justify="left",
    )
    table.add_column("region", overflow="fold")
    numeric = ["trials", "failed"] if failed else ["trials"]
    numeric += ["best"] if with_best else []
    numeric += ["tuned", "default", "gain", *(["time"] if with_time else [])]
    for title in numeric:
        table.add_column(Text(title), justify="right")
    table.add_column("state", overflow="fold")
    for row in report.regions:
        table.add_row(
            Text(row.name),
            f"{row.finished}/{row.budget}",
            *([Text(str(row.all_failed) if row.all_failed else "", style="red")] if failed else []),
            *([Text(fixed_point(row.objective.tuned, best_decimals))] if with_best else []),
            Text(fixed_point(row.report.tuned, decimals)),
            Text(fixed_point(row.report.default, decimals)),
            _gain(row, decimals),
            *([Text(duration(row.wall_seconds), no_wrap=True)] if with_time else []),
            Text(_state(row), style=_STYLES.get(find_group(row), "")),
        )
    keep_numbers_whole(table)
    for column in (table.columns[0], table.columns[-1]):
        words = [word for cell in [column.header, *column.cells] for word in str(cell).split()]
        column.min_width = min(_LONGEST_WORD, max(map(cell_len, words), default=1))
    return table


def _state(row: RegionReport) -> str:
    is_failed = row.stage is Stage.FAILED and row.failure
    return f"{row.stage}: {row.short_failure}" if is_failed else outcome(row)


def _title(report: Report, with_best: bool) -> str:
    compared = (
        f"tuned, default: {report.report_metric} ({BETTER[report.report_direction]} is better)"
    )
    return compared + (f"; best: {report.metric}" if with_best else "")


def _caption(report: Report) -> Text | None:
    from rich.text import Text

    worse = _worse_lines([row for row in report.regions if row.worse is not None])
    lines = [*worse, report.advice] if worse else []
    if warning := unreported_note(report.report_metric, report.regions):
        lines.append(warning)
    warnings = [f"{row.name}: {words}" for row in report.regions for words in row.warnings]
    warnings += [report.edges] if report.edges else []
    parts = [
        Text("\n".join(lines), style="red"),
        *(Text(line, style="yellow") for line in warnings),
    ]
    caption = Text("\n").join([part for part in parts if part])
    return caption if caption else None


def _worse_lines(rows: list[RegionReport]) -> list[str]:
    if len(rows) > _IN_FULL:
        named = join_names([row.name for row in rows], _NAMED)
        where = f"Tuned is worse than default in {len(rows)} regions: {named}"
        return [f"{where}; see the report."]
    return [f"{row.name}: tuned is worse than default. {row.worse}" for row in rows]


def _gain(row: RegionReport, decimals: int | None) -> Text:
    from rich.text import Text

    gain = row.report.gain
    style = "" if not gain else "green" if gain > 0 else "red"
    return Text(signed_number(gain, decimals), style=style)
