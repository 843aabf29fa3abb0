"""The predictions that `trialfleet predict` makes for the rows of a CSV or Parquet file."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import numpy as np
import polars as pl

from trialfleet.spelling import did_you_mean
from trialfleet.workflows.tables import cells, csv_rows
from trialfleet.workflows.tables.encoding import encode
from trialfleet.workflows.tables.reading import PARQUET, read_rows

_PREDICTED = "\0"  # a name that no column of a file can have

if TYPE_CHECKING:
    import numpy.typing as npt

    from trialfleet.nodes.tabular.predict import Model
    from trialfleet.nodes.tabular.table import Columns


def predict(
    folder: str | PathLike[str], rows: Iterable[Mapping[str, object]]
) -> list[float] | list[str]:
    """Return a prediction for each row, made by a model of `trainer: tabular`.

    With two classes, a prediction is the probability of the second class. With more classes, it is
    the most likely class. For a regression, it is the predicted value.

    Args:
        folder: the folder of a published model, or the folder `model` of a trial.
        rows: mappings from column names to values. A value may have any type that a table may hold.
            Columns that the model doesn't need are ignored. A missing number counts as its
            column's mean in the training rows. An unknown category has no effect.

    Raises:
        ValueError: the folder has no model of `trainer: tabular`, a row has text instead of a
            number, or a column that the model needs is missing.
        OSError: the folder is missing, or can't be read.
    """
    from trialfleet.nodes.tabular.predict import load_model

    return predict_frame(load_model(Path(folder)), frame_of_rows(list(rows)))


def frame_of_rows(rows: Sequence[Mapping[str, object]]) -> pl.DataFrame:
    """Return rows as a frame. A column may have dates and texts, or other types together."""
    names = dict.fromkeys(name for row in rows for name in row)
    return pl.DataFrame(
        [pl.Series(name, [_plain(row.get(name)) for row in rows], strict=False) for name in names]
    )


def _plain(value: object) -> object:
    if isinstance(value, np.datetime64):  # polars can't convert it
        return value.astype("datetime64[us]").item()
    return value


def predict_frame(
    model: Model,
    frame: pl.DataFrame,
    first_row: int = 1,
    unknown: UnknownCategories | None = None,
) -> list[float] | list[str]:
    """Return a prediction for each row of `frame`. See `predict` for the values.

    In errors, `first_row` is the number of the first row. Unknown categories are counted in
    `unknown`. ValueError if the frame can't be used.
    """
    model.columns.check_header(frame.columns)
    needed = frame.select(model.columns.needed_columns)
    present = cells.without_nulls(needed, model.columns.null_values)
    numbered = range(first_row, first_row + len(frame))
    numeric, categorical = encode(present, model.columns, numbered)
    if unknown:
        unknown.count(model.columns, present, categorical)
    return model.predict(numeric, categorical)


class UnknownCategories:
    """Counts the rows with a category that a model doesn't know, for each column."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._examples: dict[str, str] = {}  # the first of each column
        self._vocabularies: dict[str, list[str]] = {}
        self._rows = 0

    def count(self, columns: Columns, rows: pl.DataFrame, codes: npt.NDArray[np.int32]) -> None:
        """Add the unknown categories in `rows` to the counts. Missing values don't count.

        `codes` has the shape (rows, categorical columns). The code of an unknown category is 0.
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
        """Return a sentence for each column in which unknown categories were found."""
        return [
            f"{name}: {self._counts[name]:,} of {self._rows:,} rows have a category that the model "
            f"doesn't know, such as {example!r}{did_you_mean(example, self._vocabularies[name])}: "
            "the predictions for these rows ignore it"
            for name, example in self._examples.items()
        ]


def predict_file(
    folder: Path, rows: Path, out: TextIO, unknown: UnknownCategories | None = None
) -> int:
    """Copy the table in the file `rows` to `out` as CSV, with a column of predictions added.

    Return the number of rows. `folder` contains the model. The new column is called
    `predicted_TARGET`, where TARGET is the target's name. A file whose name ends in .parquet or .pq
    is read as Parquet. Any other file is read as CSV with a header. Unknown categories are counted
    in `unknown`.

    Raises:
        ValueError: the folder has no model of `trainer: tabular`, or the rows can't be used.
        OSError: a file can't be read.
    """
    from trialfleet.nodes.tabular.predict import load_model

    model = load_model(folder)
    try:
        if rows.name.lower().endswith(PARQUET):
            frame = read_rows(rows, "parquet")
            return _copy(model, frame.columns, frame.iter_slices(csv_rows.BATCH), out, unknown)
        with csv_rows.opened_csv(rows) as opened:
            return _copy(model, opened.header, opened.frames, out, unknown)
    except ValueError as error:
        raise ValueError(f"{rows}: {error}") from error


def _copy(
    model: Model,
    header: Sequence[str],
    frames: Iterable[pl.DataFrame],
    out: TextIO,
    unknown: UnknownCategories | None,
) -> int:
    model.columns.check_header(header)
    csv.writer(out, lineterminator="\n").writerow([*header, f"predicted_{model.columns.target}"])
    count = 0
    for frame in frames:
        if unfit := [
            f"{name} ({kind})"
            for name, kind in frame.schema.items()
            if kind.is_nested() or kind in (pl.Duration, pl.Binary, pl.Object)
        ]:
            raise ValueError(
                f"CSV can't hold the columns {', '.join(unfit)}; remove these columns from the rows"
            )
        predicted = predict_frame(model, frame, count + 1, unknown)
        values = pl.Series(_PREDICTED, _round_predictions(model, predicted))
        out.write(frame.with_columns(values).write_csv(include_header=False))
        count += len(frame)
    return count


def _round_predictions(model: Model, values: list[float] | list[str]) -> list[float | str]:
    """Round predictions, since the digits beyond a 32-bit number's precision mean nothing."""
    digits = model.significant_digits
    return [float(f"{each:.{digits}g}") if isinstance(each, float) else each for each in values]
