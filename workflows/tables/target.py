"""The target of a table: whether it is classes or numbers, and whether it can be used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Literal

import numpy as np
import polars as pl

from trialfleet.nodes.tabular.table import Floats, Task
from trialfleet.workflows.tables import cells
from trialfleet.workflows.tables.amounts import number_format_advice, unit_advice
from trialfleet.workflows.tables.csv_rows import TableError
from trialfleet.workflows.tables.encoding import to_numbers

_MOST_CLASSES = 10  # with more different whole numbers, the target is for regression
_MOST_LABELS = 0.5  # of the rows; with more classes, the target is an id or a text
_HALF = 0.5  # if more of the cells are numbers, the others are mistakes
WAYS_OUT = "If it stands for a missing value, add it to table.null_values; else correct the file"


@dataclass(frozen=True, kw_only=True)
class Target:
    """The target column. For a classification, `values` are indices of `classes`."""

    task: Task
    inferred: bool
    kind: str
    values: Floats
    classes: list[str] = field(default_factory=list)
    note: str = ""  # for a person who meant numbers


def read_target(
    values: pl.Series,
    wanted: Literal["auto", "classification", "regression"],
    numbered: Sequence[int],
) -> Target:
    """Return the target: its cells as numbers, or as classes.

    `wanted` is the study's `table.task`. `numbered` has each cell's row in the file. TableError if
    the cells can't be used.
    """
    kind, found = cells.recognise(values)
    if kind is None or kind in {"date", "time"}:
        held = "dates" if kind == "date" else "times" if kind == "time" else str(values.dtype)
        raise TableError(f"the target {values.name!r} holds {held}; it must be numbers or classes")
    if (unread := (found.is_null() & values.is_not_null()).arg_true()).len():  # such as "NaN"
        first = unread[0]
        raise TableError(
            f"row {numbered[first]} below the header: the target {values.name!r} is "
            f"{values[first]!r}. {WAYS_OUT}"
        )
    inferred = wanted == "auto"
    slip = _almost_numeric_text(values, kind, numbered) if inferred else ""
    if kind == "text" and inferred:
        written = number_format_advice(values) or ("" if slip else unit_advice(values))
        if written:
            raise TableError(
                f"the target {values.name!r} has {written}{_non_number_text(values, numbered)}"
            )
    if kind == "number" or wanted == "regression":
        numbers = to_numbers(found, "number" if kind == "text" else kind, numbered, WAYS_OUT)
    task = _infer_task(values, found, kind) if wanted == "auto" else wanted
    if task == "regression":
        return Target(task=task, inferred=inferred, kind=kind, values=numbers.to_numpy())
    labels = cells.labels(values, kind)
    different = labels.unique().to_list()
    classes = sorted(different, key=Decimal if kind == "number" else None)
    if len(classes) > max(_MOST_CLASSES, _MOST_LABELS * len(labels)):
        mistake = _almost_numeric_text(values, kind, numbered, _HALF)
        numbers_too = "" if kind == "text" else "; for a regression write table: {task: regression}"
        raise TableError(
            f"the target {values.name!r} has {len(classes)} different values in {len(labels)} "
            "rows, too many to be classes" + (f"; {mistake}" if mistake else numbers_too)
        )
    codes = cells.codes(labels, classes).to_numpy().astype(np.float32) - 1
    note = f"is taken as classes: {slip}" if slip else ""
    return Target(task=task, inferred=inferred, kind=kind, values=codes, classes=classes, note=note)


def _non_number_text(values: pl.Series, numbered: Sequence[int]) -> str:
    found = cells.count_cells("number", values)
    row = f"row {numbered[found.row]} below the header"
    text = f". {found.others} of its cells are no plain numbers, the first in {row}"
    if found.others == 1:
        text = f". Only the cell in {row} is no plain number"
    if found.are_most():
        return text
    return (
        f"{text}. If the column's {values.n_unique()} different texts are classes, write "
        "table: {task: classification}"
    )


def _infer_task(values: pl.Series, found: pl.Series, kind: str) -> Task:
    if kind != "number":
        return "classification"
    are_whole = bool((found.cast(pl.Float64) % 1 == 0).all())
    are_few = are_whole and cells.labels(values, kind).n_unique() <= _MOST_CLASSES
    return "classification" if are_few else "regression"


def _almost_numeric_text(
    values: pl.Series, kind: str, numbered: Sequence[int], least: float = cells.MOSTLY
) -> str:
    """If nearly all cells are numbers, describe the first that is no number; else return ""."""
    if kind != "text" or values.dtype != pl.String:
        return ""
    found = cells.count_cells("number", values)
    if not found.are_most(least):
        return ""
    others = "1 is not:" if found.others == 1 else f"{found.others} are not, the first is"
    return (
        f"{found.words}, {others} {found.first!r} in row "
        f"{numbered[found.row]} below the header. {WAYS_OUT}"
    )
