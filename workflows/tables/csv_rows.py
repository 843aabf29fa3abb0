"""The rows of a CSV file as text, read by the same rules as in pandas.

Prediction uses Python's csv module. Training uses polars, which is ten times as fast, for files
that both read alike. For other files, training uses the csv module, too.
"""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import re
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import polars as pl
from polars.exceptions import PolarsError

BATCH = 65536  # rows in memory at the same time
UNNAMED = re.compile(r"Unnamed: \d+")  # pandas' name for a column without a name
_GZIP = b"\x1f\x8b"
_UTF8, _UTF16 = b"\xef\xbb\xbf", (b"\xff\xfe", b"\xfe\xff")  # byte order marks
_NO_TEXT = {  # by the file's first bytes
    b"PK\x03\x04": "is a ZIP archive, as Excel workbooks are; save the table as CSV",
    b"PAR1": "is Parquet; its name has to end in .parquet",
    b"(\xb5/\xfd": "is compressed by zstd; unpack it, or compress it by gzip",
    b"BZh": "is compressed by bzip2; unpack it, or compress it by gzip",
    b"\xfd7zXZ": "is compressed by xz; unpack it, or compress it by gzip",
}
_SEPARATORS = ",;\t|"
_SEPARATOR_LINE = re.compile(r'"?sep=(.)"?\s*', re.IGNORECASE)  # Excel writes it above the header
_HEAD = 64  # lines from which the separator is inferred
_NUL = "\0"
_NO_CHARACTER = re.compile("[\0\udc80-\udcff]")  # NUL, or a byte that is not UTF-8


class TableError(ValueError):
    """A file is no table, or can't be used for training. `problems` omit the file's name."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclass(frozen=True, kw_only=True)
class CsvRows:
    """An open CSV file."""

    header: list[str]  # its cells, unchanged except that CR LF becomes LF
    names: list[str]  # of the columns, all different
    separator: str
    frames: Iterator[pl.DataFrame]  # the rows as text, in batches; empty cells are null


@contextmanager
def opened_csv(path: Path) -> Iterator[CsvRows]:
    """Open a CSV file or a pipe, and yield its rows.

    Raises:
        TableError: the CSV is invalid. This may be raised later, while `frames` are read.
        OSError: the file can't be read.
    """
    with path.open("rb") as file:
        yield _parse(_decompress(file))


def read_csv(path: Path) -> pl.DataFrame:
    """Return all rows of a CSV file. TableError for invalid CSV, OSError if it can't be read."""
    with path.open("rb") as file:
        try:
            data = _decompress(file).read()
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise _damaged_error(error) from error
    rows = _parse(io.BufferedReader(io.BytesIO(data)))
    frame = _read_with_polars(data, rows)
    if frame is None:
        empty = pl.DataFrame(schema=dict.fromkeys(rows.names, pl.String))
        frame = pl.concat([empty, *rows.frames])
    return frame


def _decompress(file: io.BufferedReader) -> io.BufferedReader:
    start = file.peek(len(_GZIP))
    for mark, why in _NO_TEXT.items():
        if start.startswith(mark):
            raise TableError(why)
    is_packed = start.startswith(_GZIP)
    return cast("io.BufferedReader", gzip.GzipFile(fileobj=file)) if is_packed else file


def _damaged_error(error: Exception) -> TableError:
    return TableError(f"is not a complete gzip file: {error}")


def _lines(file: io.BufferedReader) -> Iterator[str]:
    try:
        encoding = "utf-16" if file.peek(2).startswith(_UTF16) else "utf-8-sig"
        with io.TextIOWrapper(file, encoding, errors="surrogateescape", newline="") as text:
            for number, line in enumerate(text, start=1):
                if found := _NO_CHARACTER.search(line):
                    where = f"line {number}, character {found.start() + 1}"
                    raise TableError(_not_text_reason(found[0], where))
                yield line
    except UnicodeDecodeError as error:
        raise TableError(f"is not UTF-16 text: {error.reason}") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _damaged_error(error) from error


def _not_text_reason(found: str, where: str) -> str:
    if found == _NUL:
        return f"has a NUL byte in {where}: it is damaged, or UTF-16 without a byte order mark"
    byte = found.encode(errors="surrogateescape")[0]
    return f"is not UTF-8 text: it has the byte 0x{byte:02x} in {where}; save it as UTF-8"


def _parse(file: io.BufferedReader) -> CsvRows:
    csv.field_size_limit(sys.maxsize)  # for the whole process; the default is 128 KiB
    lines = _lines(file)
    head = list(itertools.islice(lines, _HEAD))
    declared = _SEPARATOR_LINE.fullmatch(head[0]) if head else None
    separator = declared[1] if declared else _detect_separator(head)
    skipped = 1 if declared else 0
    records = _records(itertools.chain(head[skipped:], lines), separator, skipped)
    header = next(records, None)
    if header is None:
        raise TableError("is empty")
    cells = [cell.replace("\r\n", "\n") for cell in header.cells]  # same name for CR LF and LF
    names = _names(cells)
    frames = _build_frames(records, names)
    return CsvRows(header=cells, names=names, separator=separator, frames=frames)


