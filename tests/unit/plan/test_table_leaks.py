"""Columns that determine the target, and rows that are both for training and for testing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pytest

from tests.unit.plan.test_tables import built
from trialfleet.nodes.tabular.table import read_table, write_table
from trialfleet.workflows.tables.table_from_rows import describe

ROWS = 1_000
DEALT = np.random.default_rng(0)
NOISE = DEALT.normal(size=ROWS)
LABELS = DEALT.choice(["no", "yes"], ROWS, p=[0.97, 0.03])
COLOURS = DEALT.choice(["red", "green", "blue"], ROWS)
PRICE = np.round(np.exp(DEALT.normal(3, 1, ROWS)), 2)


def is_reported(target: npt.ArrayLike, column: Any, **options: Any) -> bool:
    """Return whether a note says that `column` determines the target."""
    _, found = built({"y": target, "n": NOISE, "c": column}, **options)
    assert {*found.notes} <= {"c"}
    return "determines the target" in found.notes.get("c", "")


@pytest.mark.parametrize(
    ("target", "column"),
    [
        (LABELS, LABELS),
        (LABELS, [f" {label.upper()}" for label in LABELS]),
        (LABELS, (LABELS == "no").astype(int)),
        (LABELS, LABELS == "yes"),
        (LABELS, np.where(LABELS == "yes", NOISE, np.nan)),  # a date of the end, as number
        (LABELS, np.where(LABELS == "yes", COLOURS, "")),  # a reason for the end
        (LABELS, np.where(LABELS == "yes", np.abs(NOISE), 0)),
        (COLOURS, [colour[:1] for colour in COLOURS]),
        (COLOURS, [len(colour) for colour in COLOURS]),
        (PRICE, PRICE),
        (PRICE, -1.1 * PRICE + 7),
        (PRICE, np.log(PRICE)),
        (PRICE, np.where(NOISE > 1, np.nan, PRICE)),
    ],
)
def test_a_column_that_determines_the_target_is_reported(
    target: npt.ArrayLike, column: npt.ArrayLike
) -> None:
    assert is_reported(target, list(np.asarray(column).tolist()))


def test_a_column_of_an_npz_that_determines_the_target_is_reported(tmp_path: Path) -> None:
    columns = {"y": LABELS, "n": NOISE, "c": LABELS == "no"}
    split = np.arange(ROWS) % 3
    file = tmp_path / "rows.npz"
    write_table(file, columns, target="y", task="classification", split=split)
    notes = describe(read_table(file)).notes
    assert notes.keys() == {"c"}
    assert notes["c"].startswith("determines the target in all 1000 rows checked. ")
    assert notes["c"].endswith("leave it out")


@pytest.mark.parametrize(
    ("target", "column"),
    [
        (LABELS, np.where(NOISE > 2.5, "no", LABELS)),  # a strong column, with exceptions
        (LABELS, np.where(LABELS == "yes", COLOURS, "red")),
        (np.where(np.arange(ROWS) < 3, "b", "a"), np.where(np.arange(ROWS) < 3, "x", "z")),  # few
        (COLOURS, COLOURS == "red"),
        (COLOURS, NOISE),
        (PRICE, np.round(PRICE)),
        (PRICE, PRICE > 20),
        (PRICE, NOISE),
        (PRICE, PRICE + 0.1 * NOISE),
        (LABELS, NOISE),
    ],
)
def test_a_column_that_only_predicts_the_target_is_not_reported(
    target: npt.ArrayLike, column: npt.ArrayLike
) -> None:
    assert not is_reported(target, list(np.asarray(column).tolist()))


def test_a_date_with_which_the_target_grows_is_not_reported() -> None:
    days = pl.date_range(pl.date(2020, 1, 1), pl.date(2022, 1, 1), eager=True)
    grows = np.cumsum(DEALT.random(len(days)))
    _, found = built({"y": grows, "day": days, "n": DEALT.normal(size=len(days))})
    assert found.notes == {}


def repeated(**rows: Any) -> float:
    return built(rows)[1].repeated


def test_repeated_test_rows_are_found_by_their_share() -> None:
    rows = {"y": LABELS.tolist(), "n": NOISE.tolist(), "c": COLOURS.tolist()}
    twice = {name: values * 2 for name, values in rows.items()}
    assert repeated(**twice) > 0.5
    assert repeated(**twice, id=list(range(2 * ROWS))) > 0.5  # the id is not used
    assert repeated(**rows) == 0
    assert repeated(**{name: values + values[:10] for name, values in rows.items()}) == 0, "few"
    rare = [i for i, label in enumerate(LABELS) if label == "yes"] * 30  # to balance the classes
    more = {name: values + [values[i] for i in rare] for name, values in rows.items()}
    assert repeated(**more) > 0.1


def test_rows_with_few_possible_values_do_not_count_as_repeated() -> None:
    labels, colours = LABELS.tolist(), COLOURS.tolist()
    assert repeated(y=labels, c=colours, k=(NOISE > 0).tolist()) == 0
    counts = np.floor(np.abs(NOISE) * 20).tolist()
    assert repeated(y=labels, c=colours, k=counts) == 0
    idle = np.where(COLOURS == "red", 0, NOISE)
    assert repeated(y=np.where(COLOURS == "red", 0, PRICE).tolist(), n=idle.tolist()) == 0
