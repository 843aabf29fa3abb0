"""Numbers and dates as people, databases and tools write them."""

from __future__ import annotations

import csv
import datetime as dt
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from tests.unit.plan.test_tables import FEATURE, ROWS, TARGET, built, cycle, problem_of
from trialfleet.workflows.study.table_options import TableOptions
from trialfleet.workflows.tables import csv_rows
from trialfleet.workflows.tables.cells import numbers, without_nulls
from trialfleet.workflows.tables.csv_rows import TableError, opened_csv
from trialfleet.workflows.tables.encoding import encode
from trialfleet.workflows.tables.reading import read_rows
from trialfleet.workflows.tables.table_from_rows import build_table


@pytest.mark.parametrize(
    "form", ["{},04", "€ {}.5", "{}.00 €", "1.{},5", "1,{}.25", "1 {},5", "{} kr", "1,{}", "{}%"]
)
def test_formatted_numbers_are_reported_as_text(form: str) -> None:
    texts = [form.format(100 + i // 2) for i in range(ROWS)]
    expected = f"text such as {texts[0]!r}: write a point before decimals"
    assert expected in problem_of({**FEATURE, "y": texts})
    assert expected in problem_of({**FEATURE, "y": texts}, task="regression")
    _, found = built({**TARGET, **FEATURE, "c": texts})
    assert found.notes["c"].startswith(
        f"is categorical, {ROWS // 2} different texts: it is {expected}"
    )
    _, found = built({**TARGET, **FEATURE, "c": [form.format(100 + i) for i in range(ROWS)]})
    assert found.ignored["c"].startswith("it is text such as ")
    classes = cycle(form.format(100), form.format(101))
    assert built({**FEATURE, "y": classes}, task="classification")[0].columns.classes


@pytest.mark.parametrize("name", ["price\n(EUR)", "a, b", "a: b", "#", "é (€)", "no", "4", "'x'"])
@pytest.mark.parametrize("form", ["1.{},5", "{}.08.2024"])
def test_the_line_that_is_offered_for_a_column_is_yaml_that_reads_it(name: str, form: str) -> None:
    columns = {
        **TARGET,
        **FEATURE,
        name: [form.format(100 + i if "," in form else 13 + i % 15) for i in range(ROWS)],
    }
    _, found = built(columns)
    [offered] = re.findall(r"table: (\{columns: .*\}\})", {**found.notes, **found.ignored}[name])
    made, _ = built(columns, **YAML(typ="safe").load(offered))
    assert name in made.columns.kinds


def test_a_target_cell_with_a_decimal_comma_is_reported_with_its_row() -> None:
    texts = [str(100 + i) for i in range(ROWS)]
    texts[6] = "12,5"
    problem = problem_of({**FEATURE, "y": texts})
    way = "nor units; or add table: {columns: {y: decimal_comma}}"
    assert problem.endswith(f"{way}. Only the cell in row 7 below the header is no plain number")
    texts[8:10] = "1,5", "2,5"
    problem = problem_of({**FEATURE, "y": texts})
    assert problem.endswith(
        f"{way}. 3 of its cells are no plain numbers, the first in row 7 below the header"
    )


@pytest.mark.parametrize(
    "form",
    [
        "{} kg",
        "<{}",
        "{}.5°F",
        '{}" screen',
        "{} days 04:05:06",
        "{}:15:00",
        "1:{:02}+01",
        "{} mi/h",
        "PT{}H30M",
        "{}.5*",
        '="{}.5"',
        "[{}]",
        "{}.5 (p)",
    ],
)
def test_numbers_with_units_are_reported_if_there_are_many(form: str) -> None:
    texts = [form.format(25 + i // 2) for i in range(ROWS)]
    _, found = built({**TARGET, **FEATURE, "c": texts})
    expected = f"text such as {texts[0]!r}: write the number alone"
    assert found.notes["c"] == f"is categorical, {ROWS // 2} different texts: it is {expected}"
    _, found = built({**TARGET, **FEATURE, "c": [form.format(25 + i) for i in range(ROWS)]})
    assert found.ignored["c"] == f"it is {expected}"
    assert f"the target 'y' has {expected}" in problem_of({**FEATURE, "y": texts})
    assert built({**TARGET, **FEATURE, "c": cycle(*texts[::4])})[1].notes == {}  # ten sizes


@pytest.mark.parametrize("form", ["{}.5*", "{} p", '="{}.5"'])
def test_numbers_with_a_mark_are_reported_among_plain_numbers(form: str) -> None:
    marked = [form.format(i) for i in range(ROWS // 2)]
    texts = [*map(str, range(ROWS)), *marked]
    numbered = [i % 7 for i in range(len(texts))]
    _, found = built({"y": [i % 2 for i in numbered], "n": numbered, "c": texts})
    assert found.ignored["c"] == f"it is text such as {marked[0]!r}: write the number alone"


@pytest.mark.parametrize(
    "form",
    [
        "02-JAN-26 03.04.{:02}.123 AM EUROPE/OSLO",
        "Jan  2 03:04:{:02}",
        "Fri Jan  2 03:04:{:02} CET 2026",
        "/Date(17673230{:02}000)/",
        "2026年1月{}日",
        "2026-0{}",
    ],
)
def test_texts_that_may_be_moments_are_reported_as_moments(form: str) -> None:
    texts = [form.format(12 + i) for i in range(ROWS)]
    expected = f"text such as {texts[0]!r}: if it is a moment, write YYYY-MM-DD HH:MM:SS"
    assert built({**TARGET, **FEATURE, "c": texts})[1].ignored["c"] == f"it is {expected}"
    again = [form.format(12 + i // 2) for i in range(ROWS)]
    assert (
        built({**TARGET, **FEATURE, "c": again})[1]
        .notes["c"]
        .endswith(f"it is {expected}".replace(texts[0], again[0]))
    )


@pytest.mark.parametrize(
    "form",
    [
        "#{}",
        "(555) 01{}",
        "22-33-44-{}",
        "{}5-12-3456",
        "Heat ({}) 1995",
        "A{}",
        "Store {}",
        "{}-{}-1",
        "10.0.0.{}",
        "{}A7",
        "Set {}",
        "Market {}",
    ],
)
def test_codes_are_not_taken_for_numbers(form: str) -> None:
    texts = [form.format(25 + i // 2, i // 2) for i in range(ROWS)]
    assert built({**TARGET, **FEATURE, "c": texts})[1].notes == {}


def test_codes_to_predict_are_classes() -> None:
    codes = [f"0{code}" for code in range(25, 45)] * 10
    columns = {"n": [float(i % 7) for i in range(len(codes))], "y": codes}
    assert len(built(columns)[0].columns.classes) == 20


@pytest.mark.parametrize(
    ("form", "forms"),
    [
        ("{:02}.08.2024", ["%d.%m.%Y", "%m.%d.%Y"]),
        ("8/{}/24", ["%m/%d/%y"]),
        ("2024-08-{:02} 07:30:00 CET", ["%Y-%m-%d %H:%M:%S%.f %Z"]),
        ("{}-8-2024 07:30", ["%d-%m-%Y %H:%M", "%m-%d-%Y %H:%M"]),
        ("8/{}/2024 3:04 PM", ["%m/%d/%Y %I:%M %p"]),
        ("Jan-{:02}", ["%b-%y"]),
        ("{}. Mai 2024", []),
        ("{}. mai 2024 kl. 07:30", []),
        ("{} stycznia 2024", []),
        ("{} февраля 2024", []),
    ],
)
def test_dates_in_other_forms_are_reported_with_the_form_that_reads_them(
    form: str, forms: list[str]
) -> None:
    days = 12 if len(forms) > 1 else ROWS // 2
    texts = [form.format(1 + i % days) for i in range(ROWS)]
    expected = f"dates such as {texts[0]!r}"
    expected += ", whose order of day and month is unclear: " if len(forms) > 1 else ": "
    expected += "write YYYY-MM-DD"
    if forms:
        offered = " or ".join(f'"{each}"' for each in forms)
        expected += f", or say their form: table: {{columns: {{c: {offered}}}}}"
    _, found = built({**TARGET, **FEATURE, "c": texts})
    note = found.notes["c"].removesuffix(", which leaves out the zone")
    assert note == f"is categorical, {days} different texts: it is {expected}"
    _, found = built(
        {"y": TARGET["y"][:days], "n": FEATURE["n"][:days], "c": texts[:days]},
        split={"random": [0.4, 0.3, 0.3]},
    )
    assert found.ignored["c"].startswith(f"it is {expected}")
    for each in forms:
        made, found = built({**TARGET, **FEATURE, "c": texts}, columns={"c": each})
        assert (found.numeric, made.columns.kinds) == (["n", "c"], {"c": each})
        assert not np.isnan(made.numeric).any()


@pytest.mark.parametrize("form", ["%d.%m.%Y", "%m/%d/%Y", "%Y-%m-%d 07:30:00 CET"])
@pytest.mark.parametrize("each", [2, 10])
def test_dates_in_several_forms_are_reported_with_an_example_of_both(form: str, each: int) -> None:
    days = [dt.date(2026, 1, 1) + dt.timedelta(i // 4) for i in range(ROWS)]
    texts = [f"{day:{form}}" if i % each == 1 else f"{day}" for i, day in enumerate(days)]
    _, found = built({**TARGET, **FEATURE, "c": texts})
    both = f"dates in several forms, such as {texts[1]!r} and '2026-01-01'"
    assert found.notes["c"].endswith(f"different texts: it is {both}: write YYYY-MM-DD in all")


def test_a_form_is_not_offered_that_cant_read_all_dates_of_a_column() -> None:
    texts = [f"{1 + i % 28:02}.08.2024" for i in range(ROWS)]
    _, found = built({**TARGET, **FEATURE, "c": [*texts[1:], "2024-08-01"]})
    assert found.notes["c"].endswith("write YYYY-MM-DD in all")


MOMENTS = [
    "2026-01-02 03:04:05+00",
    "2026-01-02 03:04:05.123456+00",
    "2026-01-02 08:34:05+05:30",
    "2026-01-01 22:34:05-0430",
    "2026-01-02 03:04:05 UTC",
    "2026-01-02 03:04:05.000000 UTC",
    "2026-01-02T03:04:05.000Z",
    "2026-01-02T03:04:05z",
    "2026-01-02 03:04:05.0000000 +00:00",
    "2026-01-02 04:04:05 +0100",
    "2026-01-02 03:04:05 +0000 UTC",
    "2026-01-02T04:04:05+01:00[Europe/Oslo]",
    "20260102T030405",
    "20260102T030405Z",
    "20260102T040405+0100",
    "2026-01-02 03:04:05 AM",
    "2026-01-02 3:04:05 a.m.",
    "2026/01/02 03:04:05",
    "2026/1/2 3:04:05",
    "2026-Jan-02 03:04:05",
    "Fri, 02 Jan 2026 03:04:05 +0000",
    "Fri, 2 Jan 2026 04:04:05 +0100",
    "Fri, 02 Jan 2026 03:04:05 GMT",
    "Fri Jan  2 03:04:05 2026",
    "Fri Jan  2 03:04:05 UTC 2026",
    "2 Jan 2026 03:04:05",
    "Jan 2, 2026, 3:04:05 AM",
    "Fri Jan 02 2026 03:04:05 GMT+0000 (Coordinated Universal Time)",
    "January 2, 2026 3:04:05 AM",
    "02-JAN-26 03.04.05.000000 AM",
    "02-JAN-2026 03:04:05",
    "02JAN2026:03:04:05",
    "02/Jan/2026:03:04:05 +0000",
    "2026-01-02-03.04.05.000000",
    "2026-01-02 03:04:05,123",
    "2026-01-02_03:04:05",
    "20260102_030405",
    "20260102-03:04:05.000",
    "20260102 03:04:05",
    "2026_01_02 03:04:05",
    "[02/Jan/2026:03:04:05 +0000]",
    'ISODate("2026-01-02T03:04:05Z")',
    "January 2, 2026 at 3:04:05 AM",
    "Jan  2 2026  3:04:05:000AM",
    "02 Jan 2026 03:04:05:000",
]
DAYS = [
    "02-JAN-26",
    "2-jan-2026",
    "2 January 2026",
    "2nd Jan 2026",
    "Jan 2, 2026",
    "Jan. 2, 2026",
    "02JAN2026",
    "2026/01/02",
    "2026.01.02",
    "2026_01_02",
    "2026-1-2",
    "Friday, January 2, 2026",
]
MONTHS = [
    "2026-01",
    "Jan 2026",
    "January 2026",
    "Jan-2026",
    "2026M01",
    "2026m1",
    "01.2026",
    "1Q2026",
    "2026-Jan",
    "01/2026",
    "1/2026",
    "2026-Q1",
    "2026Q1",
    "Q1 2026",
]


@pytest.mark.parametrize(
    ("texts", "moment"),
    [
        (MOMENTS, dt.datetime(2026, 1, 2, 3, 4, 5)),
        (DAYS, dt.datetime(2026, 1, 2)),
        (MONTHS, dt.datetime(2026, 1, 1)),
    ],
)
def test_moments_as_databases_and_tools_write_them_are_read(
    texts: list[str], moment: dt.datetime
) -> None:
    days = numbers(pl.Series(texts), "date")
    expected = numbers(pl.Series([moment]), "date")[0]
    wrong = {text: day for text, day in zip(texts, days, strict=True) if abs(day - expected) > 1e-5}
    assert wrong == {}
    rows = [*texts, *(f"{day:%Y-%m-%d}" for day in [dt.date(2026, 3, 2)] * 2 * len(texts))]
    columns = {"y": [i % 2 for i in range(len(rows))], "c": rows}
    assert built(columns)[1].numeric == ["c"]


@pytest.mark.parametrize(
    "text",
    ["1-5", "1.2.3", "5 star", "2026-13", "1234-05", "26-1", "May", "12345", "Market 1 2020"],
)
def test_other_texts_are_not_taken_for_dates(text: str) -> None:
    made, found = built({**TARGET, "c": cycle(text, "x")})
    assert (found.notes, [*made.columns.categorical]) == ({}, ["c"])


@pytest.mark.parametrize(
    ("form", "texts", "values"),
    [
        ("decimal_point", ["(1,234.50)", "$5", "12%", "1.5K", "1e3"], [-1234.5, 5, 12, 1500, 1000]),
        ("decimal_comma", ["1.234,50 €", "5", "-12,5", "1.234"], [1234.5, 5, -12.5, 1234]),
        (
            "decimal_point",
            ["1,234.50-", "2 M", "1'000", "1,23,456.0"],
            [-1234.5, 2e6, 1000, 123456],
        ),
        ("%d.%m.%Y", ["02.01.1970", " 03.01.1970"], [1, 2]),
        ("%m/%d/%Y %I:%M %p", ["1/2/1970 12:00 PM", "1/3/1970 6:00 AM"], [1.5, 2.25]),
        ("%Y-%m-%d %H:%M %z", ["1970-01-02 01:00 +0100", "1970-01-03 00:00 +0000"], [1, 2]),
        ("%Y%m%d", ["19700102", "19700103"], [1, 2]),
        ("%Y%m%d", [19700102, 19700103], [1, 2]),
        ("%m/%Y", ["02/1970", "03/1970"], [31, 59]),
    ],
)
def test_a_column_is_read_by_the_form_that_the_study_gives(
    form: str, texts: list[Any], values: list[float]
) -> None:
    columns = {**TARGET, "c": cycle(*texts, None)}
    made, found = built(columns, columns={"c": form})
    assert made.numeric[: len(values), 0].tolist() == pytest.approx(values)
    assert found.missing["c"] == ROWS // (len(texts) + 1)
    read = without_nulls(pl.DataFrame({"c": columns["c"]}), [])
    again, _ = encode(read, made.columns, range(1, ROWS + 1))
    np.testing.assert_array_equal(again, made.numeric)
    assert "row 1 below the header, column 'c': 'x' is not " in problem_of(
        {**TARGET, "c": cycle("x", "1")}, columns={"c": form}
    )


def test_the_target_and_the_split_column_are_read_by_the_forms_in_the_study() -> None:
    days = [f"{1 + i // 4:02}.02.2026" for i in range(ROWS)]
    columns = {"y": [f"€ {i % 30},50" for i in range(ROWS)], **FEATURE, "day": days}
    forms = {"y": "decimal_comma", "day": "%d.%m.%Y"}
    made, found = built(columns, columns=forms, split={"time": "day"})
    assert made.target[:3].tolist() == [0.5, 1.5, 2.5]
    assert found.ignored == {"day": "it only splits the rows"}
    assert found.begins == {"validation": "2026-02-08 00:00:00", "test": "2026-02-09 00:00:00"}
    assert "is the target; say what it is" in problem_of(columns, columns={"y": "numeric"})
    problem = problem_of(columns)
    assert problem.startswith(
        "the target 'y' has text such as '€ 0,50': write a point before decimals"
    )
    assert "or add table: {columns: {y: decimal_comma}}" in problem


CELLS = st.fixed_dictionaries(
    {
        "number": st.sampled_from(["NA", "", "-9", "-9.0", " 7 ", "1e3"])
        | st.floats(width=32, allow_nan=False, allow_infinity=False).map(repr),
        "moment": st.sampled_from(["", "NA", *MOMENTS, *DAYS, *MONTHS])
        | st.datetimes(dt.datetime(1970, 1, 1), dt.datetime(2100, 1, 1)).map(str),
        "hour": st.sampled_from(["", "9:30", "10:30 PM", "23:59:59.5"]),
        "amount": st.sampled_from(["", "€ 1.234,50", "(5)", "12%", "-9", "2,5K"]),
        "day": st.dates(dt.date(1970, 1, 1), dt.date(2100, 1, 1)).map(
            lambda day: f"{day:%d/%m/%Y}"
        ),
        "flag": st.sampled_from(["true", "False", "NA"]),
        "word": st.text(st.sampled_from("ab9-0 .,;\"\n'"), max_size=4),
    }
)
ROLES = {"amount": "decimal_comma", "day": "%d/%m/%Y", "flag": "categorical", "word": "categorical"}


@pytest.mark.slow
@settings(max_examples=25)
@given(st.lists(CELLS, min_size=6, max_size=30), st.sampled_from(",;\t"), st.integers(5, 9))
def test_a_cell_means_in_prediction_what_it_meant_in_training(
    tmp_path_factory: pytest.TempPathFactory, cells: list[dict[str, str]], mark: str, batch: int
) -> None:
    path = tmp_path_factory.mktemp("cells") / "t.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["y", "useful", *cells[0]], delimiter=mark)
        writer.writeheader()
        writer.writerows({"y": f"{i}.5", "useful": i % 5, **row} for i, row in enumerate(cells))
    roles = {**ROLES, "number": "numeric"}
    options = TableOptions.model_validate({"columns": roles, "null_values": ["NA", -9]})
    made, _ = build_table(read_rows(path, "csv"), "y", options, 0)
    with pytest.MonkeyPatch.context() as patch, opened_csv(path) as opened:
        patch.setattr(csv_rows, "BATCH", batch)
        parts = [
            encode(without_nulls(frame, made.columns.null_values), made.columns, range(len(frame)))
            for frame in opened.frames
        ]
    for part, trained in zip(
        zip(*parts, strict=True), (made.numeric, made.categorical), strict=True
    ):
        np.testing.assert_array_equal(np.concatenate(part).astype(trained.dtype), trained)


def test_the_documented_forms_of_dates_are_read() -> None:
    text = (Path(__file__).parents[3] / "docs/tabular.md").read_text()
    listed = text.partition("A date begins with")[2].partition("Any other form")[0]
    forms = [form for form in re.findall(r"`([^`\n]+)`", listed) if form[:4] == "2026"]
    assert "2026-03-01 00:00:00" in forms
    forms += re.findall(r"`([^`\n]*(?:Jan|JAN|Q1)[^`\n]*)`", listed)
    forms += [f"2026-03-01T10:30:00{zone}" for zone in ("Z", "+02:00", "+0200")]
    for form in forms:
        _, found = built({**TARGET, "c": cycle(form, "2026-03-02")})
        assert found.numeric == ["c"], form
    _, found = built({**TARGET, "c": cycle("10:30", "10:30:59.5")})
    assert found.numeric == ["c"]


@pytest.mark.parametrize(
    ("form", "cells"),
    [
        ("%Y%m%d%H", [2026010113, 2026010114, 2026020100]),
        ("%d.%m.%Y %H Uhr", ["01.01.2026 13 Uhr", "01.01.2026 14 Uhr", "01.02.2026 00 Uhr"]),
    ],
)
def test_a_date_may_have_an_hour_without_minutes(form: str, cells: list[Any]) -> None:
    rows = {"y": [0.5, 1.5, 2.5] * 10, "when": cells * 10}
    options = TableOptions.model_validate({"columns": {"when": form}})
    made, _ = build_table(pl.DataFrame(rows), "y", options, 0)
    days = (dt.date(2026, 1, 1) - dt.date(1970, 1, 1)).days
    expected = [days + 13 / 24, days + 14 / 24, days + 31]
    np.testing.assert_allclose(made.numeric[:3, 0], expected, atol=1e-3)


def test_a_form_that_no_date_can_have_is_refused() -> None:
    options = TableOptions.model_validate({"columns": {"when": "%Y-%m-%d %p"}})
    with pytest.raises(TableError, match=r"table.columns: .*'when' .*'%Y-%m-%d %p'"):
        build_table(
            pl.DataFrame({"y": [0.5, 1.5] * 9, "when": ["2026", "2027"] * 9}), "y", options, 0
        )


def test_floats_of_a_form_mean_in_prediction_what_they_meant_in_training() -> None:
    days = [None if i == 5 else 20260101.0 + i % 28 for i in range(60)]
    frame = pl.DataFrame({"y": [i % 7 + 0.5 for i in range(60)], "when": days})
    options = TableOptions.model_validate({"columns": {"when": "%Y%m%d"}})
    made, _ = build_table(frame, "y", options, 0)
    numeric, _ = encode(without_nulls(frame, []), made.columns, range(60))
    np.testing.assert_array_equal(numeric, made.numeric)
