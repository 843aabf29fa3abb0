"""Predict rows with a model of the reference trainer: CSV and Parquet in, CSV out."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import polars as pl

from trialfleet.workflows.tables import cells
from trialfleet.workflows.tables.building import encode
from trialfleet.workflows.tables.reading import (
    UnreadableTableError,
    check_names,
    format_of,
    read_rows,
    separator_of,
)

if TYPE_CHECKING:
    from trialfleet.nodes.tabular.predict import Model

BATCH = 65536  # rows in memory at once


def predict(folder: Path, rows: Iterable[Mapping[str, object]]) -> list[float] | list[str]:
    """Predict rows.

    Args:
        folder: a published model, or a trial's `model`.
        rows: column name → value, of any type that a table may hold. Further columns are ignored;
            what is missing or None stands for the training rows' mean; an unknown category has no
            opinion.

    Returns:
        Per row: the probability of the second class (two classes), the likeliest class (more), or
        the value (regression).

    Raises:
        ValueError: the folder holds no such model, or a row has text for a number, or a column is
            in no row; the message names row and column and the columns that the model needs.
    """
    from trialfleet.nodes.tabular.predict import load_model

    model = load_model(folder)
    frame = pl.DataFrame(list(rows), infer_schema_length=None, strict=False)
    model.columns.check_header(frame.columns)
    return _predictions(model, frame, 1)


def predict_file(folder: Path, rows: Path, out: TextIO) -> int:
    """Copy a CSV or Parquet file to `out` as CSV, a column with the prediction added at the end.

    The new column is called `predicted_` and the target's name. A file whose name doesn't end in
    .parquet or .pq is CSV, with a header.

    Returns:
        The number of rows.

    Raises:
        ValueError: as `predict`; or the file is no table, or has rows longer than its header.
        OSError: a file can't be read.
    """
    from trialfleet.nodes.tabular.predict import load_model

    model = load_model(folder)
    try:
        if _is_parquet(rows):
            return _copy_frame(model, read_rows(rows, "parquet"), out)
        return _copy_csv(model, rows, out)
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise ValueError(f"{rows}: is no text in UTF-8: it has the byte 0x{byte:02x}") from error
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{rows}: {error}") from error


def _is_parquet(rows: Path) -> bool:
    try:
        return format_of(rows.name) == "parquet"
    except UnreadableTableError:  # a pipe, perhaps
        return False


def _predictions(model: Model, frame: pl.DataFrame, first_row: int) -> list[float] | list[str]:
    needed = frame.select(model.columns.needed)
    present = cells.without_nulls(needed, model.columns.null_values)
    return model.predict(*encode(present, model.columns, range(first_row, first_row + len(frame))))


def _copy_csv(model: Model, rows: Path, out: TextIO) -> int:
    """Copy the cells as they stand, a batch at a time; the file may be a pipe."""
    count = 0
    with rows.open(encoding="utf-8-sig", newline="") as file:
        first = file.readline()
        separator = separator_of(first)
        reader = csv.reader(itertools.chain([first], file), delimiter=separator)
        header = next(reader, [])
        model.columns.check_header(header)
        check_names(header)
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([*header, f"predicted_{model.columns.target}"])
        for batch in _batches(row for row in reader if row):
            _check_lengths(batch, len(header), count + 1)
            frame = pl.DataFrame(batch, schema=dict.fromkeys(header, pl.String), orient="row")
            predictions = _predictions(model, frame, count + 1)
            for row, value in zip(batch, map(_short, predictions), strict=True):
                writer.writerow([*row, value])
            count += len(batch)
    return count


def _batches(rows: Iterator[list[str]]) -> Iterator[list[list[str]]]:
    while batch := list(itertools.islice(rows, BATCH)):
        yield batch


def _copy_frame(model: Model, frame: pl.DataFrame, out: TextIO) -> int:
    model.columns.check_header(frame.columns)
    if nested := [name for name, kind in frame.schema.items() if kind.is_nested()]:
        raise ValueError(f"CSV can't hold the columns {', '.join(nested)}: each cell is a list")
    name = f"predicted_{model.columns.target}"
    for start in range(0, len(frame), BATCH):
        batch = frame.slice(start, BATCH)
        values = pl.Series(name, [*map(_short, _predictions(model, batch, start + 1))])
        text = io.StringIO()
        batch.with_columns(values).write_csv(text, include_header=start == 0)
        out.write(text.getvalue())
    return len(frame)


def _short(value: float | str) -> float | str:
    """A number as far as a model's 32 bits carry."""
    return float(f"{value:.7g}") if isinstance(value, float) else value


def _check_lengths(batch: Sequence[Sequence[Any]], width: int, first_row: int) -> None:
    """Raise ValueError for a row with more or fewer cells than the header."""
    for number, row in enumerate(batch, start=first_row):
        if len(row) != width:
            size = "longer" if len(row) > width else "shorter"
            raise ValueError(f"row {number} below the header is {size} than it")
