"""Reading the rows of a CSV or Parquet file."""

from __future__ import annotations

import csv
import gzip
import itertools
from collections import Counter
from pathlib import Path

import polars as pl
from polars.exceptions import PolarsError

CSV = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".txt")
PARQUET = (".parquet", ".pq")
NPZ = (".npz",)
_GZIP = b"\x1f\x8b"
_SEPARATORS = ",;\t|"
_HEADER = 1 << 20  # bytes that are looked at


class UnreadableTableError(ValueError):
    """A file is no table; the message says why and doesn't name the file."""


def format_of(name: str) -> str:
    """Return "csv", "parquet" or "npz", by a file's name or URL.

    Raises:
        UnreadableTableError: it is none of them.
    """
    for form, endings in [("csv", CSV), ("parquet", PARQUET), ("npz", NPZ)]:
        if name.lower().endswith(endings):
            return form
    raise UnreadableTableError(
        "trainer: tabular reads .csv, .tsv, .csv.gz, .parquet, and the .npz of write_table"
    )


def read_rows(path: Path, form: str) -> pl.DataFrame:
    """Return all rows of a file: of CSV as text, of Parquet as it has them.

    Args:
        path: the file.
        form: "csv" or "parquet".

    Raises:
        UnreadableTableError: it is no such file, or has no rows.
        OSError: it can't be read.
    """
    try:
        frame = _read_csv(path) if form == "csv" else pl.read_parquet(path, glob=False)
    except PolarsError as error:
        ragged = form == "csv" and "more fields" in str(error)
        where = _of_another_length(path) if ragged else None
        why = where or _plainer(str(error))
        raise UnreadableTableError(f"is no {_WORDS[form]}: {why}") from error
    if not len(frame):
        raise UnreadableTableError("has a header and no rows" if frame.columns else "is empty")
    return frame


_WORDS = {"csv": "CSV that can be read", "parquet": "Parquet file that can be read"}


def _plainer(text: str) -> str:
    if "more fields" in text:
        return "a row has more cells than the header"
    if "utf-8" in text:
        return "it is no text in UTF-8; save it as UTF-8"
    if "not properly escaped" in text:
        return "a quote that is opened is not closed"
    return next(iter(text.strip().splitlines()), "polars can't say why")


def _of_another_length(path: Path) -> str | None:
    """Which line has more or fewer cells than the header; None where none has, or it is unknown."""
    opened = gzip.open if path.read_bytes()[:2] == _GZIP else open
    with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
        first = file.readline()
        reader = csv.reader(itertools.chain([first], file), delimiter=separator_of(first))
        try:
            width = len(next(reader))
            for row in reader:
                if row and len(row) != width:  # a blank line is no row
                    cells = f"{len(row)} cell{'' if len(row) == 1 else 's'}"
                    return f"line {reader.line_num} has {cells}, the header {width}"
        except (csv.Error, UnicodeDecodeError):
            return None
    return None


def _read_csv(path: Path) -> pl.DataFrame:
    header = _header_line(path)
    separator = separator_of(header)
    names = next(csv.reader([header], delimiter=separator), [])
    check_names(names)
    frame = pl.read_csv(path, separator=separator, infer_schema=False, glob=False)
    frame.columns = names  # polars would invent one for a column that has none
    if frame[:, -1].null_count() and (where := _of_another_length(path)):  # polars fills short rows
        raise UnreadableTableError(f"is no {_WORDS['csv']}: {where}")
    return frame.filter(~pl.all_horizontal(pl.all().is_null()))  # a blank line is no row


def check_names(names: list[str]) -> None:
    """Raise UnreadableTableError unless every column has a name of its own; one may have none."""
    if not any(names):
        raise UnreadableTableError("has no header: its first line must name the columns")
    if doubled := [name for name, count in Counter(names).items() if count > 1]:
        raise UnreadableTableError(f"has several columns called {', '.join(map(repr, doubled))}")


def separator_of(header: str) -> str:
    """Return what stands between the cells, by the header: a comma, or what it has instead."""
    counts = {mark: header.count(mark) for mark in _SEPARATORS}
    return "," if counts[","] else max(_SEPARATORS, key=lambda mark: counts[mark])


def _header_line(path: Path) -> str:
    with path.open("rb") as file:
        start = file.read(_HEADER)
        if start.startswith(_GZIP):
            file.seek(0)
            with gzip.open(file) as unpacked:
                start = unpacked.read(_HEADER)
    if not start.strip():
        raise UnreadableTableError("is empty")
    line = start.splitlines()[0]
    if b"\r" in start and b"\n" not in start:
        raise UnreadableTableError("ends its lines as old Macs did, by CR alone; save it with LF")
    try:
        return line.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise UnreadableTableError(
            f"is no text in UTF-8: it has the byte 0x{byte:02x}; save it as UTF-8"
        ) from error
