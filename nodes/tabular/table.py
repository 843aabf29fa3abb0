"""Reads and writes the file with a region's table for the built-in trainer.

This module needs only numpy. The file is a .npz without pickled objects:

    numeric      [rows, d] float32    NaN for a missing value; float64 if float32 is too coarse
    categorical  [rows, k] int32      0 = unknown, c = the c-th value of the column's vocabulary
    target       [rows]    float64    in a regression: the value
                           float32    in a classification: the class's number
    split        [rows]    int8       TRAIN, VALIDATION or TEST
    meta         JSON text            names, vocabularies, target, task, classes
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

TRAIN, VALIDATION, TEST = 0, 1, 2

# A whole number in the notation of programs that store numbers as floats: 4.0, 1e+05.
WHOLE = r"^-?(0|[1-9][0-9]*)(\.[0-9]*|(\.[0-9]+)?[eE]\+[0-9]{1,2})$"
BLANKS = " \t\n\v\f\r\u00a0"  # characters that are removed at both ends of a text
_ROUNDING = 1e-3  # maximum rounding error of float32, relative to a column's spread
_BOOLEANS = {"true", "false", ""}
SAME = 1e-14  # numbers that differ by less, relative to the largest, count as equal

Task = Literal["classification", "regression"]
Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The names and vocabularies of a table's columns, the types of their values, and the task."""

    numeric: list[str]  # names of the numeric columns, in order
    # Name of each categorical column and its vocabulary, in order.
    categorical: dict[str, list[str]]
    target: str  # name of the column to predict
    task: Task  # "classification" or "regression"
    classes: list[str]  # the names of the classes; empty for regression
    # The kind of a column's cells if they aren't plain numbers or text: "date", "time", "boolean" …
    # A model reads new rows by these kinds, as its table was read.
    kinds: dict[str, str] = field(default_factory=dict)
    null_values: list[str] = field(default_factory=list)  # texts for a missing value
    # Columns without information, which a model of this table doesn't use. The table keeps their
    # values, because models of other days may use these columns.
    unused: list[str] = field(default_factory=list)
    # Columns without a value in any row. The table doesn't have them, but its source does.
    empty: list[str] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """The kind of task: "binary", "multiclass" or "regression"."""
        if self.task == "regression":
            return "regression"
        return "binary" if len(self.classes) == 2 else "multiclass"

    @property
    def needed_columns(self) -> list[str]:
        """The names of all columns that a prediction needs."""
        return [*self.numeric, *self.categorical]

    def check_header(self, names: Sequence[str]) -> None:
        """Raise ValueError unless `names` has every column that a prediction needs."""
        if missing := [name for name in self.needed_columns if name not in names]:
            needed = ", ".join(self.needed_columns)
            raise ValueError(f"there is no column {', '.join(missing)}; the model needs {needed}")


@dataclass(frozen=True, kw_only=True)
class Table:
    """The rows of one region, in the arrays that the module's docstring describes."""

    columns: Columns
    numeric: Floats
    categorical: npt.NDArray[np.int32]
    target: Floats
    split: npt.NDArray[np.int8]

    def used(self) -> Table:
        """Return the table for training, without the columns in `columns.unused`.

        A model can't learn from unused columns, such as one with the same value in each row.
        """
        columns, unused = self.columns, {*self.columns.unused}
        if not unused:
            return replace(self, columns=replace(columns, empty=[]))
        numbers = [name not in unused for name in columns.numeric]
        categories = [name not in unused for name in columns.categorical]
        left = replace(
            columns,
            numeric=[name for name in columns.numeric if name not in unused],
            categorical={
                name: words for name, words in columns.categorical.items() if name not in unused
            },
            kinds={name: kind for name, kind in columns.kinds.items() if name not in unused},
            unused=[],
            empty=[],
        )
        return replace(
            self,
            columns=left,
            numeric=self.numeric[:, numbers],
            categorical=self.categorical[:, categories],
        )


