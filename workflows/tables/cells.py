"""The kind of a column's cells (number, date, time, boolean, text), and which cells are missing.

Training and prediction both use this module, so that a cell has the same meaning in both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
import polars as pl

from trialfleet.nodes.tabular.table import BLANKS, WHOLE, category, category_codes
from trialfleet.workflows.tables.amounts import DECIMAL_SIGNS, parse_amounts
from trialfleet.workflows.tables.dates_and_times import FEW_TEXTS, moments, parse_moments

_LARGEST = float(np.finfo(np.float32).max)
_DAY, _HOUR = 86_400e6, 3_600e9  # in polars' units: µs for dates, ns for times
_SAMPLE = 64  # cells; enough to decide for most columns
_CODE = r"^0[0-9]"
MOSTLY, _HALF = 0.9, 0.5  # of the cells
_TIMES = ["%H:%M", "%Hh%M", "%H:%M:%S%.f", "%I:%M %p", "%I:%M:%S%.f %p"]
_DIGITS = r"^(0|-?[1-9][0-9]*)$"


class CellError(ValueError):
    """A cell is not of its column's kind. `row` is its row, from 0."""

    def __init__(self, row: int, why: str) -> None:
        super().__init__(why)
        self.row, self.why = row, why


def without_nulls(frame: pl.DataFrame, null_values: Sequence[str]) -> pl.DataFrame:
    """Return the frame with null for missing values: `null_values`, empty cells and NaN.

    Blanks around texts are removed.
    """
    columns = []
    for column in frame.iter_columns():
        values = _decategorise(column)
        if values.dtype.is_float():
            values = values.fill_nan(None)
        columns.append(values.set(_are_among(values, [*null_values, ""]), None))
    return frame.with_columns(columns)


def in_no_cell(frame: pl.DataFrame, null_values: Sequence[str]) -> list[str]:
    """Return those of `null_values` that no cell equals."""
    columns = [_decategorise(column) for column in frame.iter_columns()]
    return [
        text for text in null_values if not any(_are_among(each, [text]).any() for each in columns)
    ]


def _decategorise(values: pl.Series) -> pl.Series:
    """Return texts, even categorical ones, as strings without surrounding blanks; else `values`."""
    texts = values.cast(pl.String) if _has_type(values, pl.Categorical, pl.Enum) else values
    return texts.str.strip_chars(BLANKS) if texts.dtype == pl.String else texts


def _are_among(values: pl.Series, null_values: Sequence[str]) -> pl.Series:
    """Return a mask of the cells that equal one of `null_values` as text, number, date or time.

    A text such as 007 is a code, and does not equal the number 7.
    """
    is_text = values.dtype == pl.String
    own_kind = kind_of_type(values)
    if is_text:
        found = values.is_in(pl.Series([*map(str.strip, null_values)], dtype=pl.String).implode())
    else:
        found = values.is_null() & False
    for kind, numbers in _convert_null_values(tuple(null_values)).items():
        if not (is_text or kind == own_kind):
            continue
        single = values.dtype == pl.Float32
        marks = numbers.cast(pl.Float32).cast(pl.Float64) if single else numbers
        same = _CONVERT[kind](values).is_in(marks.implode())
        found |= same & ~values.str.contains(_CODE) if is_text else same
    return found.fill_null(value=False)


@lru_cache
def _convert_null_values(null_values: tuple[str, ...]) -> dict[str, pl.Series]:
    texts = pl.Series(null_values, dtype=pl.String)
    found = {kind: _CONVERT[kind](texts) for kind in ("number", "date", "time")}
    read = {kind: numbers.fill_nan(None).drop_nulls() for kind, numbers in found.items()}
    return {kind: numbers for kind, numbers in read.items() if len(numbers)}


def recognise(values: pl.Series) -> tuple[str | None, pl.Series]:
    """Return the kind of a column's cells, and the cells.

    If all cells of a text column are numbers, dates, times or booleans, this is their kind. Numbers
    such as 01234 count as text. Texts of numbers, dates and times are converted to floats. The kind
    is None if no model can use the column's type.
    """
    if values.dtype != pl.String:
        return kind_of_type(values), values
    sample = values.drop_nulls().head(_SAMPLE)
    for kind in ("number", "date", "time", "boolean"):
        if _unread_mask(sample, _CONVERT[kind](sample)).any():
            continue
        found = _CONVERT[kind](values)
        if _unread_mask(values, found).any() or (kind == "number" and begin_with_zero(values)):
            continue
        return kind, values if kind == "boolean" else found.fill_nan(None)
    return "text", values


