"""A region's table, built from a file's rows, and its description."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import polars as pl
from polars.exceptions import PolarsError

from trialfleet.nodes.tabular.table import (
    TEST,
    TRAIN,
    VALIDATION,
    Columns,
    Table,
    Task,
    to_float32,
    value_range,
)
from trialfleet.spelling import did_you_mean
from trialfleet.workflows.study.table_options import NULL_VALUES, TableOptions, column_line, is_form
from trialfleet.workflows.tables import cells
from trialfleet.workflows.tables.amounts import DECIMAL_SIGNS
from trialfleet.workflows.tables.column_roles import Feature, choose_feature
from trialfleet.workflows.tables.csv_rows import TableError
from trialfleet.workflows.tables.encoding import encode, to_numbers
from trialfleet.workflows.tables.leaks import leak_notes, repeated_share
from trialfleet.workflows.tables.splits import earliest_times, split_rows
from trialfleet.workflows.tables.target import WAYS_OUT, Target, read_target

_SHOWN = 30  # number of columns to name in a message
_PARTS = {"train": TRAIN, "validation": VALIDATION, "test": TEST}


@dataclass(frozen=True, kw_only=True)
class Description:
    """The description of a region's table. `parts` and `classes` count rows."""

    rows: int  # with a target
    parts: dict[str, int]  # training, validation and test
    without_target: int = 0  # rows that are left out
    target: str
    task: Task
    task_inferred: bool = False
    classes: dict[str, int]  # empty for a regression
    range: list[float] = field(default_factory=list)  # of a regression's target
    numeric: list[str]
    categorical: dict[str, int]  # for each column, how many categories the training rows have
    ignored: dict[str, str] = field(default_factory=dict)  # why a column is not used
    unused: list[str] = field(default_factory=list)  # ignored columns that other days' models use
    missing: dict[str, int] = field(default_factory=dict)  # cells, of the used columns with any
    notes: dict[str, str] = field(default_factory=dict)  # what to check in some columns
    one_class: list[str] = field(default_factory=list)  # parts whose rows have the same target
    untaught: list[str] = field(default_factory=list)  # classes that no training row has
    begins: dict[str, str] = field(default_factory=dict)  # of validation and test, split by time
    in_no_cell: list[str] = field(default_factory=list)  # own null_values that no cell equals
    # share of distinct test rows that equal a training row; 0 if it is small, or perhaps by chance
    repeated: float = 0.0

    @property
    def kind(self) -> str:
        """The kind of the target: "binary", "multiclass" or "regression"."""
        if self.task == "regression":
            return "regression"
        return "binary" if len(self.classes) == 2 else "multiclass"


def build_table(
    frame: pl.DataFrame, target: str | None, options: TableOptions, seed: int
) -> tuple[Table, Description]:
    """Return the table for trials, and its description. TableError if the rows can't be used."""
    target = _check_columns(frame.columns, target, options)
    own = [text for text in options.null_values if text not in NULL_VALUES]
    in_no_cell = cells.in_no_cell(frame, own)
    frame = cells.without_nulls(frame, options.null_values)
    present = frame[target].is_not_null()
    if not present.any():
        raise TableError(f"the target {target!r} is empty in every row")
    numbered = (present.arg_true() + 1).to_list()
    rows = _read_by_forms(frame.filter(present), options.columns, numbered)
    goal = read_target(rows[target], options.task, numbered)
    classes = goal.values if goal.classes else None
    split = split_rows(rows, options.split, classes, seed, numbered)
    _check_parts(split, goal, target)
    features = _choose_features(rows, target, options, pl.Series(split == TRAIN), numbered)
    table = _encode(rows, features, goal, split, target, options.null_values, numbered)
    used = [name for name, feature in features.items() if feature.is_used]
    notes = {name: feature.note for name, feature in features.items() if feature.note}
    described = describe(table)
    for name, fact in described.notes.items():
        leak = f"{fact}: {column_line(name, ['ignore'])}"
        notes[name] = f"{notes[name]}; it {leak}" if name in notes else leak
    time = options.split.time
    return table, replace(
        described,
        without_target=len(frame) - len(rows),
        task_inferred=goal.inferred,
        ignored={name: each.why for name, each in features.items() if not each.is_used},
        missing={name: count for name in used if (count := rows[name].null_count())},
        notes={**({target: goal.note} if goal.note else {}), **notes},
        begins={} if time is None else earliest_times(rows[time], split),
        in_no_cell=in_no_cell,
    )


def describe(table: Table) -> Description:
    """Return a table's description. Entries that need the table's original file are empty.

    `missing` has only numeric columns, and `notes` only columns that determine the target.
    """
    unused = [*table.columns.unused, *table.columns.empty]
    table = table.used()
    columns, values = table.columns, table.target
    missing = np.isnan(table.numeric).sum(0)
    is_regression = columns.task == "regression"
    classes = [] if is_regression else [*enumerate(columns.classes)]
    return Description(
        rows=len(values),
        parts=_parts(table.split),
        target=columns.target,
        task=columns.task,
        classes={name: int((values == code).sum()) for code, name in classes},
        untaught=[
            name for code, name in classes if not (values == code)[table.split == TRAIN].any()
        ],
        range=[float(str(values.min())), float(str(values.max()))] if is_regression else [],
        numeric=columns.numeric,
        categorical={name: len(words) for name, words in columns.categorical.items()},
        unused=unused,
        one_class=[
            part for part, code in _PARTS.items() if not value_range(values[table.split == code])
        ],
        missing={
            name: int(count) for name, count in zip(columns.numeric, missing, strict=True) if count
        },
        notes=leak_notes(table),
        repeated=repeated_share(table),
    )


