"""Signs that a model's metrics will be too good: leaks of the target, and repeated rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from trialfleet.nodes.tabular.table import TEST, TRAIN, Table
from trialfleet.workflows.tables.amounts import DECIMAL_SIGNS

_SAMPLE = 4_000  # rows
_TESTED = 500  # test rows
_FEWEST = 10  # rows of another class than the largest, or different numbers; fewer may be chance
_MOST_CLASSES = 100
_ALIKE = 0.9  # of a target's different numbers; rounding to 32 bits makes few numbers equal
_REPEATED = 0.05  # of the different test rows; fewer repeated rows change metrics little
_CONTINUOUS = 0.5  # distinct values of a column that tells rows apart, per distinct row
_PRIME = np.uint64(0x100000001B3)

Rows = npt.NDArray[np.intp]
Values = npt.NDArray[Any]


def leak_notes(table: Table) -> dict[str, str]:
    """Return a note for each used column whose value determines the target, on a sample of rows.

    In a classification, a column determines the target if its values and the classes correspond one
    to one. A missing cell counts as a value. With two classes, all values but the most frequent one
    count as the same value. In a regression, a numeric column determines the target if it sorts the
    rows in the target's order, or in reverse.
    """
    table = table.used()
    rows = _sample(table)
    goal = table.target[rows]
    told: Iterator[tuple[str, int]]
    if table.columns.task == "regression":
        told = _same_orders(table, rows, goal)
    else:
        told = _one_to_one(table, rows, goal.astype(np.intp))
    return {
        name: f"determines the target in all {count} rows checked. If its value is known only "
        "after the target, leave it out"
        for name, count in told
    }


def _sample(table: Table) -> Rows:
    """Return the indices of up to `_SAMPLE` rows, evenly spaced in each class.

    If there are no classes, or more than `_MOST_CLASSES`, the rows are evenly spaced in the table.
    """
    groups = [np.arange(len(table.target))]
    if 0 < len(table.columns.classes) <= _MOST_CLASSES:
        codes = range(len(table.columns.classes))
        groups = [np.flatnonzero(table.target == code) for code in codes]
    most = _SAMPLE // len(groups)
    return np.concatenate([group[:: max(1, -(-len(group) // most))] for group in groups])


def _one_to_one(table: Table, rows: Rows, goal: Rows) -> Iterator[tuple[str, int]]:
    counts = np.bincount(goal)
    classes = np.count_nonzero(counts)
    if len(goal) - counts.max() < _FEWEST:
        return
    for name, column in _columns(table):
        _, codes, sizes = np.unique(column[rows], return_inverse=True, return_counts=True)
        if classes == 2:  # the most frequent value means one class, all others the other class
            codes, sizes = (codes == sizes.argmax()).astype(np.intp), sizes[:2]
        if len(sizes) == classes == len(np.unique(codes * len(counts) + goal)):
            yield name, len(goal)


def _same_orders(table: Table, rows: Rows, goal: Values) -> Iterator[tuple[str, int]]:
    for name, column in _columns(table):
        if table.columns.kinds.get(name, "number") not in {"number", *DECIMAL_SIGNS}:
            continue
        values = column[rows]
        known = ~np.isnan(values)
        values, numbers = values[known], goal[known]
        different = len(np.unique(numbers))
        if different < _FEWEST or len(np.unique(values)) < _ALIKE * different:
            continue
        if any((np.diff(to[np.lexsort((to, values))]) >= 0).all() for to in (numbers, -numbers)):
            yield name, len(numbers)


def _columns(table: Table) -> Iterator[tuple[str, Values]]:
    if table.columns.task == "classification":
        yield from zip(table.columns.categorical, table.categorical.T, strict=True)
    yield from zip(table.columns.numeric, table.numeric.T, strict=True)


def repeated_share(table: Table) -> float:
    """Return the share of distinct test rows, in a sample, that equal a training row.

    Two rows are equal if they agree in all used columns and in the target. The result is 0 if the
    share is below 5%. If all numbers have few distinct values, rows may be equal by chance. So the
    result is also 0 unless a numeric column or the target has at least half as many distinct values
    as there are distinct rows.
    """
    table = table.used()
    numbers = [*table.numeric.T, table.target]
    columns = [*numbers, *table.categorical.T]
    test, train = (np.flatnonzero(table.split == part) for part in (TEST, TRAIN))
    test = test[:: -(-len(test) // _TESTED)]
    numbers.sort(key=lambda column: -len(np.unique(column[test])))
    different = numbers[0]
    tested = np.unique(_hashes(columns, test))
    if len(np.unique(different[test])) < _CONTINUOUS * len(tested):
        return 0.0
    for column in numbers:  # leave few rows to hash
        if len(train) > _SAMPLE:
            train = train[np.isin(column[train], column[test])]
    share = float(np.isin(tested, _hashes(columns, train)).mean())
    if share < _REPEATED:
        return 0.0
    rows = np.unique(_hashes(columns, np.arange(len(table.target))))
    return share if len(np.unique(different)) >= _CONTINUOUS * len(rows) else 0.0


def _hashes(columns: list[Values], rows: Rows) -> npt.NDArray[np.uint64]:
    hashes = np.zeros(len(rows), np.uint64)
    for column in columns:
        hashes = (hashes ^ column[rows].view(f"u{column.itemsize}")) * _PRIME
        hashes ^= hashes >> np.uint64(29)
    return hashes