def begin_with_zero(values: pl.Series) -> bool:
    """Return whether a text column has cells such as 01234, which are codes, not quantities."""
    zero = values.str.starts_with("0") & (values.str.len_bytes() > 1)
    return bool((zero & values.str.contains(_CODE)).any()) if zero.any() else False


def kind_of_type(values: pl.Series) -> str | None:
    """Return the kind of cells by the column's type; None if no model can use the type."""
    kind = values.dtype
    if kind.is_numeric():
        return "number"
    if _has_type(values, pl.Date, pl.Datetime):
        return "date"
    if _has_type(values, pl.String, pl.Null):
        return "text"
    return "time" if kind == pl.Time else "boolean" if kind == pl.Boolean else None


def _has_type(values: pl.Series, *types: type[pl.DataType]) -> bool:
    return any(values.dtype == found for found in types)


class CellCount(NamedTuple):
    """Counts of a column's cells that are of one kind, and of all its other cells."""

    kind: str
    share: float  # of this kind, among all cells with a value
    others: int = 0  # cells with a value that are not of this kind
    different: int = 0  # texts of the column
    different_others: int = 0  # different texts that are not of this kind
    first: str = ""  # cell that is not of this kind
    row: int = 0  # of `first`, from 0

    def are_most(self, least: float = MOSTLY) -> bool:
        """Return whether nearly all cells, or nearly all different texts, are of this kind.

        The result is False if all cells are of this kind. `least` is the smallest share of the
        cells that counts as nearly all.
        """
        few = self.different_others <= FEW_TEXTS * self.different
        return self.others > 0 and (self.share >= least or few)

    @property
    def words(self) -> str:
        """A clause such as "97% of its cells are numbers"."""
        if self.share >= _HALF:
            return f"{min(99, round(100 * self.share))}% of its cells are {self.kind}s"
        count = self.different - self.different_others
        return f"{count} of its {self.different} different texts are {self.kind}s"


def count_cells(kind: str, values: pl.Series) -> CellCount:
    """Count the cells of a column that are of `kind`, and find the first cell that is not."""
    present = len(values) - values.null_count()
    different = values.drop_nulls().unique(maintain_order=True)
    others = different.filter(_unread_mask(different, _CONVERT[kind](different)))
    if not len(others):
        return CellCount(kind, 1.0 if present else 0.0, different=len(different))
    rows = values.is_in(others.implode()).arg_true()
    share = 1 - len(rows) / present
    counts = len(rows), len(different), len(others)
    return CellCount(kind, share, *counts, str(others[0]), int(rows[0]))


def convert_format(values: pl.Series, form: str) -> pl.Series:
    """Convert cells to numbers, or to dates with times, by the study's format `form`.

    `form` is "decimal_point", "decimal_comma" or a strftime format. `values` come from
    `without_nulls`. The caller has checked that all cells have this format.
    """
    if form in DECIMAL_SIGNS:
        return numbers(values, form)
    return values if _has_type(values, pl.Date, pl.Datetime) else parse_moments(values, form)


def numbers(values: pl.Series, kind: str) -> pl.Series:
    """Return cells as Float64; null for missing cells.

    `values` come from `without_nulls`. The numbers depend on `kind`:

    - "number", "decimal_point" and "decimal_comma" give the number.
    - "date" and strftime formats give days since the beginning of 1970 in UTC.
    - "time" gives hours since midnight.
    - "boolean" gives 0 or 1.

    Raises:
        CellError: a cell is not of this kind, or too large for a 32-bit number.
    """
    found = _CONVERT[kind](values) if kind in _CONVERT else _days(values, kind)
    _refuse(
        _unread_mask(values, found),
        values,
        f"is not {_WORDS.get(kind, f'a date in the form {kind}')}",
    )
    found = found.fill_nan(None)
    _refuse(found.abs() > _LARGEST, values, "is infinite or too large for a 32-bit number")
    return found


def kind_now(values: pl.Series, kind: str) -> str:
    """Return "number" if the cells of `kind` are already converted to numbers, otherwise `kind`."""
    return "number" if values.dtype == pl.Float64 else kind


def texts(values: pl.Series, kind: str) -> pl.Series:
    """Return cells as names of categories: 1.0 as "1", and booleans in lower case."""
    if kind == "boolean":
        return _booleans(values)
    found = values.cast(pl.String)
    floats = found.filter(found.str.contains(WHOLE)).unique().to_list()
    return found.replace({text: category(text) for text in floats}) if floats else found


