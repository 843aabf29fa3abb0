"""Conversion of rows to the arrays that a model reads, for training and prediction."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from trialfleet.nodes.tabular.table import Columns, stack
from trialfleet.workflows.tables import cells
from trialfleet.workflows.tables.amounts import number_format_advice
from trialfleet.workflows.tables.csv_rows import TableError


def encode(
    rows: pl.DataFrame, columns: Columns, numbered: Sequence[int], *, converted: bool = False
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int32]]:
    """Return rows as two arrays: the numeric columns, and the codes of the categorical columns.

    `rows` come from `cells.without_nulls`. If `converted`, floats in them may be dates or times
    that `choose_feature` has converted. `numbered` has the rows' numbers in the file, for error
    messages. TableError if a numeric column has cells that can't be converted. The message names
    the first such cell of each column.
    """
    numeric: list[npt.NDArray[np.float64]] = []
    problems: list[str] = []
    for name in columns.numeric:
        kind = columns.kinds.get(name, "number")
        kind = cells.kind_now(rows[name], kind) if converted else kind
        try:
            found = to_numbers(rows[name], kind, numbered)
        except TableError as error:
            problems += error.problems
        else:
            numeric.append(found.fill_null(float("nan")).to_numpy())
    if problems:
        raise TableError(*problems)
    categorical = [
        cells.codes(cells.texts(rows[name], columns.kinds.get(name, "text")), words).to_numpy()
        for name, words in columns.categorical.items()
    ]
    return stack(numeric, len(rows), np.float64), stack(categorical, len(rows), np.int32)


def to_numbers(
    values: pl.Series, kind: str, numbered: Sequence[int], ways_out: str = ""
) -> pl.Series:
    """Return a column as Float64.

    `numbered` has the rows' numbers in the file, for error messages. TableError if no model can use
    the column's type, or if a cell is not of `kind`. The message names the first such cell, and
    ends with advice on the column's number format or, without such advice, with `ways_out`.
    """
    if cells.kind_of_type(values) is None:
        raise TableError(f"column {values.name!r} holds {values.dtype}, which no model can use")
    try:
        return cells.numbers(values, kind)
    except cells.CellError as error:
        written = number_format_advice(values) if kind == "number" else ""
        hint = f"; it is {written}" if written else f". {ways_out}" if ways_out else ""
        raise TableError(
            f"row {numbered[error.row]} below the header, column {values.name!r}: {error.why}{hint}"
        ) from error
