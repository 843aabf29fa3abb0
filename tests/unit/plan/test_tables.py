"""From the rows of CSV and Parquet files to the arrays that trials train on."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trialfleet.nodes.tabular import table
from trialfleet.nodes.tabular.table import TEST, TRAIN, VALIDATION, Table
from trialfleet.workflows.study.table_options import TableOptions
from trialfleet.workflows.tables import cells
from trialfleet.workflows.tables.csv_rows import TableError
from trialfleet.workflows.tables.encoding import encode
from trialfleet.workflows.tables.reading import file_format, read_rows
from trialfleet.workflows.tables.table_from_rows import Description, build_table

ROWS = 40
TARGET = {"y": ["no", "yes", "yes", "no", "no"] * (ROWS // 5)}
FEATURE = {"n": [float(i % 7) for i in range(ROWS)]}


def built(
    rows: dict[str, Any], target: str | None = "y", /, **options: Any
) -> tuple[Table, Description]:
    return build_table(pl.DataFrame(rows), target, TableOptions.model_validate(options), 0)


def problem_of(rows: dict[str, Any], target: str | None = "y", /, **options: Any) -> str:
    with pytest.raises(TableError) as caught:
        built(rows, target, **options)
    return "\n".join(caught.value.problems)


def cycle(*values: Any) -> list[Any]:
    return [values[i % len(values)] for i in range(ROWS)]


# The kind of a column


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (cycle("1", " 2.5", "-3e2", None), "number"),
        (cycle(1, 2, None), "number"),
        (cycle("2026-01-05", "2026-02-28", None), "date"),
        (cycle("2026-01-05 10:30", "2026-01-05T10:30:01.5Z"), "date"),
        (cycle(dt.date(2026, 1, 5), dt.date(2026, 1, 6)), "date"),
        (cycle(dt.datetime(2026, 1, 5, 1), dt.datetime(2026, 1, 6, 1)), "date"),
        (cycle("10:30", "23:59:59", "9h05"), "time"),
        (cycle(dt.time(10), dt.time(11)), "time"),
    ],
)
def test_numbers_dates_and_times_are_numeric(values: list[Any], kind: str) -> None:
    made, found = built({**TARGET, "c": values})
    assert (found.numeric, found.categorical) == (["c"], {})
    assert made.columns.kinds == ({} if kind == "number" else {"c": kind})


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (cycle("a", "b", None), ["a", "b"]),
        (cycle("1", "2", "x"), ["1", "2", "x"]),
        (cycle("01234", "94110"), ["01234", "94110"]),  # a code, and no quantity
        (cycle("True", "false"), ["false", "true"]),
        (cycle("TRUE ", "false", " true"), ["false", "true"]),
        (cycle("a", " NA", "b", "  "), ["a", "b"]),
        ([True, False] * 20, ["false", "true"]),
        (cycle("31.12.2026", "01.02.2026"), ["01.02.2026", "31.12.2026"]),
    ],
)
def test_values_that_are_no_numbers_dates_or_times_are_categorical(
    values: list[Any], words: list[str]
) -> None:
    made, _ = built({**TARGET, "c": values})
    assert made.columns.categorical == {"c": words}


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ([f"t{i}" for i in range(ROWS)], "its text is different in every row: an id"),
        (list(range(5, 5 + ROWS)), "it numbers the rows"),
        ([str(i) for i in range(ROWS)], "it numbers the rows"),
        (cycle("x"), "it is the same in every row"),
        (cycle(None), "it has no values"),
        (cycle([1]), "it holds List(Int64), which no model can use"),
        (cycle(dt.timedelta(1)), "it holds Duration(time_unit='us'), which no model can use"),
    ],
)
def test_an_uninformative_column_is_ignored_with_the_reason(values: list[Any], why: str) -> None:
    _, found = built({**TARGET, **FEATURE, "c": values})
    assert found.ignored == {"c": why}
    assert found.numeric == ["n"]


def test_the_study_says_what_a_column_is() -> None:
    columns = {
        **TARGET,
        "row": list(range(ROWS)),
        "zip": cycle("01234", "94110"),
        "store": cycle(7, 8),
        "flag": [True, False] * 20,
        "x": cycle(1.0, 2.0),
    }
    given = {"row": "numeric", "zip": "numeric", "store": "categorical", "flag": "numeric"}
    made, found = built(columns, columns={**given, "x": "ignore"})
    assert found.numeric == ["row", "zip", "flag"]
    assert made.columns.categorical == {"store": ["7", "8"]}
    assert found.ignored == {"x": "the study says so"}
    assert made.numeric[:2].tolist() == [[0, 1234, 1], [1, 94110, 0]]


@pytest.mark.parametrize(
    ("kind", "texts", "placeholder"),
    [
        ("number", [f"{i}.5" for i in range(ROWS)], ".."),
        ("date", [f"2026-01-{1 + i % 28:02}" for i in range(ROWS)], "0000-00-00"),
        ("time", [f"{i % 24}:30" for i in range(ROWS)], "-"),
    ],
)
def test_placeholders_in_any_share_of_the_cells_are_reported(
    kind: str, texts: list[str], placeholder: str
) -> None:
    expected = (
        f"{placeholder!r} is not a {kind}. If it stands for a missing value, add it to table.n"
    )
    for each, share in [(6, f"82% of its cells are {kind}s"), (2, f"50% of its cells are {kind}s")]:
        marked = [placeholder if i % each == 0 else text for i, text in enumerate(texts)]
        note = built({**TARGET, **FEATURE, "c": marked})[1].notes["c"]
        assert note.startswith(f"is categorical, though {share}: {expected}"), note
    rare = [text if i % 3 == 0 else placeholder for i, text in enumerate(texts)]
    note = built({**TARGET, **FEATURE, "c": rare})[1].notes["c"]
    assert f" different texts are {kind}s: {expected}" in note
    once = [*texts[: ROWS // 2 - 1], placeholder]
    note = built({"y": TARGET["y"][: len(once)], "n": [*range(0, 40, 2)], "c": once})[1].ignored[
        "c"
    ]
    assert note.startswith(
        f"its text is different in every row: an id, though 95% of its cells are {kind}"
    )


def test_an_almost_numeric_column_is_reported() -> None:
    _, found = built({**TARGET, "c": [*map(str, range(100, 100 + ROWS - 2)), "unknown", "unknown"]})
    assert "95% of its cells are numbers: 'unknown' is not a number" in found.notes["c"]
    _, found = built(
        {key: values * 10 for key, values in TARGET.items()}
        | {"c": [*(str(100 + n % 50) for n in range(10 * ROWS - 1)), "abc"]}
    )
    assert "99% of its cells are numbers: 'abc' is not" in found.notes["c"], "never 100%"
    assert "begin with 0" in built({**TARGET, "c": cycle("01", "2")})[1].notes["c"]


@pytest.mark.parametrize(
    "texts", [["a", "b"], ["1/2", "3/4"], ["1-5", "6-9"], ["10,x", "5"], ["1.2.3", "1.2.4"]]
)
def test_other_texts_are_not_taken_for_numbers(texts: list[str]) -> None:
    _, found = built({**TARGET, **FEATURE, "c": cycle(*texts)})
    assert found.notes == {}


def test_a_cell_that_is_no_number_is_named_by_its_row_in_the_file() -> None:
    columns = {"y": [None, *cycle("no", "yes")], "c": ["?", "1", "x", *cycle("3")[2:]]}
    text = problem_of(columns, columns={"c": "numeric"})
    assert text == "row 3 below the header, column 'c': 'x' is not a number"
    text = problem_of({**TARGET, "c": ["1", "1e99", *cycle("3")[2:]]})
    assert text.startswith("row 2 below the header, column 'c': '1e+99' is infinite or too large f")


# The target


@pytest.mark.parametrize(
    ("values", "task", "classes"),
    [
        (cycle("no", "yes"), "classification", ["no", "yes"]),
        ([True, False] * 20, "classification", ["false", "true"]),
        (cycle("False", "True"), "classification", ["false", "true"]),
        (cycle(2, 10, 0), "classification", ["0", "2", "10"]),
        (cycle("0", "1.0"), "classification", ["0", "1"]),
        (cycle(0.5, 1.5), "regression", []),
        (list(range(ROWS)), "regression", []),
        ([str(i) for i in range(ROWS)], "regression", []),
    ],
)
def test_the_task_is_inferred_from_the_target(
    values: list[Any], task: str, classes: list[str]
) -> None:
    made, found = built({**FEATURE, "y": values})
    assert (found.task, found.task_inferred) == (task, True)
    assert made.columns.classes == [*found.classes] == classes


def test_the_study_says_which_task_it_is() -> None:
    made, found = built({**FEATURE, "y": cycle(0, 1, 2)}, task="regression")
    assert (found.task, found.task_inferred, found.range) == ("regression", False, [0, 2])
    assert made.target.tolist()[:3] == [0, 1, 2]
    _, found = built({**FEATURE, "y": cycle(0.1, 5993.36, 0.3)})
    assert found.range == [0.1, 5993.36]  # not the float32 values in float64
    made, _ = built({**FEATURE, "y": cycle(0.5, 1.5)}, task="classification")
    assert made.columns.classes == ["0.5", "1.5"]


def test_rows_without_a_target_are_left_out_and_counted() -> None:
    made, found = built(
        {"y": ["", " ", "NA", None, *cycle("1", "2")], "n": [9, 9, 9, 9, *cycle(1, 2)]}
    )
    assert (found.rows, found.without_target) == (ROWS, 4)
    assert made.target.tolist()[:3] == [0, 1, 0]
    assert 9 not in made.numeric


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        ({"y": cycle(None)}, {}, "the target 'y' is empty in every row"),
        ({"y": cycle("2026-01-05")}, {}, "the target 'y' holds dates; it must be numbers or cl"),
        ({"y": cycle("a")}, {}, "'y' has only one class in the training rows: 'a'"),
        ({"y": [f"t{i}" for i in range(ROWS)]}, {}, "40 different values in 40 rows, too many"),
        (
            {"y": [*map(str, range(99, 98 + ROWS)), "?"]},
            {},
            "to be classes; 98% of its cells are numbers, 1 is not: '?' in row 40 below the header",
        ),
        (
            {"y": [".." if i % 3 == 0 else f"{i}.5" for i in range(ROWS)]},
            {},
            "to be classes; 65% of its cells are numbers, 14 are not, the first is '..' in row 1 b",
        ),
        (
            {"y": cycle("1", "2", "x")},
            {"task": "regression"},
            "row 3 below the header, column 'y': 'x' is not a number. If it stands for a missing ",
        ),
        (
            {"y": [*cycle("1")[1:], "x"]},
            {"task": "regression"},
            "row 40 below the header, column 'y': 'x' is not",
        ),
        ({"y": [i / 7 for i in range(ROWS)]}, {"task": "classification"}, "write table: {task: r"),
        (
            {"y": cycle("1e40", "2")},
            {},
            "row 1 below the header, column 'y': '1e+40' is infinite or",
        ),
        (
            {"y": cycle("2", "-inf")},
            {"task": "classification"},
            "row 2 below the header, column 'y': '-inf' is infinite or too large",
        ),
        (
            {"y": cycle("1.5", "2", "-999", "NaN")},
            {"null_values": ["-999"]},
            "row 4 below the header: the target 'y' is 'NaN'. If it stands for a missing value",
        ),
    ],
)
def test_a_target_that_cannot_be_learned_is_refused(
    columns: dict[str, Any], options: dict[str, Any], words: str
) -> None:
    assert words in problem_of({**columns, **FEATURE}, **options)


def test_all_missing_columns_are_reported_with_suggestions() -> None:
    options = {"columns": {"amuont": "numeric", "y": "numeric"}, "split": {"time": "when"}}
    lines = problem_of({**TARGET, "amount": FEATURE["n"]}, **options).splitlines()
    known = "the columns are 'y', 'amount'"
    meant = "there is no column 'amuont' (did you mean 'amount'?)"
    assert lines[0] == f"table.columns: {meant}; {known}"
    assert lines[1] == f"table.split: there is no column 'when'; {known}"
    assert "'y' is the target" in lines[2]
    assert "target: there is no column 'Y'" in problem_of({**TARGET, **FEATURE}, "Y")
    assert "write `target: COLUMN`; the columns are 'y', 'n'" in problem_of(
        {**TARGET, **FEATURE}, None
    )
    assert "no column is left from which to predict 'y'. 'c': it is the same" in problem_of(
        {**TARGET, "c": cycle(1)}
    )


def test_row_numbers_are_ignored_even_if_targets_are_missing() -> None:
    targets = [None if i == 17 else i % 3 * 0.5 for i in range(ROWS)]
    _, found = built({"y": targets, "id": [*range(7, 7 + ROWS)], **FEATURE})
    assert found.ignored == {"id": "it numbers the rows"}


# Missing values


def test_missing_numbers_are_nan_and_missing_or_new_categories_are_unknown() -> None:
    columns = {
        **TARGET,
        "n": cycle("1", "NA", "", "2", "nan"),
        "k": cycle("a", None, "b", "NA", ""),
    }
    made, found = built(columns)
    assert found.missing == {"n": 24, "k": 24}
    np.testing.assert_array_equal(made.numeric[:5, 0], [1, np.nan, np.nan, 2, np.nan])
    assert made.categorical[:5, 0].tolist() == [1, 0, 2, 0, 0]


def test_the_study_can_set_the_null_values() -> None:
    columns = {**TARGET, "n": cycle("1", "-", "2"), "country": cycle("NA", "DE")}
    made, found = built(columns, null_values=["-"])
    assert found.numeric == ["n"]
    assert made.columns.categorical == {"country": ["DE", "NA"]}
    assert made.columns.null_values == ["-"]


@pytest.mark.parametrize(
    ("null", "values"),
    [
        ("-999", cycle("1", "-999.0", "-999", "2")),
        ("-999.0", cycle("1", " -999 ", "-9.99e2", "2")),
        ("-999", cycle(1, -999, -999, 2)),
        (" n/a", cycle("1", "n/a", " n/a ", "2")),
        ("-999,00", cycle("1", "-999,00 ", "-999,00", "2")),
        ("-999.9", pl.Series(cycle(1, -999.9, -999.9, 2), dtype=pl.Float32)),
        ("-9", pl.Series(cycle(1, -9, -9, 2), dtype=pl.Decimal(9, 2))),
        ("1900-01-01", cycle("2026-01-02", "1900-01-01 00:00:00", "1900-01-01", "2026-01-03")),
        ("1900-01-01", cycle(*[dt.date(year, 1, 1) for year in (2026, 1900, 1900, 2027)])),
        ("00:00", cycle(*[dt.time(hour) for hour in (7, 0, 0, 8)])),
    ],
)
def test_a_null_value_is_found_in_any_spelling_of_a_number_or_date(null: str, values: Any) -> None:
    made, found = built({**TARGET, "c": values}, null_values=[null])
    assert (found.missing, found.in_no_cell) == ({"c": ROWS // 2}, [])
    assert np.isnan(made.numeric[:4, 0]).tolist() == [False, True, True, False]


def test_null_values_that_occur_in_no_cell_are_reported() -> None:
    columns = {**TARGET, "zip": cycle("09", "9x"), "flag": [True, False] * 20, "n": cycle(2, 3)}
    made, found = built(columns, null_values=["9", "1", "2", "NULL"])
    assert found.in_no_cell == ["9", "1"]  # a code, a boolean; the usual texts aren't listed
    assert made.columns.categorical["zip"] == ["09", "9x"]
    assert TableOptions.model_validate({"null_values": [-999, -9.5, "x"]}).null_values == [
        "-999",
        "-9.5",
        "x",
    ]


def test_the_vocabulary_is_what_the_training_rows_have() -> None:
    part = ["train", "train", "validation", "test"] * (ROWS // 4)
    columns = {"y": cycle(0.5, 1.5), "k": cycle("a", "b", "c", "a"), "part": part}
    made, _ = built(columns, split={"column": "part"})
    assert made.columns.categorical == {"k": ["a", "b"]}
    assert made.categorical[:4, 0].tolist() == [1, 2, 0, 1]


def test_blanks_around_categories_and_classes_are_ignored() -> None:
    columns = {"y": cycle("no", "yes ", " no", "yes"), "k": cycle("a", "b", "a\u00a0 ", "  ")}
    made, found = built(columns)
    assert found.classes == {"no": 20, "yes": 20}
    assert made.columns.categorical == {"k": ["a", "b"]}
    assert made.categorical[:4, 0].tolist() == [1, 2, 1, 0]
    assert found.missing == {"k": 10}
    rows = cells.without_nulls(pl.DataFrame({"k": ["b ", " a", "c"]}), [])
    assert encode(rows, made.columns, range(3))[1].tolist() == [[2], [1], [0]]


@pytest.mark.parametrize("cell", [["2026-01-01"], dt.timedelta(1), {"a": "2026-01-01"}, b"2026"])
def test_a_format_for_a_column_of_another_type_is_refused(cell: Any) -> None:
    columns = {**TARGET, **FEATURE, "day": cycle(cell)}
    for form in ("%Y-%m-%d", "decimal_comma"):
        assert "column 'day' holds " in problem_of(columns, columns={"day": form})


# The split


def test_a_random_split_has_its_shares_in_every_class_and_depends_on_the_seed() -> None:
    columns = pl.DataFrame(
        {"y": ["rare"] * 20 + ["often"] * 980, "n": [i % 9 for i in range(1000)]}
    )
    first, again, other = (build_table(columns, "y", TableOptions(), seed)[0] for seed in (1, 1, 2))
    assert first.split.tolist() == again.split.tolist() != other.split.tolist()
    for made in (first, other):
        counts = np.bincount(made.split[:20]), np.bincount(made.split[20:])
        assert [count.tolist() for count in counts] == [[14, 3, 3], [686, 147, 147]]


@pytest.mark.parametrize(
    ("moments", "begins"),
    [
        ([f"2026-{i // 4 + 1:02}-01" for i in range(ROWS)], ["2026-08-01", "2026-09-01"]),
        ([f" 2026-{i // 4 + 1:02}-01 00:00:00" for i in range(ROWS)], ["2026-08-01 00:00:00"]),
        ([dt.date(2026, i // 4 + 1, 1) for i in range(ROWS)], ["2026-08-01", "2026-09-01"]),
        ([str(2000 + i // 4) for i in range(ROWS)], ["2007", "2008"]),
        ([20260101 + i // 4 for i in range(ROWS)], ["20260108", "20260109"]),
    ],
)
def test_the_boundaries_of_a_split_by_time_are_reported(
    moments: list[Any], begins: list[str]
) -> None:
    _, found = built({**FEATURE, "y": cycle(0.5, 1.5), "day": moments}, split={"time": "day"})
    assert [*found.begins] == ["validation", "test"]
    assert [*found.begins.values()][: len(begins)] == begins


def test_all_columns_that_are_not_numeric_are_reported_at_once() -> None:
    columns = {**TARGET, **FEATURE, "price": cycle("€ 3.50", "€ 4"), "humidity": cycle("50%", "6%")}
    problem = problem_of(columns, columns={"price": "numeric", "humidity": "numeric"})
    assert "column 'price': '€ 3.50' is not a number" in problem
    assert "column 'humidity': '50%' is not a number" in problem


def test_a_split_by_time_trains_on_the_oldest_and_parts_no_moment() -> None:
    days = [dt.date(2026, 1, 1) + dt.timedelta(i // 4) for i in range(ROWS)][::-1]
    shares = [0.5, 0.25, 0.25]
    made, found = built(
        {**FEATURE, "y": cycle(0.5, 1.5), "day": days}, split={"time": "day", "shares": shares}
    )
    assert found.ignored == {"day": "it only splits the rows"}
    assert set(made.split[-20:]) == {TRAIN}
    assert np.bincount(made.split).tolist() == [20, 8, 12]  # days of four rows each
    parts = [set(made.split[i : i + 4]) for i in range(0, ROWS, 4)]
    assert all(len(part) == 1 for part in parts)
    assert [part for [part] in parts] == sorted((part for [part] in parts), reverse=True)
    assert set(made.split) == {TRAIN, VALIDATION, TEST}
    used, _ = built({**TARGET, "day": days}, split={"time": "day"}, columns={"day": "numeric"})
    assert used.columns.kinds == {"day": "date"}


@pytest.mark.parametrize("kind", [int, str])
def test_a_split_by_numbers_that_begin_with_the_day_is_refused(kind: type) -> None:
    days = [dt.date(2026, 1, 10) + dt.timedelta(31 * (i // 4)) for i in range(ROWS)]
    columns = {**TARGET, **FEATURE, "day": [kind(f"{day:%d%m%Y}") for day in days]}
    said = "10012026, whose order as numbers differs from the order in time: "
    offered = 'write them as YYYY-MM-DD, or give their format: table: {columns: {day: "%d%m%Y"}}'
    assert said + offered in problem_of(columns, split={"time": "day"})
    found = built(columns, split={"time": "day"}, columns={"day": "%d%m%Y"})[1]
    assert found.begins["test"] == "2026-09-15 00:00:00"


def test_a_split_column_may_have_several_names_for_each_part() -> None:
    part = [" Train", "TEST", "val", "training", "validation", "test", "train", "VALID"] * (
        ROWS // 8
    )
    made, _ = built({**TARGET, **FEATURE, "part": part}, split={"column": "part"})
    assert made.split[:5].tolist() == [TRAIN, TEST, VALIDATION, TRAIN, VALIDATION]


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        ({"p": cycle("train", "tets", None)}, {"column": "p"}, "'tets', nothing in 26 rows; each"),
        ({"p": cycle("train", "test")}, {"column": "p"}, "is a validation row"),
        (
            {"p": cycle("a", "b")},
            {"time": "p"},
            "table.split: column 'p' holds 'a', which is neither a date nor a number; wri",
        ),
        (
            {"p": cycle("01.11.2024 07:00", "02.11.2024 08:00")},
            {"time": "p"},
            "holds dates such as '01.11.2024 07:00', whose order of day and month is unclear: w",
        ),
        (
            {"p": cycle("3/31/2024")},
            {"time": "p"},
            'or say their form: table: {columns: {p: "%m/%d',
        ),
        (
            {"p": [*cycle("2024-11-01 07:00")[1:], "01.11.2024 08:00"]},
            {"time": "p"},
            "'01.11.2024 08:00' in row 40 below the header, which is not a date",
        ),
        (
            {"p": [*cycle("7")[1:], "?"]},
            {"time": "p"},
            "column 'p' has '?' in row 40 below the header, which is not a number",
        ),
        ({"p": cycle("01", "02")}, {"time": "p"}, "column 'p' has numbers that begin with 0, as"),
        (
            {"p": [True, False] * 20},
            {"time": "p"},
            "column 'p' holds 'True', which is neither",
        ),
        ({"p": cycle(None)}, {"time": "p"}, "table.split: column 'p' has no values"),
        ({"p": cycle(1, None)}, {"time": "p"}, "table.split: column 'p' has 20 missing values"),
        ({"p": cycle(1)}, {"time": "p"}, "is a train or validation row"),
        ({}, {"column": "y"}, "table.split: 'y' is the target"),
        ({"p": cycle(["train"])}, {"column": "p"}, "'p' holds List(String), which can't split the"),
        ({"p": cycle(dt.timedelta(1))}, {"column": "p"}, "'p' holds Duration(time_unit='us'), wh"),
        ({"p": cycle(["train"])}, {"time": "p"}, "'p' holds List(String), which can't split the"),
    ],
)
def test_a_split_that_cannot_be_made_is_refused(
    columns: dict[str, Any], options: dict[str, Any], words: str
) -> None:
    assert words in problem_of({**TARGET, **FEATURE, **columns}, split=options)


# CSV, Parquet, write_table and prediction agree

CELLS = st.fixed_dictionaries(
    {
        "number": st.none() | st.floats(width=32, allow_nan=False, allow_infinity=False),
        "whole": st.none() | st.integers(-1000, 1000),
        "day": st.none() | st.dates(dt.date(1900, 1, 1), dt.date(2100, 1, 1)),
        "moment": st.none() | st.datetimes(dt.datetime(1970, 1, 1), dt.datetime(2100, 1, 1)),
        "flag": st.none() | st.booleans(),
        "word": st.none()
        | st.text(st.characters(exclude_characters="\0\r", codec="utf-8"), max_size=4),
    }
)
TYPES: dict[str, Any] = {
    "number": pl.Float64,
    "whole": pl.Int64,
    "day": pl.Date,
    "moment": pl.Datetime("us"),
    "flag": pl.Boolean,
    "word": pl.String,
}


@pytest.mark.slow
@settings(max_examples=40)
@given(st.lists(CELLS, min_size=6, max_size=30))
def test_csv_and_parquet_of_the_same_rows_give_the_same_table(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]
) -> None:
    folder = tmp_path_factory.mktemp("rows")
    count = pl.int_range(len(rows))
    frame = pl.DataFrame(rows, schema=TYPES).with_columns(y=count * 0.5, useful=count % 5 * 0.5)
    frame.write_parquet(folder / "rows.parquet")
    frame.write_csv(folder / "rows.csv", quote_style="non_numeric")
    roles = {"number": "numeric", "whole": "numeric", "day": "numeric", "moment": "numeric"}
    options = TableOptions.model_validate(
        {"columns": {**roles, "flag": "categorical", "word": "categorical"}, "task": "regression"}
    )
    made = []
    for name in ("rows.csv", "rows.parquet"):
        read = read_rows(folder / name, file_format(name))
        made.append(build_table(read, "y", options, 3)[0])
    a, b = made
    for name in ("numeric", "categorical", "target", "split"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
    assert a.columns.categorical == b.columns.categorical


def test_a_file_gives_what_write_table_makes_of_its_columns(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    columns = {
        "y": random.choice(["late", "early"], ROWS),
        "n": random.normal(size=ROWS).astype(np.float32),
        "k": random.choice(["a", "b", "c"], ROWS),
    }
    frame = pl.DataFrame(columns)
    frame.write_csv(tmp_path / "t.csv")
    ours, _ = build_table(read_rows(tmp_path / "t.csv", "csv"), "y", TableOptions(), 1)
    table.write_table(
        tmp_path / "t.npz",
        columns,
        target="y",
        task="classification",
        split=ours.split,
        categorical=["k"],
    )
    theirs = table.read_table(tmp_path / "t.npz")
    for name in ("numeric", "categorical", "target", "split"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
    table.save_table(tmp_path / "ours.npz", ours, compressed=False)
    assert table.read_table(tmp_path / "ours.npz").columns == ours.columns
    same: dict[str, Any] = {"kinds": {}, "null_values": []}
    assert {**vars(ours.columns), **same} == vars(theirs.columns)


@pytest.mark.slow
@given(st.lists(st.tuples(st.floats(width=32, allow_infinity=False), st.text(max_size=3))))
def test_encoding_rows_of_text_gives_what_the_table_has(rows: list[tuple[float, str]]) -> None:
    """Two ways to one number: as columns into a file, and as text to be predicted."""
    rows = [(1.0, "a"), (2.0, "b"), *((x, text.replace("\0", "")) for x, text in rows), (0.0, "c")]
    columns = table.Columns(
        numeric=["x"], categorical={"k": ["", "a", "b"]}, target="t", task="regression", classes=[]
    )
    frame = pl.DataFrame({"x": [repr(x) for x, _ in rows], "k": [k for _, k in rows]})
    numeric, categorical = encode(cells.without_nulls(frame, []), columns, range(1, len(frame) + 1))
    np.testing.assert_array_equal(numeric[:, 0], np.array([x for x, _ in rows], np.float32))
    values = table._texts(np.array([k for _, k in rows]))
    assert categorical[:, 0].tolist() == table._encode(values, ["", "a", "b"]).tolist()
