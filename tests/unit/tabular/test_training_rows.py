"""Columns, targets and classes that can't be learned from the training rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from tests.unit.tabular.small_trials import make_sandbox, read_result, run_here, write_order
from trialfleet.nodes.tabular import table
from trialfleet.nodes.tabular.dataset import Scale
from trialfleet.nodes.tabular.predict import load_model
from trialfleet.nodes.tabular.table import TRAIN, Table
from trialfleet.workflows.control.models.prediction_file import predict, predict_file
from trialfleet.workflows.study.table_options import TableOptions
from trialfleet.workflows.tables.csv_rows import TableError
from trialfleet.workflows.tables.table_from_rows import Description, build_table

pytestmark = pytest.mark.usefixtures("one_thread")

ROWS = 200
TRAINED = 140
SPLIT = {"column": "part"}


def rows_with(**columns: Any) -> pl.DataFrame:
    """Rows of which the first 140 are to train, 30 each to validate and to test."""
    x = np.random.default_rng(0).normal(size=ROWS)
    parts = ["train"] * TRAINED + ["validation"] * 30 + ["test"] * 30
    return pl.DataFrame({"part": parts, "x": x, "y": 3 * x + 10} | columns, strict=False)


def built(frame: pl.DataFrame, **options: Any) -> tuple[Table, Description]:
    given = TableOptions.model_validate({"split": SPLIT, **options})
    return build_table(frame, "y", given, 0)


def late(first: Any, then: Callable[[int], Any], since: int = TRAINED) -> list[Any]:
    return [first if row < since else then(row) for row in range(ROWS)]


# Features

UNTAUGHT: dict[str, tuple[list[Any], str]] = {
    "empty, then numbers": (late(None, lambda n: n % 50), "it has no values in the training rows"),
    "empty, then text": (late(None, lambda n: f"t{n % 3}"), "it has no values in the training"),
    "a constant, then numbers": (late(1.0, lambda n: n % 50), "the same in every training row"),
    "a constant, then text": (late("a", lambda n: f"t{n % 3}"), "the same in every training row"),
    "whole numbers in two spellings": (["4", "4.0"] * (ROWS // 2), "a column of categories"),
    "missing or a constant": (
        [None if row % 2 else 5.0 for row in range(TRAINED)] + [*range(60)],
        "the same in every training row that has a value",
    ),
    "one other, by 1e-12": ([1.0 + 1e-12, *late(1.0, lambda n: n % 50)[1:]], "it varies by 1e-12"),
    "one other value, by 1e-12": ([1e-12, *late(0.0, lambda n: n % 50)[1:]], "it varies by 1e-12"),
    "noise of 1e-12": (
        [1e-12 * (n % 9) if n < TRAINED else n % 50 for n in range(ROWS)],
        "it varies by 8e-12",
    ),
    "one other value": ([1.0, *late(0.0, lambda n: n % 2)[1:]], "1 of 140 training rows have"),
    "three days before the split": (
        late(None, lambda n: n % 50, since=TRAINED - 3),
        "3 of 140 training rows have a value, and 60 of 60 other rows",
    ),
    "rounding": ([0.1 + 0.2 if n % 2 else 0.3 for n in range(TRAINED)] + [*range(60)], "the same"),
}


@pytest.mark.parametrize("name", UNTAUGHT)
@pytest.mark.parametrize("role", [None, "said"])
def test_a_column_that_the_training_rows_teach_nothing_of_is_left_out(
    name: str, role: str | None
) -> None:
    values, why = UNTAUGHT[name]
    numeric = all(value is None or isinstance(value, int | float) for value in values)
    said = {"late": "numeric" if numeric else "categorical"} if role else {}
    if why == "a column of categories":
        why, said = "the same in every row", {"late": "categorical"}
    made, found = built(rows_with(late=values), columns=said)
    assert why in found.ignored["late"]
    assert found.numeric == ["x"]
    assert found.categorical == {}
    assert made.used().columns.needed_columns == ["x"]
    assert made.used().numeric.shape == (ROWS, 1)


@pytest.mark.parametrize(
    "values",
    [
        [n % 2 for n in range(ROWS)],
        [float(n % 40 == 0) for n in range(ROWS)],  # seldom, and as seldom later on
        [None if n % 10 else n % 7 for n in range(ROWS)],
        [float(n) if n % 3 else None for n in range(ROWS)],  # a trend
        [1e9 + n % 5 for n in range(ROWS)],
        late(None, lambda n: n % 50, since=TRAINED - 60),
        [1e-12 * (n % 9) for n in range(ROWS)],
    ],
)
def test_a_column_that_the_training_rows_know_is_used(values: list[Any]) -> None:
    assert built(rows_with(late=values))[1].numeric == ["x", "late"]


def test_a_table_without_usable_columns_is_refused_with_the_reason() -> None:
    frame = rows_with(late=late(None, lambda n: n % 50)).drop("x")
    with pytest.raises(TableError, match="'late': it has no values in the training rows"):
        built(frame)


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., float]:
    """Train on a table in this process; return the test error, and leave the model."""
    sandbox = make_sandbox(tmp_path / "sandbox")

    def train(made: Table, metric: str = "test_rmse") -> float:
        table.save_table(sandbox / "r.npz", made)
        objective = {"metric": "val_rmse", "direction": "minimize"}
        params = {"epochs": 30, "patience": 30}
        write_order(sandbox, mode="final", objective=objective, params=params)
        assert run_here(sandbox, monkeypatch) == 0
        return float(read_result(sandbox)["metrics"][metric])

    return train


@pytest.mark.slow
def test_columns_that_vary_only_after_the_training_rows_do_not_harm_a_model(
    trained: Callable[..., float], tmp_path: Path
) -> None:
    columns = {
        f"c{place}": values
        for place, (values, _) in enumerate(UNTAUGHT.values())
        if all(value is None or isinstance(value, int | float) for value in values)
    }
    alone = trained(built(rows_with())[0])
    frame = rows_with(**columns)
    assert trained(built(frame)[0]) == pytest.approx(alone, rel=1e-5)

    model = tmp_path / "sandbox/model"
    out = tmp_path / "out.csv"
    rows_with().select("x").write_csv(tmp_path / "rows.csv")  # without the columns
    with out.open("w") as file:
        predict_file(model, tmp_path / "rows.csv", file)
    guesses = np.array(predict(model, rows_with().select("x").to_dicts()), float)
    assert np.sqrt(((guesses - rows_with()["y"].to_numpy()) ** 2).mean()) < 2 * alone

    # of arrays nothing is left out, but no value is further away than the training rows say
    parts = frame["part"].replace_strict({"train": 0, "validation": 1, "test": 2}).to_numpy()
    arrays = {name: frame[name].cast(pl.Float64).to_numpy() for name in frame.columns[1:]}
    path = tmp_path / "arrays.npz"
    table.write_table(path, arrays, target="y", task="regression", split=parts)
    assert trained(table.read_table(path)) < frame["y"].to_numpy().std()


def test_values_far_outside_of_the_training_rows_are_limited() -> None:
    nan = math.nan
    learned = torch.tensor([[0.0, 1.0, nan], [2.0, 1.0, nan], [4.0, 1.0, nan]])
    scale = Scale.measure(learned)
    far = torch.tensor([[1e30, 5.0, 7.0], [9.0, nan, nan], [-4.0, 1.0, 7.0], [-9.0, 0.0, 0.0]])
    numbers = scale.standardise(far)
    assert numbers[:, 0].tolist() == pytest.approx(
        [6, 7 / scale.deviation[0].item(), -3.67, -6], 1e-2
    )
    assert not numbers[:, 1:].any()
    assert torch.equal(Scale.read(scale.describe()).standardise(far), numbers)
    learned = torch.tensor([[0.0]] * 999 + [[1.0]])  # as far as the training rows go
    assert Scale.measure(learned).standardise(torch.tensor([[9.0]])) == Scale.measure(
        learned
    ).standardise(torch.tensor([[1.0]]))
    older = Scale.read({"mean": [2.0], "deviation": [1.0]})  # of an earlier release
    assert older.standardise(torch.tensor([[102.0]])).item() == 100


# Targets


@pytest.mark.parametrize("value", [5, 5.5, 0.1 + 0.2, 1e9 + 0.5])
@pytest.mark.parametrize("task", ["auto", "regression"])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_target_that_is_the_same_in_each_training_row_is_refused(
    value: float, task: str, elsewhere: bool
) -> None:
    y = [value] * TRAINED + [value + (n % 3) * elsewhere for n in range(60)]
    with pytest.raises(
        TableError, match=r"has only one (class|value) in the training rows: "
    ) as caught:
        built(rows_with(y=y), task=task)
    assert str(caught.value).endswith("see table.split" if elsewhere else "see the file")


def test_write_table_refuses_a_target_with_one_training_value(tmp_path: Path) -> None:
    columns = {"x": np.arange(9), "y": np.repeat([5.5, 6.5], [6, 3])}
    with pytest.raises(ValueError, match=r"'y' has only one value in the training rows: 5\.5"):
        table.write_table(
            tmp_path / "t.npz",
            columns,
            target="y",
            task="regression",
            split=[0, 0, 0, 0, 0, 0, 1, 2, 2],
        )


@pytest.mark.slow
@pytest.mark.parametrize("base", [1e9, -4e12])
def test_a_target_whose_spread_is_too_small_for_float32_is_learned(
    trained: Callable[..., float], tmp_path: Path, base: float
) -> None:
    frame = rows_with(x=np.linspace(-1, 1, ROWS)[np.random.default_rng(0).permutation(ROWS)])
    frame = frame.with_columns(y=base + frame["x"])
    made, found = built(frame)
    assert found.range == [base - 1, base + 1]
    assert trained(made, "test_r2") > 0.9
    model = load_model(tmp_path / "sandbox/model")
    assert model.target_scale.deviation.item() == pytest.approx(frame["x"][:TRAINED].std(), 0.1)
    frame.select("x").write_csv(tmp_path / "rows.csv")
    with (tmp_path / "out.csv").open("w") as file:
        predict_file(tmp_path / "sandbox/model", tmp_path / "rows.csv", file)
    predicted = pl.read_csv(tmp_path / "out.csv")["predicted_y"].to_numpy() - base
    assert np.corrcoef(predicted, frame["x"].to_numpy())[0, 1] > 0.95
    assert len(np.unique(predicted)) > ROWS // 2


def test_a_feature_whose_spread_is_too_small_for_float32_keeps_its_values() -> None:
    moments = [1.7e9 + 10 * n % 70 for n in range(ROWS)]
    made, _ = built(rows_with(moment=moments))
    assert made.numeric[:, 1].tolist() == moments
    assert made.numeric.dtype == np.float64
    assert built(rows_with())[0].numeric.dtype == np.float32, "half the bytes where it may"


# Classes


def test_large_whole_numbers_stay_apart() -> None:
    first = 2**53
    for y in (
        [str(first + n % 2) for n in range(ROWS)],
        [first + n % 2 for n in range(ROWS)],
        [f"+{first}" if n % 2 else f" {first + 1}" for n in range(ROWS)],
    ):
        made, found = built(rows_with(y=y))
        assert found.classes == {str(first): 100, str(first + 1): 100}
        assert made.target[made.split == TRAIN].mean() == 0.5
    nine = [str(first + n % 9) for n in range(ROWS)]
    assert built(rows_with(y=nine))[1].task == "classification"
    eleven = [str(10**12 + n % 11) for n in range(ROWS)]
    assert built(rows_with(y=eleven))[1].task == "regression"


@pytest.mark.parametrize("spelling", ["{}", "{}.0", " {}. ", "{}e0"])
def test_whole_numbers_in_other_spellings_are_the_same_classes(spelling: str) -> None:
    y = [spelling.format(n % 3) if n % 2 else str(n % 3) for n in range(ROWS)]
    assert [*built(rows_with(y=y))[1].classes] == ["0", "1", "2"]


def test_a_class_without_a_training_row_is_named() -> None:
    y = ["a", "b"] * 70 + ["a", "b", "c"] * 20
    assert built(rows_with(y=y))[1].untaught == ["c"]
    assert built(rows_with(y=["a", "b"] * 100))[1].untaught == []


# Categories

SPELLINGS = [
    (["4", "5", "6"], ["4.0", "5.0", "6.0"]),
    (["4.0", "5.0", "6.0"], ["4", "5.", "6.00"]),
    ([4, 5, 6], [4.0, 5.0, 6.0]),
    ([4.0, 5.0, 6.0], ["4", "5", "6"]),
    (["100000", "-7", "x"], ["1e+05", "-7.0", "x"]),
    ([2**53, 2**53 + 1, 3], [str(2**53), str(2**53 + 1), "3.0"]),
]


@pytest.mark.parametrize(("one", "other"), SPELLINGS)
def test_whole_numbers_are_one_category_however_they_are_spelt(
    one: list[Any], other: list[Any]
) -> None:
    role = {"columns": {"store": "categorical"}}
    first, second = (
        built(rows_with(store=[each[n % 3] for n in range(ROWS)]), **role)[0]
        for each in (one, other)
    )
    assert first.columns.categorical == second.columns.categorical
    assert first.categorical.tolist() == second.categorical.tolist()
    assert first.categorical.all()


def test_codes_are_no_numbers() -> None:
    words = ["04", "4", "4.5", "1e5", "4e+5x", "v1.0", "1.0.0", "00"]
    made, _ = built(rows_with(store=[words[n % 8] for n in range(ROWS)]))
    assert made.columns.categorical["store"] == sorted(words)


@pytest.mark.parametrize("values", [[4.0, 5.0], ["4", "5.0"], np.array([4, 5])])
def test_write_table_writes_whole_numbers_without_decimals(tmp_path: Path, values: Any) -> None:
    columns = {"k": np.tile(values, 5), "y": np.tile([0.0, 1.0], 5)}
    table.write_table(
        tmp_path / "t.npz",
        columns,
        target="y",
        task="classification",
        split=[0, 0, 0, 0, 0, 0, 1, 1, 2, 2],
        categorical=["k"],
    )
    made = table.read_table(tmp_path / "t.npz")
    assert made.columns.categorical == {"k": ["4", "5"]}
    assert made.columns.classes == ["0", "1"]
    assert made.categorical[:, 0].tolist() == [1, 2] * 5
