"""Predict rows with a model of the reference trainer: CSV and Parquet in, CSV out."""

from __future__ import annotations

import csv
import io
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import polars as pl

from trialfleet.spelling import did_you_mean
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
    import numpy as np
    import numpy.typing as npt

    from trialfleet.nodes.tabular.predict import Model
    from trialfleet.nodes.tabular.table import Columns

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


class UnknownCategories:
    """Counts the rows whose category of a column a model has not seen; missing ones apart."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._examples: dict[str, str] = {}  # of each column the first
        self._vocabularies: dict[str, list[str]] = {}
        self._rows = 0

    def look_at(self, columns: Columns, rows: pl.DataFrame, codes: npt.NDArray[np.int32]) -> None:
        """Count in more rows.

        Args:
            columns: the model's.
            rows: without the texts that stand for a missing value.
            codes: of their categories, [n, k], 0 where one is unknown.
        """
        self._rows += len(rows)
        for place, (name, vocabulary) in enumerate(columns.categorical.items()):
            is_unknown = pl.Series(codes[:, place] == 0) & rows[name].is_not_null()
            if not (count := int(is_unknown.sum())):
                continue
            texts = cells.texts(rows[name], columns.kinds.get(name, "text"))
            self._counts[name] += count
            self._examples.setdefault(name, str(texts.filter(is_unknown)[0]))
            self._vocabularies[name] = vocabulary

    def lines(self) -> list[str]:
        """Return a sentence for each column that has any."""
        return [
            f"{name}: {count:,} of {self._rows:,} rows have a category that the model doesn't "
            f"know, such as {self._example(name)}: it has no part in their predictions"
            for name, count in self._counts.items()
        ]

    def _example(self, name: str) -> str:
        example = self._examples[name]
        return f"{example!r}{did_you_mean(example, self._vocabularies[name])}"


def predict_file(
    folder: Path, rows: Path, out: TextIO, unknown: UnknownCategories | None = None
) -> int:
    """Copy a CSV or Parquet file to `out` as CSV, a column with the prediction added at the end.

    The new column is called `predicted_` and the target's name. A file whose name doesn't end in
    .parquet or .pq is CSV, with a header.

    Args:
        folder: a published model, or a trial's `model`.
        rows: the file.
        out: where to.
        unknown: counts the categories that the model doesn't know.

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
            return _copy_frame(model, read_rows(rows, "parquet"), out, unknown)
        return _copy_csv(model, rows, out, unknown)
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


def _predictions(
    model: Model, frame: pl.DataFrame, first_row: int, unknown: UnknownCategories | None = None
) -> list[float] | list[str]:
    needed = frame.select(model.columns.needed)
    present = cells.without_nulls(needed, model.columns.null_values)
    numbered = range(first_row, first_row + len(frame))
    numeric, categorical = encode(present, model.columns, numbered)
    if unknown:
        unknown.look_at(model.columns, present, categorical)
    return model.predict(numeric, categorical)


def _copy_csv(model: Model, rows: Path, out: TextIO, unknown: UnknownCategories | None) -> int:
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
            predictions = _predictions(model, frame, count + 1, unknown)
            for row, value in zip(batch, map(_short, predictions), strict=True):
                writer.writerow([*row, value])
            count += len(batch)
    return count


def _batches(rows: Iterator[list[str]]) -> Iterator[list[list[str]]]:
    while batch := list(itertools.islice(rows, BATCH)):
        yield batch


def _copy_frame(
    model: Model, frame: pl.DataFrame, out: TextIO, unknown: UnknownCategories | None
) -> int:
    model.columns.check_header(frame.columns)
    if nested := [name for name, kind in frame.schema.items() if kind.is_nested()]:
        raise ValueError(f"CSV can't hold the columns {', '.join(nested)}: each cell is a list")
    name = f"predicted_{model.columns.target}"
    for start in range(0, len(frame), BATCH):
        batch = frame.slice(start, BATCH)
        values = pl.Series(name, [*map(_short, _predictions(model, batch, start + 1, unknown))])
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
