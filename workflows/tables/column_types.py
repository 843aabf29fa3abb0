"""What a column is: numeric, categorical, or ignored and why."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from trialfleet.workflows.study.table_options import Role
from trialfleet.workflows.tables import cells

MOST_CLASSES = 10  # whole numbers with more different values are a regression's target
_FEWEST = 3  # rows of which each has a value of its own say that a column is an id


@dataclass(frozen=True, kw_only=True)
class Feature:
    """What a column is to the model.

    Attributes:
        role: numeric, categorical or ignore.
        kind: what its cells hold, see `cells`.
        values: its cells as they were understood: what turned out to be numbers, as numbers.
        why: why it is ignored.
        note: what a person should know who didn't say what it is.
    """

    role: Role
    kind: str = "text"
    values: pl.Series
    why: str = ""
    note: str = ""


def feature_of(values: pl.Series, override: Role | None) -> Feature:
    """Return what a column is.

    Args:
        values: as `cells.without_nulls` left them.
        override: what the study says it is.
    """
    if override == "ignore":
        return Feature(role="ignore", values=values, why="the study says so")
    kind, found = cells.recognise(values)
    if kind is None:
        why = f"it holds {values.dtype}, which no model can use"
        return Feature(role="ignore", values=values, why=why)
    if override == "categorical":
        kind = "boolean" if kind == "boolean" else "text"
        return Feature(role="categorical", kind=kind, values=values)
    if override == "numeric":
        return Feature(role="numeric", kind="number" if kind == "text" else kind, values=found)
    written = ""
    if kind == "text":
        written = cells.as_people_write_numbers(values) or cells.as_people_write_dates(values)
    if why := _why_useless(found, kind):
        if written and found.n_unique() > 1:
            why = f"it is {written}"
        return Feature(role="ignore", values=values, why=why)
    if kind in {"text", "boolean"}:
        note = _almost_numbers(values) if kind == "text" else ""
        if written:
            note = f"is categorical, {found.n_unique()} different texts: it is {written}"
        return Feature(role="categorical", kind=kind, values=values, note=note)
    return Feature(role="numeric", kind=kind, values=found)


def _why_useless(values: pl.Series, kind: str) -> str:
    """Return why a column says nothing about the target; empty where it may say something."""
    if not values.name:
        return "it has no name"
    if values.null_count() == len(values):
        return "it has no values"
    if values.null_count() == 0 and values.min() == values.max():
        return "it is the same in every row"
    present = values.drop_nulls()
    if kind == "text" and present.n_unique() == len(present) >= _FEWEST:
        return "its text is another in every row: an id"
    if kind == "number" and len(values) >= _FEWEST and _counts_rows(values):
        return "it numbers the rows"
    return ""


def _counts_rows(values: pl.Series) -> bool:
    if values.null_count() or values[-1] - values[0] != len(values) - 1:
        return False
    return bool((values.diff().drop_nulls() == 1).all())


def _almost_numbers(values: pl.Series) -> str:
    if values.dtype != pl.String:
        return ""
    found = cells.understood_as("number", values)
    if found.share == 1:
        return "is categorical: some of its numbers begin with 0, as codes do"
    if not found.are_most():
        return ""
    return (
        f"is categorical, though {found.percent}% of its cells are numbers: {found.first!r} is "
        "not a number. If it stands for a missing value, add it to table.null_values"
    )
