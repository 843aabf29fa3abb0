"""The split of rows into training, validation and test."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from trialfleet.nodes.tabular.table import TEST, TRAIN, VALIDATION
from trialfleet.workflows.study.table_options import DEFAULT_SHARES, Split, column_line
from trialfleet.workflows.tables import cells
from trialfleet.workflows.tables.csv_rows import TableError
from trialfleet.workflows.tables.dates_and_times import date_format_advice

PARTS = {
    "train": TRAIN,
    "training": TRAIN,
    "validation": VALIDATION,
    "valid": VALIDATION,
    "val": VALIDATION,
    "test": TEST,
}
_SHOWN = 5
_HALF = 0.5  # if more of the cells are dates, the column is meant as dates
_ISO = "year-month-day, such as 2024-11-01 or 2024-11-01 07:00"

Codes = npt.NDArray[np.int8]
Numbers = npt.NDArray[np.float32]


def split_rows(
    frame: pl.DataFrame,
    split: Split,
    classes: Numbers | None,
    seed: int,
    numbered: Sequence[int],
) -> Codes:
    """Return each row's part: TRAIN, VALIDATION or TEST.

    `classes` has the class of each row; None for a regression. A random split keeps the proportions
    of the classes in each part. `numbered` has the rows' numbers in the file, for messages.
    TableError if the column that decides the split can't be used.
    """
    for name in split.own_columns:
        if cells.kind_of_type(frame[name]) is None:
            raise _unusable_error(
                frame[name], f"holds {frame[name].dtype}, which can't split the rows"
            )
    if split.column is not None:
        return _split_by_column(frame[split.column])
    if split.time is not None:
        return _split_by_time(frame[split.time], split.shares or DEFAULT_SHARES, numbered)
    return _split_randomly(len(frame), classes, split.random or DEFAULT_SHARES, seed)


def _split_randomly(
    rows: int, classes: Numbers | None, shares: Sequence[float], seed: int
) -> Codes:
    order = np.random.default_rng(seed).permutation(rows)
    groups = np.zeros(rows, np.float32) if classes is None else classes
    parts = np.empty(rows, np.int8)
    for group in np.unique(groups):
        members = order[groups[order] == group]
        cuts = np.round(np.cumsum(shares)[:2] * len(members)).astype(int)
        for part, chosen in enumerate(np.split(members, cuts)):
            parts[chosen] = part
    return parts


def _split_by_time(values: pl.Series, shares: Sequence[float], numbered: Sequence[int]) -> Codes:
    """Return each row's part by time, the oldest for training. Rows of equal time share a part."""
    kind, found = cells.recognise(values)
    if kind not in {"date", "number", "time"}:
        raise _unusable_error(values, _no_times_reason(values, numbered))
    if found.null_count():
        count = found.null_count()
        raise _unusable_error(
            values, f"has {count} missing values; fill them in, or remove their rows"
        )
    times = cells.numbers(found, cells.kind_now(found, kind)).to_numpy()
    if kind == "number" and _begin_with_days(times):
        offered = column_line(values.name, ['"%d%m%Y"'])
        raise _unusable_error(
            values,
            f"has dates such as {str(values[0]).strip()}, whose order as numbers differs from the "
            f"order in time: write them as YYYY-MM-DD, or give their format: {offered}",
        )
    ordered = np.sort(times)
    cuts = np.round(np.cumsum(shares)[:2] * len(times)).astype(int)
    borders = ordered[np.minimum(cuts, len(times) - 1)]
    return np.searchsorted(borders, times, side="right").astype(np.int8)


def _begin_with_days(times: npt.NDArray[np.float64]) -> bool:
    """Return whether all numbers are dates with the day first, such as 31122026."""
    days, months, years = times // 1e6, times // 1e4 % 100, times % 1e4
    pairs = [(days, 1, 31), (months, 1, 12), (years, 1900, 2099)]
    return all(((low <= part) & (part <= high)).all() for part, low, high in pairs)


def _unusable_error(values: pl.Series, why: str) -> TableError:
    return TableError(f"table.split: column {values.name!r} {why}")


def _no_times_reason(values: pl.Series, numbered: Sequence[int]) -> str:
    if values.null_count() == len(values):
        return "has no values"
    if values.dtype != pl.String:
        return f"holds {str(values.drop_nulls()[0])!r}, which is neither a date nor a number"
    found = [cells.count_cells(kind, values) for kind in ("date", "number", "time")]
    best = max(found, key=lambda each: each.share)
    if best.share < _HALF and (written := date_format_advice(values)):
        return f"holds {written}"
    if not best.others:
        return f"has numbers that begin with 0, as codes do; write dates as {_ISO}"
    if best.share < _HALF:
        return f"holds {best.first!r}, which is neither a date nor a number; write {_ISO}"
    row = numbered[best.row]
    return f"has {best.first!r} in row {row} below the header, which is not a {best.kind}"


def earliest_times(values: pl.Series, parts: Codes) -> dict[str, str]:
    """Return the earliest time of the validation rows and of the test rows, as text."""
    kind, found = cells.recognise(values)
    times = cells.numbers(found, cells.kind_now(found, str(kind)))
    first = {}
    for name, part in [("validation", VALIDATION), ("test", TEST)]:
        row = times.set(pl.Series(parts != part), None).arg_min()
        if row is not None:
            first[name] = str(values[row]).strip()
    return first


def _split_by_column(values: pl.Series) -> Codes:
    words = values.cast(pl.String).str.strip_chars().str.to_lowercase()
    unknown = words.fill_null("").is_in([*PARTS]).not_()
    if unknown.any():
        other = values.filter(unknown).unique(maintain_order=True)
        shown = ", ".join("nothing" if cell is None else repr(cell) for cell in other[:_SHOWN])
        rows = int(unknown.sum())
        why = f"has {shown} in {rows} rows; each row must have train, validation or test"
        raise _unusable_error(values, why)
    return words.replace_strict(PARTS, return_dtype=pl.Int8).to_numpy()