def _read_by_forms(
    rows: pl.DataFrame, roles: Mapping[str, str], numbered: Sequence[int]
) -> pl.DataFrame:
    forms = {name: role for name, role in roles.items() if is_form(role)}
    for name, form in forms.items():
        try:
            to_numbers(rows[name], form, numbered, WAYS_OUT)
        except PolarsError as error:
            raise TableError(
                f"table.columns: no dates of {name!r} can be read with {form!r}: {error}"
            ) from error
    return rows.with_columns(cells.convert_format(rows[name], form) for name, form in forms.items())


def _parts(split: npt.NDArray[np.int8]) -> dict[str, int]:
    return {name: int((split == code).sum()) for name, code in _PARTS.items()}


def _check_parts(split: npt.NDArray[np.int8], goal: Target, target: str) -> None:
    if empty := [name for name, count in _parts(split).items() if not count]:
        raise TableError(
            f"none of the {len(split)} rows with a target is a {' or '.join(empty)} row; "
            "see table.split"
        )
    if value_range(goal.values[split == TRAIN]):
        return
    first = goal.values[split == TRAIN][0]
    what = "class" if goal.classes else "value"
    only = repr(goal.classes[int(first)]) if goal.classes else f"{first:g}"
    where = "table.split" if value_range(goal.values) else "the file"
    raise TableError(
        f"target: {target!r} has only one {what} in the training rows: {only}; see {where}"
    )


def _check_columns(names: Sequence[str], target: str | None, options: TableOptions) -> str:
    """Return `target`. TableError if it or a column in `options` is missing or unsuitable."""
    choices = ", ".join(map(repr, names[:_SHOWN])) + (", …" if len(names) > _SHOWN else "")
    if target is None:
        raise TableError(
            f"no column to predict is named: write `target: COLUMN`; the columns are {choices}"
        )
    wanted = [("target", target), *(("table.columns", name) for name in options.columns)]
    wanted += [("table.split", name) for name in options.split.own_columns]
    problems = [
        f"{key}: there is no column {name!r}{did_you_mean(name, names)}; the columns are {choices}"
        for key, name in wanted
        if name not in names
    ]
    if options.columns.get(target) not in {None, *DECIMAL_SIGNS}:
        problems.append(f"table.columns: {target!r} is the target; say what it is with table.task")
    if target in options.split.own_columns:
        problems.append(f"table.split: {target!r} is the target")
    if problems:
        raise TableError(*problems)
    return target


def _choose_features(
    rows: pl.DataFrame,
    target: str,
    options: TableOptions,
    trained: pl.Series,
    numbered: Sequence[int],
) -> dict[str, Feature]:
    found: dict[str, Feature] = {}
    for name in rows.columns:
        override = options.columns.get(name)
        if name == target:
            continue
        if name in options.split.own_columns and (override is None or is_form(override)):
            found[name] = Feature(role="ignore", values=rows[name], why="it only splits the rows")
        else:
            found[name] = choose_feature(rows[name], override, trained, numbered)
    if not any(feature.is_used for feature in found.values()):
        why = "; ".join(f"{name!r}: {feature.why}" for name, feature in found.items())
        raise TableError(f"no column is left from which to predict {target!r}. {why}".strip())
    return found


def _encode(
    rows: pl.DataFrame,
    features: dict[str, Feature],
    goal: Target,
    split: npt.NDArray[np.int8],
    target: str,
    null_values: list[str],
    numbered: Sequence[int],
) -> Table:
    trained = pl.Series(split == TRAIN)
    usual = {"numeric": "number", "categorical": "text"}
    columns = Columns(
        numeric=[name for name, feature in features.items() if feature.role == "numeric"],
        categorical={
            name: _vocabulary(cells.texts(rows[name], feature.kind).filter(trained))
            for name, feature in features.items()
            if feature.role == "categorical"
        },
        target=target,
        task=goal.task,
        classes=goal.classes,
        kinds={
            name: feature.kind
            for name, feature in features.items()
            if feature.role != "ignore" and feature.kind != usual[feature.role]
        },
        null_values=null_values,
        unused=[
            name
            for name, feature in features.items()
            if feature.role != "ignore" and not feature.is_used
        ],
        empty=[name for name in features if rows[name].null_count() == len(rows)],
    )
    understood = pl.DataFrame([features[name].values for name in columns.needed_columns])
    numeric, categorical = encode(understood, columns, numbered, converted=True)
    return Table(
        columns=columns,
        numeric=to_float32(numeric, split == TRAIN),
        categorical=categorical,
        target=goal.values,
        split=split,
    )


def _vocabulary(values: pl.Series) -> list[str]:
    return sorted(values.drop_nulls().unique().to_list())