def labels(values: pl.Series, kind: str) -> pl.Series:
    """Return a target's cells as class names, such as "1" for 1.0.

    `values` come from `without_nulls`. Don't pass the floats from `recognise`, because they can't
    represent all large whole numbers. CellError if `kind` is "number" and a cell is no number or
    too large for a 32-bit number.
    """
    if kind != "number":
        return texts(values, kind)
    found = numbers(values, kind)
    if (found.drop_nulls() % 1 == 0).all():
        exact = texts(values.cast(pl.String).str.strip_chars(), "text").str.strip_chars_start("+")
        rounded = found.cast(pl.Int64, strict=False).cast(pl.String)
        return pl.select(pl.when(exact.str.contains(_DIGITS)).then(exact).otherwise(rounded))[
            values.name
        ]
    return found.cast(pl.String)


def codes(values: pl.Series, vocabulary: Iterable[str]) -> pl.Series:
    """Return texts as Int32 codes: the position in `vocabulary` + 1, or 0 for a text not in it.

    A missing text counts as the empty text, which a vocabulary may contain.
    """
    known = category_codes([*vocabulary])
    if not known:
        return pl.zeros(len(values), pl.Int32, eager=True)
    return values.fill_null("").replace_strict(known, default=0, return_dtype=pl.Int32)


def _unread_mask(values: pl.Series, found: pl.Series) -> pl.Series:
    """Return a mask of the cells whose conversion failed: they have a value, but `found` has null.

    A text of blanks counts as no value.
    """
    unread = found.is_null() & values.is_not_null()
    if values.dtype == pl.String and unread.any():
        unread &= values.str.strip_chars() != ""
    return unread


def _refuse(invalid: pl.Series, values: pl.Series, why: str) -> None:
    if invalid.any():
        row = int(invalid.fill_null(value=False).arg_true()[0])
        raise CellError(row, f"{str(values[row])!r} {why}")


def _numbers(values: pl.Series) -> pl.Series:
    if values.dtype == pl.String:
        found = values.cast(pl.Float64, strict=False)
        if found.null_count() == values.null_count():
            return found
        return values.str.strip_chars().cast(pl.Float64, strict=False)  # with blanks, or no number
    if values.dtype.is_numeric() or _has_type(values, pl.Boolean, pl.Null):
        return values.cast(pl.Float64)
    return _null_numbers(values)


def _null_numbers(values: pl.Series) -> pl.Series:
    return pl.Series([None] * len(values), dtype=pl.Float64)


def _convert_amounts(values: pl.Series, kind: str) -> pl.Series:
    return parse_amounts(values, kind) if values.dtype == pl.String else _numbers(values)


def _days(values: pl.Series, form: str | None = None) -> pl.Series:
    if not _has_type(values, pl.Date, pl.Datetime):
        if form:
            values = parse_moments(values, form)
        elif values.dtype == pl.String:
            values = moments(values)
        else:
            return _null_numbers(values)
    return values.cast(pl.Datetime("us")).to_physical().cast(pl.Float64) / _DAY


def _hours(values: pl.Series) -> pl.Series:
    if values.dtype == pl.String:
        plain = values.str.strip_chars()
        found = [plain.str.to_time(form, strict=False) for form in _TIMES]
        values = pl.select(pl.coalesce(found)).to_series()
    if values.dtype != pl.Time:
        return _null_numbers(values)
    return values.to_physical().cast(pl.Float64) / _HOUR


def _booleans(values: pl.Series) -> pl.Series:
    """Return "true" and "false" for booleans, for such texts, and for numbers 1 and 0."""
    words = values.cast(pl.String).str.strip_chars().str.to_lowercase()
    if values.dtype.is_numeric():  # polars makes floats of numpy's booleans
        return words.replace({"0": "false", "0.0": "false", "1": "true", "1.0": "true"})
    return words


def _zero_or_one(values: pl.Series) -> pl.Series:
    words = _booleans(values)
    return words.replace_strict({"false": 0.0, "true": 1.0}, default=None, return_dtype=pl.Float64)


_CONVERT: dict[str, Callable[[pl.Series], pl.Series]] = {
    "number": _numbers,
    "date": _days,
    "time": _hours,
    "boolean": _zero_or_one,
    **{kind: partial(_convert_amounts, kind=kind) for kind in DECIMAL_SIGNS},
}
_WORDS = {
    "date": "a date",
    "time": "a time",
    "boolean": "true or false",
    **dict.fromkeys(("number", *DECIMAL_SIGNS), "a number"),
}