def write_table(
    path: Path,
    columns: Mapping[str, npt.ArrayLike],
    *,
    target: str,
    task: Task,
    split: npt.ArrayLike,
    categorical: Sequence[str] = (),
) -> None:
    """Write the table of one region to a file. The same columns give the same bytes.

    Args:
        path: the .npz file, which is replaced if it exists.
        columns: the values [rows] of each column, by its name. Columns that are neither the target
            nor categorical are numeric. In numeric columns NaN is a missing value.
        target: the column to predict. In a classification its distinct values, in sorted order, are
            the classes.
        task: "classification" or "regression".
        split: for each row TRAIN, VALIDATION or TEST.
        categorical: the columns with categories. Their values become text, such as "4" for 4.0 and
            "true" for True, without blanks at the ends. A missing value, None or NaN, becomes the
            empty text. A value counts as unknown if no training row has it.

    Raises:
        ValueError: the table is not valid. The message names the column and the fault.
        OSError: the file can't be written.
    """
    arrays = {name: np.asarray(values) for name, values in columns.items()}
    classified = [target] if task == "classification" else []
    are_numbers = {name for name, values in arrays.items() if values.dtype.kind in "iuf"}
    arrays |= {name: _texts(arrays[name]) for name in (*categorical, *classified) if name in arrays}
    parts = np.asarray(split)
    _check(arrays, target, task, parts, categorical)
    numeric = [name for name in arrays if name != target and name not in categorical]
    trained = parts == TRAIN
    vocabularies, classes = (
        {name: _vocabulary(arrays[name][rows], are_numbers=name in are_numbers) for name in names}
        for names, rows in ((categorical, trained), (classified, slice(None)))
    )
    meta = Columns(
        numeric=numeric,
        categorical=vocabularies,
        target=target,
        task=task,
        classes=classes.get(target, []),
        kinds={name: "boolean" for name, words in vocabularies.items() if {*words} <= _BOOLEANS},
    )
    values = _encode(arrays[target], meta.classes) - 1 if classes else arrays[target]
    codes = [_encode(arrays[name], vocabulary) for name, vocabulary in vocabularies.items()]
    numbers = stack([arrays[name] for name in numeric], len(parts), np.float64)
    table = Table(
        columns=meta,
        numeric=to_float32(numbers, trained),
        categorical=stack(codes, len(parts), np.int32),
        target=values.astype(np.float32 if classes else np.float64),
        split=parts.astype(np.int8),
    )
    save_table(path, table)


