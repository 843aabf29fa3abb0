"""The role of a column: numeric, categorical, or ignored with a reason."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import polars as pl

from trialfleet.workflows.study.table_options import Role, is_form
from trialfleet.workflows.tables import cells
from trialfleet.workflows.tables.amounts import number_format_advice, unit_advice
from trialfleet.workflows.tables.csv_rows import UNNAMED
from trialfleet.workflows.tables.moments import date_format_advice, perhaps_moments
from trialfleet.workflows.tables.training_rows import reason_unused

_FEWEST = 3  # at least this number of rows, all different: the column is an id


@dataclass(frozen=True, kw_only=True)
class Feature:
    """The role of a column in the model.

    Attributes:
        kind: the kind of the cells, as in the module `cells`, or the format that the study gives.
        values: the cells; for a numeric column, texts are converted to numbers or dates.
        why: why models don't use the column; empty if they do. Unless `role` is "ignore", even an
            unused column is stored in the region's table.
        note: doubts about an inferred role, for people; may be empty.
    """

    role: Literal["numeric", "categorical", "ignore"]
    kind: str = "text"
    values: pl.Series
    why: str = ""
    note: str = ""

    @property
    def is_used(self) -> bool:
        """True if models learn from the column."""
        return not self.why


def choose_feature(values: pl.Series, override: Role | None, trained: pl.Series) -> Feature:
    """Return the role of a column: `override`, as given by the study, or the inferred role.

    A named column without values is always ignored. `values` are the cells from `without_nulls`,
    converted if the study gives a format. `trained` is True for training rows.
    """
    is_named = values.name and not UNNAMED.fullmatch(values.name)
    if values.null_count() == len(values) and override != "ignore" and is_named:
        return Feature(role="ignore", values=values, why="it has no values")
    found = _choose_feature(values, override)
    if found.role == "ignore":
        return found
    why = reason_unused(found.values, found.kind, found.role, trained)
    return replace(found, why=why, note="") if why else found


def _choose_feature(values: pl.Series, override: Role | None) -> Feature:
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
    return _infer_feature(values, kind, found)


def _infer_feature(values: pl.Series, kind: str, found: pl.Series) -> Feature:
    written = almost = ""
    if kind == "text":
        written = date_format_advice(values) or number_format_advice(values)
        almost = "" if written else _almost_numbers(values)
        written = written or ("" if almost else unit_advice(values) or perhaps_moments(values))
    if why := _useless_reason(found, kind):
        if kind == "text" and found.n_unique() > 1:
            why = f"it is {written}" if written else why + almost
        return Feature(role="ignore", values=values, why=why)
    if kind in {"text", "boolean"}:
        note = f"is categorical{almost}" if almost else ""
        if written:
            note = f"is categorical, {found.n_unique()} different texts: it is {written}"
        return Feature(role="categorical", kind=kind, values=values, note=note)
    return Feature(role="numeric", kind=kind, values=found)


def _useless_reason(values: pl.Series, kind: str) -> str:
    if not values.name or UNNAMED.fullmatch(values.name):
        return "it has no name"
    present = values.drop_nulls()
    if kind == "text" and present.n_unique() == len(present) >= _FEWEST:
        return "its text is different in every row: an id"
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
    for kind in ("number", "date", "time"):
        found = cells.count_understood(kind, values)
        if kind == "number" and found.share == 1:
            return ": some of its numbers begin with 0, as codes do"
        if found.are_most():
            return (
                f", though {found.words}: {found.first!r} is not a {kind}. If it stands for a "
                "missing value, add it to table.null_values"
            )
    return ""
