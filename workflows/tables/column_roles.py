"""The role of a column: numeric, categorical, or unused because it has (almost) no information."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import polars as pl

from trialfleet.nodes.tabular.table import value_range
from trialfleet.workflows.study.table_options import Role, is_form
from trialfleet.workflows.tables import cells
from trialfleet.workflows.tables.amounts import number_format_advice, unit_advice
from trialfleet.workflows.tables.csv_rows import UNNAMED
from trialfleet.workflows.tables.dates_and_times import date_format_advice, moments_advice

_FEWEST = 3  # at least this number of rows, all different: the column is an id
_NARROW = 0.01  # least spread of the training rows, relative to the other rows
_RARE = 0.05  # least share of unusual values, relative to the other rows
_ENOUGH = 20  # with this number of training rows or more, a value of only one row teaches nothing


@dataclass(frozen=True, kw_only=True)
class Feature:
    """The role of a column in the model. With "ignore", the region's table lacks the column."""

    role: Literal["numeric", "categorical", "ignore"]
    kind: str = "text"  # of the cells (`cells.recognise`), or the format that the study gives
    values: pl.Series  # the cells; texts of a numeric column are converted to numbers or dates
    why: str = ""  # why models don't use the column
    note: str = ""  # what a person should check about an inferred role

    @property
    def is_used(self) -> bool:
        """True if models learn from the column."""
        return not self.why


def choose_feature(
    values: pl.Series, override: Role | None, trained: pl.Series, numbered: Sequence[int]
) -> Feature:
    """Return a column's role: the one that the study gives (`override`), or else an inferred role.

    A column that has a name but no values is ignored, even if the study gives it a role. `values`
    are the cells from `without_nulls`, converted if the study gives a format. `trained` is a mask
    of the training rows. `numbered` has the rows' numbers in the file.
    """
    is_named = values.name and not UNNAMED.fullmatch(values.name)
    if values.null_count() == len(values) and override != "ignore" and is_named:
        return Feature(role="ignore", values=values, why="it has no values")
    found = _choose_feature(values, override, numbered)
    if found.role == "ignore":
        return found
    why = _reason_unused(found.values, found.kind, found.role, trained)
    return replace(found, why=why, note="") if why else found


def _choose_feature(values: pl.Series, override: Role | None, numbered: Sequence[int]) -> Feature:
    if override == "ignore":
        return Feature(role="ignore", values=values, why="the study says so")
    kind, found = cells.recognise(values)
    if kind is None:
        why = f"it holds {values.dtype}, which no model can use"
        return Feature(role="ignore", values=values, why=why)
    if override == "categorical":
        kind = "boolean" if kind == "boolean" else "text"
        return Feature(role="categorical", kind=kind, values=values)
    if is_form(override):
        return Feature(role="numeric", kind=override, values=values)
    if override == "numeric":
        return Feature(role="numeric", kind="number" if kind == "text" else kind, values=found)
    return _infer_feature(values, kind, found, numbered)


def _infer_feature(
    values: pl.Series, kind: str, found: pl.Series, numbered: Sequence[int]
) -> Feature:
    written = almost = ""
    if kind == "text":
        written = date_format_advice(values) or number_format_advice(values)
        almost = "" if written else _almost_numbers(values)
        written = written or ("" if almost else unit_advice(values) or moments_advice(values))
    if why := _useless_reason(found, kind, numbered):
        if kind == "text" and found.n_unique() > 1:
            why = f"it is {written}" if written else why + almost
        return Feature(role="ignore", values=values, why=why)
    if kind in {"text", "boolean"}:
        note = f"is categorical{almost}" if almost else ""
        if written:
            note = f"is categorical, {found.n_unique()} different texts: it is {written}"
        return Feature(role="categorical", kind=kind, values=values, note=note)
    return Feature(role="numeric", kind=kind, values=found)


def _useless_reason(values: pl.Series, kind: str, numbered: Sequence[int]) -> str:
    if not values.name or UNNAMED.fullmatch(values.name):
        return "it has no name"
    present = values.drop_nulls()
    if kind == "text" and present.n_unique() == len(present) >= _FEWEST:
        return "its text is different in every row: an id"
    if kind == "number" and len(values) >= _FEWEST and _counts_rows(values, numbered):
        return "it numbers the rows"
    return ""


def _counts_rows(values: pl.Series, numbered: Sequence[int]) -> bool:
    if values.null_count() or values[-1] - values[0] != numbered[-1] - numbered[0]:
        return False
    return bool((values - values[0] == pl.Series(numbered) - numbered[0]).all())


def _almost_numbers(values: pl.Series) -> str:
    if values.dtype != pl.String:
        return ""
    for kind in ("number", "date", "time"):
        found = cells.count_cells(kind, values)
        if kind == "number" and found.share == 1:
            return ": some of its numbers begin with 0, as codes do"
        if found.are_most():
            return (
                f", though {found.words}: {found.first!r} is not a {kind}. If it stands for a "
                "missing value, add it to table.null_values"
            )
    return ""


# Columns from whose training rows a model can learn nothing


def _reason_unused(values: pl.Series, kind: str, role: Role, trained: pl.Series) -> str:
    """Return why a model can't learn from a column, or "". `trained` is True for training rows."""
    if role == "categorical":
        texts = cells.texts(values, kind)
        learned = texts.filter(trained)
        return _constant_reason(texts, learned, learned.n_unique() == 1)
    try:
        numbers = cells.numbers(values, cells.kind_now(values, kind))
    except cells.CellError:
        return ""  # another check reports the cell
    learned, others = numbers.filter(trained), numbers.filter(~trained)
    is_constant = not value_range(learned.drop_nulls().to_numpy())
    return _constant_reason(numbers, learned, is_constant) or _low_variation_reason(learned, others)


def _constant_reason(values: pl.Series, learned: pl.Series, is_constant: bool) -> str:
    if learned.null_count() == len(learned):
        return "it has no values in the training rows"
    if not is_constant:
        return ""
    row = "row" if values.drop_nulls().n_unique() == 1 else "training row"
    some = " that has a value" if learned.null_count() else ""
    return f"it is the same in every {row}{some}"


def _low_variation_reason(learned: pl.Series, others: pl.Series) -> str:
    present, rest = (each.drop_nulls().to_numpy() for each in (learned, others))
    spread = value_range(present)
    width = float(np.subtract(*np.quantile(rest, [0.9, 0.1]))) if len(rest) else 0.0
    if spread < _NARROW * width:
        return f"it varies by {spread:.2g} in the training rows, by {width:.2g} in other rows"
    usual, what = math.nan, "a value"
    if 2 * learned.null_count() <= len(learned):
        usual = float(np.quantile(present, 0.5, method="lower"))
        what = f"a value other than {usual:g}"
    taught, needed = (int((each != usual).sum()) for each in (present, rest))
    seldom = taught * len(others) < _RARE * needed * len(learned)
    if seldom or (taught == 1 and len(learned) >= _ENOUGH):
        rest_of = f"{needed} of {len(others)} other rows"
        return f"{taught} of {len(learned)} training rows have {what}, and {rest_of}"
    return ""
