"""Detection of columns from whose training rows a model can learn nothing."""

from __future__ import annotations

import math

import numpy as np
import polars as pl

from trialfleet.nodes.tabular.table import value_range
from trialfleet.workflows.study.table_options import Role
from trialfleet.workflows.tables import cells

_NARROW = 0.01  # least spread of the training rows, relative to the other rows
_RARE = 0.05  # least share of unusual values, relative to the other rows
_ENOUGH = 20  # with more training rows, a value of only one row teaches nothing


def reason_unused(values: pl.Series, kind: str, role: Role, trained: pl.Series) -> str:
    """Return why a model can't learn from a column, or ""; `trained` marks the training rows."""
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
        return f"it varies by {spread:.2g} in the training rows, by {width:.2g} in the others"
    usual, what = math.nan, "a value"
    if 2 * learned.null_count() <= len(learned):
        usual = float(np.quantile(present, 0.5, method="lower"))
        what = f"another value than {usual:g}"
    taught, needed = (int((each != usual).sum()) for each in (present, rest))
    seldom = taught * len(others) < _RARE * needed * len(learned)
    if seldom or (taught == 1 and len(learned) >= _ENOUGH):
        rest_of = f"{needed} of {len(others)} others"
        return f"{taught} of {len(learned)} training rows have {what}, {rest_of}"
    return ""
