"""What the cells of a column hold, and how they become numbers or text.

Training and prediction read their cells here alone, so a value means the same in both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

KINDS = ("number", "date", "time", "boolean", "text")

_LARGEST = float(np.finfo(np.float32).max)
_DAY, _HOUR = 86_400e6, 3_600e9  # in the units that polars keeps dates (µs) and times (ns) in
_SAMPLE = 64  # cells; most columns are told apart by these
_DATES = [  # ISO 8601: no other form says which number is the month
    "%Y-%m-%d",
    "%Y-%m-%d %H:%M",
    "%Y-%m-%d %H:%M:%S%.f",
]
_ZONED = ["%Y-%m-%d %H:%M%z", "%Y-%m-%d %H:%M:%S%.f%z"]
_OFFSET = r"[0-9][+-][0-9][0-9]:?[0-9][0-9]$"
# Amounts as people write them: 4.729,04 and 4 729,04; 4,729.04; each with a sign of money or %.
_MONEY = r"[$€£¥₹%]|\b(?:EUR|USD|GBP|CHF|kr)\b|[\s'\x{2019}]"
_DECIMAL_COMMA = r"^[-+\x{2212}]?(\d+|\d{1,3}(\.\d{3})+),\d+$"
_WITH_THOUSANDS = r"^[-+\x{2212}]?\d{1,3}([.,]\d{3})+(\.\d+)?$"
# Days as people write them: 01.08.2024, 8/1/24, 2024/08/01; the order is not to be seen.
_DAY_AS_WRITTEN = r"^(\d{1,2}([./-])\d{1,2}[./-](\d{4}|\d{2})|\d{4}[./]\d{1,2}[./]\d{1,2})\b"
MOSTLY = 0.9  # of the cells
_TIMES = ["%H:%M", "%H:%M:%S%.f"]


class CellError(ValueError):
    """A cell doesn't hold what its column does.

    Attributes:
        row: its number, from 0.
        why: what is wrong, with the value.
    """

    def __init__(self, row: int, why: str) -> None:
        super().__init__(why)
        self.row, self.why = row, why


def without_nulls(frame: pl.DataFrame, null_values: Sequence[str]) -> pl.DataFrame:
    """Return the frame with its missing values as nulls: the texts given, empty cells and NaN."""
    texts = pl.Series([*null_values, ""], dtype=pl.String)
    columns = []
    for column in frame.iter_columns():
        values = column
        if _is(column, pl.Categorical, pl.Enum):
            values = column.cast(pl.String)
        if values.dtype == pl.String:
            values = values.set(values.is_in(texts.implode()), None)
        elif values.dtype.is_float():
            values = values.fill_nan(None)
        columns.append(values)
    return frame.with_columns(columns)


def recognise(values: pl.Series) -> tuple[str | None, pl.Series]:
    """Return what a column's cells hold, and the cells: as numbers where text turns out to be some.

    Text is a number, a date, a time or a boolean if every cell is. The kind is None where no model
    can use the column's type.
    """
    if values.dtype != pl.String:
        return _kind_of_type(values), values
    sample = values.drop_nulls().head(_SAMPLE)
    for kind in ("number", "date", "time", "boolean"):
        if _unread(sample, _CONVERT[kind](sample)).any():
            continue
        found = _CONVERT[kind](values)
        if _unread(values, found).any() or (kind == "number" and begin_with_zero(values)):
            continue
        return kind, values if kind == "boolean" else found.fill_nan(None)
    return "text", values


def begin_with_zero(values: pl.Series) -> bool:
    """Tell whether a text column has numbers such as 01234, which are codes and no quantities."""
    zero = values.str.starts_with("0") & (values.str.len_bytes() > 1)
    return bool((zero & values.str.contains(r"^0[0-9]")).any()) if zero.any() else False


def _kind_of_type(values: pl.Series) -> str | None:
    kind = values.dtype
    if kind.is_numeric():
        return "number"
    if _is(values, pl.Date, pl.Datetime):
        return "date"
    for found, word in [(pl.Time, "time"), (pl.Boolean, "boolean"), (pl.Null, "text")]:
        if kind == found:
            return word
    return None


def _is(values: pl.Series, *types: type[pl.DataType]) -> bool:
    return any(values.dtype == found for found in types)


class Understood(NamedTuple):
    """How many cells of a text column are of one kind, such as numbers.

    Attributes:
        share: those that are, of all that are not missing.
        others: how many are not.
        first: the first of these; empty where there is none.
        row: its number, from 0.
    """

    share: float
    others: int = 0
    first: str = ""
    row: int = 0

    @property
    def percent(self) -> int:
        """The share as a person is told it: never 100 where a cell is another."""
        return min(99, round(100 * self.share))

    def are_most(self, least: float = MOSTLY) -> bool:
        """Whether the column was meant so, and a few cells are something else."""
        return self.others > 0 and self.share >= least


def understood_as(kind: str, values: pl.Series) -> Understood:
    """Return how many cells of a text column are of a kind, and which is the first that isn't."""
    present = len(values) - values.null_count()
    rows = _unread(values, _CONVERT[kind](values)).arg_true()
    if not len(rows):
        return Understood(1.0 if present else 0.0)
    row = int(rows[0])
    return Understood(1 - len(rows) / present, len(rows), str(values[row]), row)