def save_table(path: Path, table: Table, *, compressed: bool = True) -> None:
    """Write a table to the .npz file `path`, atomically.

    The same table gives the same bytes. `compressed` halves the file's size, but writing takes a
    hundred times as long.
    """
    save = np.savez_compressed if compressed else np.savez
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with beside.open("wb") as file:
            save(
                file,
                numeric=table.numeric,
                categorical=table.categorical,
                target=table.target,
                split=table.split,
                meta=np.array(json.dumps(asdict(table.columns), ensure_ascii=False)),
            )
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def read_table(path: Path) -> Table:
    """Return the table from a file that `write_table` or `save_table` wrote.

    Raise ValueError for any other file, and OSError if the file can't be read.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            columns = Columns(**json.loads(str(arrays["meta"])))
            names = ("numeric", "categorical", "target", "split")
            table = Table(columns=columns, **{name: arrays[name] for name in names})
    except (ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is not a table that write_table wrote: {error}") from error
    rows, d, k = len(table.target), len(columns.numeric), len(columns.categorical)
    shapes = (table.numeric.shape, table.categorical.shape, table.split.shape)
    if shapes != ((rows, d), (rows, k), (rows,)):
        raise ValueError(
            f"{path} is damaged: numeric, categorical and split have the shapes {shapes}, but the "
            f"target has {rows} rows, and meta has {d} numeric and {k} categorical columns"
        )
    return table


def _check_names(names: Collection[str], target: str, categorical: Sequence[str]) -> None:
    for name in (target, *categorical):
        if name not in names:
            raise ValueError(f"there is no column {name!r}; the columns are {', '.join(names)}")
    if target in categorical:
        raise ValueError(f"the column {target!r} is the target; remove it from categorical")
    if len(names) < 2:
        raise ValueError(f"the table only has the target {target!r}; add a column to learn from")


def _check(
    arrays: Mapping[str, npt.NDArray[Any]],
    target: str,
    task: str,
    split: npt.NDArray[Any],
    categorical: Sequence[str],
) -> None:
    if task not in {"classification", "regression"}:
        raise ValueError(f"task is {task!r}; choose classification or regression")
    _check_names(arrays, target, categorical)
    for name, values in [*arrays.items(), ("split", split)]:
        if values.shape != split.shape[:1]:
            raise ValueError(
                f"{name!r} has the shape {values.shape}, but 'split' has {split.shape}: "
                "each array must have one value for each row"
            )
    _check_split(split)
    for name, values in arrays.items():
        if name not in categorical and (name != target or task == "regression"):
            _check_numbers(name, values, missing_allowed=name != target)
    if task == "classification" and (arrays[target] == "").any():
        raise ValueError(_missing_target_text(target))
    learned = arrays[target][split == TRAIN]
    if len(np.unique(learned)) < 2 or (task == "regression" and not value_range(learned)):
        what = "class" if task == "classification" else "value"
        raise ValueError(f"{target!r} has only one {what} in the training rows: {learned[0]}")


def _check_split(split: npt.NDArray[Any]) -> None:
    if odd := sorted(set(np.unique(split).tolist()) - {TRAIN, VALIDATION, TEST}):
        raise ValueError(f"split has the values {odd}; use 0 (train), 1 (validation), 2 (test)")
    for code, name in [(TRAIN, "training"), (VALIDATION, "validation"), (TEST, "test")]:
        if not (split == code).any():
            raise ValueError(f"there are no {name} rows (split == {code})")


def _check_numbers(name: str, values: npt.NDArray[Any], *, missing_allowed: bool) -> None:
    if values.dtype.kind not in "biuf":
        advice = "name it in categorical" if missing_allowed else "choose the task classification"
        raise ValueError(
            f"the column {name!r} has values of the type {values.dtype} instead of numbers; if "
            f"they are categories, {advice}"
        )
    with np.errstate(over="ignore"):
        as_stored = values.astype(np.float32, copy=False)
    if np.isinf(as_stored).any():
        raise ValueError(f"{name!r} has values that are infinite or too large for float32")
    if not missing_allowed and np.isnan(as_stored).any():
        raise ValueError(_missing_target_text(name))


def _missing_target_text(name: str) -> str:
    return f"the target {name!r} has missing values; leave these rows out"


def category(text: str) -> str:
    """Return the category `text` in the form that all programs use.

    A whole number is written without point and exponent: "4" for "4.0", "100000" for "1e+05". Any
    other text, such as "04", stays as it is.
    """
    if re.match(WHOLE, text) and (number := Decimal(text)) == (whole := int(number)):
        return str(whole)
    return text


def to_float32(numeric: npt.NDArray[np.float64], trained: npt.NDArray[np.bool_]) -> Floats:
    """Return numeric columns [rows, d] as float32, or as float64 if a column needs more digits.

    `trained` [rows] is True for the training rows. Only these rows decide.
    """
    with np.errstate(over="ignore"):
        narrow = numeric.astype(np.float32)
    known = numeric[trained]
    spreads = _value_ranges(known)
    lost = np.fmax.reduce(np.abs(narrow[trained] - known), axis=0)
    return numeric if ((spreads > 0) & (lost > _ROUNDING * spreads)).any() else narrow


def value_range(values: npt.NDArray[Any]) -> float:
    """Return max - min of the values [n], or 0 if they only differ by rounding."""
    return float(_value_ranges(values.astype(np.float64)[:, None])[0]) if len(values) else 0.0


def _value_ranges(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    low, high = np.fmin.reduce(values, axis=0), np.fmax.reduce(values, axis=0)
    varies = high - low > SAME * np.maximum(np.abs(low), np.abs(high))
    return np.where(varies, high - low, 0.0)


def _texts(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the names of categories [n]; the empty text for a missing value."""
    if values.ndim != 1 or values.dtype.kind == "O":  # may have values that can't be sorted
        return np.array([*map(_text, values.tolist())], str) if values.ndim == 1 else values
    different, where = np.unique(values, return_inverse=True)
    return np.array([*map(_text, different.tolist())], str)[where]


def _text(value: object) -> str:
    if value is None or value != value:  # NaN
        return ""
    return str(value).lower() if isinstance(value, bool) else category(str(value).strip(BLANKS))


def _vocabulary(texts: npt.NDArray[Any], *, are_numbers: bool) -> list[str]:
    """Return the distinct texts in order; numbers by size, 9 before 10."""
    found: list[str] = np.unique(texts).tolist()
    return sorted(found, key=lambda text: Decimal(text or "-inf")) if are_numbers else found


def _encode(texts: npt.NDArray[Any], vocabulary: list[str]) -> npt.NDArray[np.int32]:
    codes = category_codes(vocabulary)
    different, where = np.unique(texts, return_inverse=True)
    return np.array([codes.get(text, 0) for text in different.tolist()], np.int32)[where]


def category_codes(vocabulary: Sequence[str]) -> dict[str, int]:
    """Return the code of each category. The keys have the form that `category` returns."""
    return {category(value): code for code, value in enumerate(vocabulary, start=1)}


def stack(arrays: list[npt.NDArray[Any]], rows: int, dtype: type) -> npt.NDArray[Any]:
    """Return one array [rows, len(arrays)] with the arrays as its columns."""
    return np.stack(arrays, 1).astype(dtype, copy=False) if arrays else np.zeros((rows, 0), dtype)
