"""The tables of regions and of settings in report.html."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from trialfleet.workflows import formatting as f
from trialfleet.workflows.formatting import usd
from trialfleet.workflows.views.report.groups import outcome, outcome_tone
from trialfleet.workflows.views.report.report_numbers import report_decimals
from trialfleet.workflows.views.report.report_types import Comparison, RegionReport, Report, Setting

FULL_TRAINING = "Full training"
FULL_MEANS = (
    "one more training with the best settings, on the full budget; it makes the model to publish"
)
MODEL = "Published model"
COST = "USD"
COST_MEANS = "cost of the region's jobs, including failed attempts"
EDGES = {"low": "at the lower end", "high": "at the upper end"}


@dataclass(frozen=True)
class Cell:
    """A table's cell.

    Rows are sorted by `key` or, if it is None, by `text`. Cells without a text or with a dash come
    last. `tone` is a CSS class.
    """

    text: str
    key: float | str | None = None
    tone: str = ""

    @property
    def written_key(self) -> str | None:
        """The sort key to write into the page, or None if rows are sorted by the text."""
        if self.key is None:
            return None
        key = f"{self.key:.9g}" if isinstance(self.key, float) else str(self.key)
        return None if key == self.text else key


@dataclass(frozen=True)
class Column:
    """A column of the table of regions.

    Attributes:
        kind: "number" or "text".
        cell: a function that returns a region's cell.
        brief: whether a phone shows the column at once, not only on demand.
        hint: an explanation of the title, or "".
    """

    title: str
    kind: str
    cell: Callable[[RegionReport], Cell]
    brief: bool = False
    hint: str = ""


def region_columns(report: Report) -> list[Column]:
    """Return the columns after the region's name.

    The columns of full trainings, costs and models are left out if they have no values.
    """
    return [
        column
        for column in (*_compared_columns(report), *_course_columns(report))
        if column.title not in {FULL_TRAINING, COST, MODEL}
        or any(column.cell(row).key is not None for row in report.regions)
    ]


def _compared_columns(report: Report) -> list[Column]:
    decimals = report_decimals(report)

    def value(number: float | None, tone: str = "") -> Cell:
        return Cell(f.fixed_point(number, decimals), number, tone)

    def gain(row: RegionReport) -> Cell:
        text = f.signed_number(row.report.gain, decimals)
        return Cell(text, row.report.gain, gain_tone(row.report))

    return [
        Column("Default", "number", lambda row: value(row.report.default)),
        Column("Tuned", "number", lambda row: value(row.report.tuned, "strong"), brief=True),
        Column("Gain", "number", gain, brief=True),
        Column(
            "Status", "text", lambda row: Cell(outcome(row), None, outcome_tone(row)), brief=True
        ),
        Column(FULL_TRAINING, "number", lambda row: value(row.final_metric), hint=FULL_MEANS),
    ]


def _course_columns(report: Report) -> list[Column]:
    decimals = f.column_decimals([row.objective.tuned for row in report.regions])

    def best(row: RegionReport) -> Cell:
        return Cell(f.fixed_point(row.objective.tuned, decimals), row.objective.tuned)

    return [
        *([Column(f"Best {report.metric}", "number", best)] if report.is_apart else []),
        Column(
            "Trials",
            "number",
            lambda row: Cell(f"{row.finished} / {row.budget}", row.finished),
        ),
        Column("Failed", "number", _failed_cell),
        Column("Time", "number", lambda row: Cell(f.duration(row.wall_seconds), row.wall_seconds)),
        Column(COST, "number", lambda row: Cell(usd(row.usd), row.usd), hint=COST_MEANS),
        Column(MODEL, "text", _model),
    ]


def _failed_cell(row: RegionReport) -> Cell:
    return Cell(
        str(row.all_failed) if row.all_failed else f.NOTHING,
        row.all_failed,
        "bad" if row.all_failed else "",
    )


def _model(row: RegionReport) -> Cell:
    name = f.NOTHING if row.published is None else PurePath(row.published).name
    return Cell(name, row.published or None, "path")


def region_rows(report: Report) -> list[tuple[RegionReport, list[Cell]]]:
    """Return each region with its cells, one for each of `region_columns`."""
    columns = region_columns(report)
    return [(row, [column.cell(row) for column in columns]) for row in report.regions]


def gain_tone(comparison: Comparison) -> str:
    """Return the tone (a CSS class) of a gain."""
    gain = comparison.gain
    return "" if not gain else "good" if gain > 0 else "bad"


@dataclass(frozen=True)
class SettingRow:
    """A parameter's best and default values, and their positions in its range in percent."""

    name: str
    default: str
    best: str
    changed: bool
    default_place: float | None
    best_place: float | None
    low: str
    high: str
    note: str


def setting_rows(row: RegionReport) -> list[SettingRow]:
    """Return the rows of a region's table of settings, one per parameter."""
    return [_setting_row(item, row.best_trial is not None) for item in row.settings]


def _setting_row(item: Setting, has_best: bool) -> SettingRow:
    range_ = item.range
    numeric = range_ is not None and range_.choices is None
    pair = [(item.default, item.default_active), (item.best, item.best_active)]
    text = _value_format(item, [value for value, active in pair if active])
    return SettingRow(
        name=item.name,
        default=text(item.default) if item.default_active else "not used",
        best=(text(item.best) if item.best_active else "not used") if has_best else f.NOTHING,
        changed=has_best and item.changed,
        default_place=_percent(item, item.default) if item.default_active else None,
        best_place=_percent(item, item.best) if item.best_active else None,
        low=f.setting(range_.low) if range_ is not None and numeric else "",
        high=f.setting(range_.high) if range_ is not None and numeric else "",
        note=_setting_note(item),
    )


def _value_format(item: Setting, values: Sequence[Any]) -> Callable[[Any], str]:
    is_choice = item.range is not None and item.range.choices is not None
    return f.setting if is_choice else f.uniform_format(values)


def _percent(item: Setting, value: Any) -> float | None:
    place = None if item.range is None else item.range.place(value)
    return None if place is None else round(100 * place, 1)


def _setting_note(item: Setting) -> str:
    if item.edge is not None:
        return EDGES[item.edge]
    if item.range is not None and item.range.choices is not None:
        return f"{len(item.range.choices)} choices"
    return ""