def as_people_write_numbers(values: pl.Series) -> str:
    """Return what to do where a text column holds numbers with commas, blanks or signs of money.

    Empty where it holds something else.
    """
    if values.dtype != pl.String:
        return ""
    present = values.drop_nulls().str.strip_chars()
    other = present.filter(_floats(present).is_null())
    bare = other.str.replace_all(_MONEY, "")
    read = bare.str.contains(_DECIMAL_COMMA) | bare.str.contains(_WITH_THOUSANDS)
    read |= bare.cast(pl.Float64, strict=False).is_not_null()
    if not read.any() or len(other) - int(read.sum()) > (1 - MOSTLY) * len(present):
        return ""
    return (
        f"text such as {other.filter(read)[0]!r}: write a point before decimals, and neither "
        "separators nor units"
    )


def as_people_write_dates(values: pl.Series) -> str:
    """Return what to do where a text column holds dates in another form than ISO 8601's.

    Empty where it holds something else.
    """
    if values.dtype != pl.String:
        return ""
    present = values.drop_nulls().str.strip_chars()
    dates = present.filter(present.str.contains(_DAY_AS_WRITTEN))
    if len(dates) == 0 or len(dates) < MOSTLY * len(present):
        return ""
    return f"dates such as {dates[0]!r}, whose order nobody can tell: write YYYY-MM-DD"


def numbers(values: pl.Series, kind: str) -> pl.Series:
    """Return a column's cells as Float64, null where they are missing.

    Args:
        values: as `without_nulls` left them.
        kind: "number"; "date" (days since 1970 began, in UTC); "time" (hours since midnight);
            "boolean" (0 or 1).

    Raises:
        CellError: a cell is no such thing.
    """
    found = _CONVERT[kind](values)
    words = {"number": "a number", "boolean": "true or false"}.get(kind, f"a {kind}")
    _refuse(_unread(values, found), values, f"is not {words}")
    found = found.fill_nan(None)
    _refuse(found.abs() > _LARGEST, values, "is infinite or too large for a 32-bit number")
    return found


def texts(values: pl.Series, kind: str) -> pl.Series:
    """Return a column's cells as text, null where they are missing; booleans in lower case."""
    found = values.cast(pl.String)
    return found.str.to_lowercase() if kind == "boolean" else found


def labels(values: pl.Series, kind: str) -> pl.Series:
    """Return a target's cells as the names of classes: whole numbers without a fraction."""
    if kind != "number":
        return texts(values, kind)
    found = numbers(values, kind)
    if (found.drop_nulls() % 1 == 0).all():
        return found.cast(pl.Int64, strict=False).cast(pl.String)
    return found.cast(pl.String)


def codes(values: pl.Series, vocabulary: Iterable[str]) -> pl.Series:
    """Return texts as Int32: position in the vocabulary + 1; 0 for any other.

    A missing one is 0 as well, unless the vocabulary has the empty text, as `write_table` may give.
    """
    known = {value: code for code, value in enumerate(vocabulary, start=1)}
    if not known:
        return pl.zeros(len(values), pl.Int32, eager=True)
    return values.fill_null("").replace_strict(known, default=0, return_dtype=pl.Int32)


def _unread(values: pl.Series, found: pl.Series) -> pl.Series:
    """Return which cells hold something that could not be read; blanks are nothing."""
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
        return _floats(values)
    if values.dtype.is_numeric() or _is(values, pl.Boolean, pl.Null):
        return values.cast(pl.Float64)
    return pl.Series([None] * len(values), dtype=pl.Float64)


def _floats(values: pl.Series) -> pl.Series:
    found = values.cast(pl.Float64, strict=False)
    if found.null_count() > values.null_count():  # blanks beside a number, or no number
        found = values.str.strip_chars().cast(pl.Float64, strict=False)
    return found


def _days(values: pl.Series) -> pl.Series:
    if values.dtype == pl.String:
        plain = values.str.strip_chars().str.replace("T", " ", literal=True)
        plain = plain.str.replace("Z$", "+00:00")
        found = [plain.str.to_datetime(form, time_unit="us", strict=False) for form in _DATES]
        if plain.str.contains(_OFFSET).any():
            zoned = [
                plain.str.to_datetime(form, time_unit="us", time_zone="UTC", strict=False)
                for form in _ZONED
            ]
            found += [series.dt.replace_time_zone(None) for series in zoned]
        values = _first_of(found)
    if not _is(values, pl.Date, pl.Datetime):
        return pl.Series([None] * len(values), dtype=pl.Float64)
    return values.cast(pl.Datetime("us")).to_physical().cast(pl.Float64) / _DAY


def _hours(values: pl.Series) -> pl.Series:
    if values.dtype == pl.String:
        plain = values.str.strip_chars()
        values = _first_of([plain.str.to_time(form, strict=False) for form in _TIMES])
    if values.dtype != pl.Time:
        return pl.Series([None] * len(values), dtype=pl.Float64)
    return values.to_physical().cast(pl.Float64) / _HOUR


def _first_of(found: list[pl.Series]) -> pl.Series:
    return pl.select(pl.coalesce(found)).to_series()


def _zero_or_one(values: pl.Series) -> pl.Series:
    words = values.cast(pl.String).str.strip_chars().str.to_lowercase()
    return words.replace_strict({"false": 0.0, "true": 1.0}, default=None, return_dtype=pl.Float64)


_CONVERT = {"number": _numbers, "date": _days, "time": _hours, "boolean": _zero_or_one}