def _detect_separator(head: list[str]) -> str:
    def score(mark: str) -> tuple[float, int, int]:
        header, *rows = [len(row) for row in csv.reader(head, delimiter=mark) if row] or [0]
        alike = rows.count(header) / len(rows) if rows and header > 1 else 0.0
        return alike, header, -_SEPARATORS.index(mark)

    return max(_SEPARATORS, key=score)


@dataclass(frozen=True)
class _Record:
    """A row. `first` and `last` are the numbers of its first and last line in the file."""

    cells: list[str]
    first: int
    last: int


def _records(lines: Iterable[str], separator: str, skipped: int) -> Iterator[_Record]:
    """Yield the rows that aren't blank. TableError if a quote is still open at the file's end.

    `skipped` is the number of the file's lines before `lines`. To detect an open quote, this
    function appends a row of NULs, which no file has. If a quote is open, the csv module reads the
    NULs as part of another row.
    """
    end = [_NUL, _NUL]
    reader = csv.reader(itertools.chain(lines, [separator.join(end)]), delimiter=separator)
    first = skipped + 1
    for cells in reader:
        last = skipped + reader.line_num
        if cells and cells[-1].endswith(_NUL):
            if cells != end:
                raise TableError(f"a quote that is opened in line {first} is not closed")
            return
        is_blank = not cells or (len(cells) == 1 and cells[0].isspace())
        if not is_blank:
            yield _Record(cells, first, last)
        first = last + 1


def _names(header: list[str]) -> list[str]:
    if not any(map(str.strip, header)):
        raise TableError("has no header: its first line must name the columns")
    names = [name if name.strip() else f"Unnamed: {i}" for i, name in enumerate(header)]
    if doubled := [name for name, count in Counter(names).items() if count > 1]:
        raise TableError(f"has several columns named {', '.join(map(repr, doubled))}")
    return names


def _build_frames(records: Iterator[_Record], names: list[str]) -> Iterator[pl.DataFrame]:
    schema = dict.fromkeys(names, pl.String)
    while batch := list(itertools.islice(records, BATCH)):
        for record in batch:
            if len(record.cells) != len(names):
                raise TableError(_wrong_length_text(record, len(names)))
        frame = pl.DataFrame([record.cells for record in batch], schema=schema, orient="row")
        yield frame.with_columns(pl.when(pl.all() != "").then(pl.all()))


def _wrong_length_text(record: _Record, width: int) -> str:
    count = len(record.cells)
    is_one = record.first == record.last
    where = f"line {record.first}" if is_one else f"the row of lines {record.first}-{record.last}"
    why = "" if is_one else f"; is a quote in line {record.first} not closed?"
    if any('\\"' in cell or cell.endswith("\\") for cell in record.cells):
        why = '; a quote within a cell is written "", not \\"'
    return f"{where} has {count} cell{'' if count == 1 else 's'}, the header {width}{why}"


def _read_with_polars(data: bytes, rows: CsvRows) -> pl.DataFrame | None:
    """Return the rows read by polars; None if it might read them differently from Python's csv."""
    data = data.removeprefix(_UTF8).strip(b"\r\n")
    has_separator_line = _SEPARATOR_LINE.match(data[:8].decode(errors="replace"))
    if has_separator_line or not _is_plain(data, rows.separator, len(rows.names)):
        return None
    try:
        frame = pl.read_csv(data, has_header=False, separator=rows.separator, infer_schema=False)
    except PolarsError:
        return None
    frame.columns = rows.names
    return frame[1:]


def _is_plain(data: bytes, separator: str, width: int) -> bool:
    """Return whether polars and the csv module read the rows alike.

    They do if `width` is at least two, all rows have `width` cells, lines end in LF or CR LF, and
    each quote encloses a cell or is doubled.
    """
    if width < 2 or b"\0" in data or data.count(b"\r") != data.count(b"\r\n"):
        return False
    text = np.frombuffer(b"\n" + data + b"\n", np.uint8)
    quotes = np.flatnonzero(text == ord('"'))
    opened, closed = quotes[::2], quotes[1::2]
    beside = np.frombuffer(f'{separator}\r\n"'.encode(), np.uint8)
    if len(opened) != len(closed) or not np.isin(text[opened - 1], beside).all():
        return False
    if not np.isin(text[closed + 1], beside).all():
        return False
    ends, separators = (np.flatnonzero(text == ord(mark)) for mark in ("\n", separator))
    if len(quotes):
        ends, separators = (
            places[np.searchsorted(quotes, places) % 2 == 0] for places in (ends, separators)
        )
    if len(separators) != (len(ends) - 1) * (width - 1):
        return False
    of_row = separators.reshape(-1, width - 1)
    return bool(((of_row[:, 0] > ends[:-1]) & (of_row[:, -1] < ends[1:])).all())
