"""Reading of the rows of a CSV or Parquet file."""

from __future__ import annotations

from pathlib import Path

import polars as pl
from polars.exceptions import PolarsError

from trialfleet.workflows.tables.csv_rows import TableError, read_csv

CSV = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".txt")
PARQUET = (".parquet", ".pq")
NPZ = (".npz",)


def file_format(name: str) -> str:
    """Return "csv", "parquet" or "npz" by the ending of a name or URL. TableError for others."""
    for form, endings in [("csv", CSV), ("parquet", PARQUET), ("npz", NPZ)]:
        if name.lower().endswith(endings):
            return form
    raise TableError(
        "must be a .csv, .tsv, .csv.gz or .parquet file, or an .npz file of write_table"
    )


def read_rows(path: Path, form: str) -> pl.DataFrame:
    """Return all rows of a file. The cells of a CSV file are texts.

    TableError if the file is invalid or has no rows. OSError if it can't be read.
    """
    frame = read_csv(path) if form == "csv" else _read_parquet(path)
    if not len(frame):
        raise TableError("has a header and no rows" if frame.columns else "is empty")
    return frame


def _read_parquet(path: Path) -> pl.DataFrame:
    try:
        return pl.read_parquet(path, glob=False)
    except PolarsError as error:
        why = next(iter(str(error).strip().splitlines()), "polars gives no reason")
        raise TableError(f"is not a readable Parquet file: {why}") from error
