"""A region's table in one file: it is read as it was written, and errors name their cause."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trialfleet.nodes.tabular import table

SPLIT = [0, 0, 0, 1, 2]
COLUMNS: dict[str, Any] = {
    "late": ["no", "yes", "no", "yes", "no"],
    "miles": [1.5, math.nan, -3.0, 0.0, 1e30],
    "carrier": ["UA", 'é, "x"', "UA", "ZZ", ""],
    "hour": [7, 8, 7, 9, 7],
}


def write(path: Path, columns: dict[str, Any] | None = None, **changes: Any) -> table.Table:
    arguments: dict[str, Any] = {
        "target": "late",
        "task": "classification",
        "split": SPLIT,
        "categorical": ["carrier", "hour"],
    }
    table.write_table(path, columns or COLUMNS, **(arguments | changes))
    return table.read_table(path)


def test_a_written_table_is_read_back(tmp_path: Path) -> None:
    found = write(tmp_path / "a b.npz")
    assert found.columns == table.Columns(
        numeric=["miles"],
        categorical={"carrier": ["UA", 'é, "x"'], "hour": ["7", "8"]},
        target="late",
        task="classification",
        classes=["no", "yes"],
    )
    np.testing.assert_array_equal(
        found.numeric, np.array([[1.5], [math.nan], [-3], [0], [1e30]], np.float32)
    )
    # Values that the training rows (the first three) don't have are unknown: 0.
    assert found.categorical.tolist() == [[1, 1], [2, 2], [1, 1], [0, 0], [0, 1]]
    assert found.target.tolist() == [0, 1, 0, 1, 0]
    assert found.split.tolist() == SPLIT
    dtypes = [a.dtype for a in (found.numeric, found.categorical, found.target, found.split)]
    assert dtypes == [np.float32, np.int32, np.float32, np.int8]


def test_a_regression_keeps_its_values(tmp_path: Path) -> None:
    found = write(
        tmp_path / "t.npz",
        target="miles",
        task="regression",
        categorical=["late", "carrier"],
        columns={**COLUMNS, "miles": [1, 2, 3, 4, 5.5]},
    )
    assert found.target.tolist() == [1, 2, 3, 4, 5.5]
    assert found.columns.classes == []
    assert found.columns.numeric == ["hour"]


def test_classes_are_in_order_of_their_values_not_of_their_text(tmp_path: Path) -> None:
    found = write(tmp_path / "t.npz", {**COLUMNS, "late": [10, 9, 10, 9, 2]})
    assert found.columns.classes == ["2", "9", "10"]
    assert found.target.tolist() == [2, 1, 2, 1, 0]


@pytest.mark.parametrize("values", [["UA", None, "A "], ["UA", math.nan, "A "]])
def test_missing_categories_of_any_kind_are_the_empty_text(
    tmp_path: Path, values: list[Any]
) -> None:
    found = write(
        tmp_path / "t.npz", {**COLUMNS, "carrier": np.array([*values, "", "A"], dtype=object)}
    )
    assert found.columns.categorical["carrier"] == ["", "A", "UA"]
    assert found.categorical[:, 0].tolist() == [3, 1, 2, 1, 2]
    found = write(tmp_path / "t.npz", {**COLUMNS, "carrier": [4.0, math.nan, 10.0, 9.0, 4.0]})
    assert found.columns.categorical["carrier"] == ["", "4", "10"]
    assert found.categorical[:, 0].tolist() == [2, 1, 3, 0, 2]


def test_booleans_are_categories_that_a_prediction_knows(tmp_path: Path) -> None:
    found = write(tmp_path / "t.npz", {**COLUMNS, "carrier": [True, False, True, False, True]})
    assert found.columns.categorical["carrier"] == ["false", "true"]
    assert found.columns.kinds == {"carrier": "boolean"}


@pytest.mark.parametrize(
    "classes", [["no", None, "no", "yes", "no"], [0.0, 1.0, 0.0, math.nan, 1.0]]
)
def test_missing_classes_are_refused(tmp_path: Path, classes: list[Any]) -> None:
    with pytest.raises(ValueError, match="'late' has missing values; leave these rows out"):
        write(tmp_path / "t.npz", {**COLUMNS, "late": classes})


def test_blanks_around_categories_and_classes_are_ignored(tmp_path: Path) -> None:
    padded = {"carrier": ["a ", "b", " a", "b", "a"], "late": ["x", "y", "x ", "y", "x"]}
    found = write(tmp_path / "t.npz", {**COLUMNS, **padded})
    assert found.columns.categorical["carrier"] == ["a", "b"]
    assert found.columns.classes == ["x", "y"]
    assert found.target.tolist() == [0, 1, 0, 1, 0]


def test_a_table_needs_no_numeric_column(tmp_path: Path) -> None:
    found = write(tmp_path / "t.npz", {k: v for k, v in COLUMNS.items() if k != "miles"})
    assert found.numeric.shape == (5, 0)


def test_the_same_columns_give_the_same_bytes(tmp_path: Path) -> None:
    write(tmp_path / "1.npz")
    write(tmp_path / "2.npz")
    assert (tmp_path / "1.npz").read_bytes() == (tmp_path / "2.npz").read_bytes()


def test_a_write_that_fails_leaves_the_previous_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "t.npz")
    before = (tmp_path / "t.npz").read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("numpy.savez_compressed", full)
    with pytest.raises(OSError, match="disk full"):
        write(tmp_path / "t.npz", {**COLUMNS, "miles": [1, 2, 3, 4, 5]})
    assert (tmp_path / "t.npz").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["t.npz"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "ranking"}, "task is 'ranking'; choose classification or regression"),
        ({"target": "lat"}, "no column 'lat'; the columns are late, miles, carrier, hour"),
        ({"categorical": ["carier"]}, "no column 'carier'"),
        ({"categorical": ["late"]}, "'late' is the target"),
        ({"split": [0, 1, 2]}, r"'late' has the shape \(5,\), but 'split' has \(3,\)"),
        ({"split": [0, 0, 1, 2, 3]}, r"split has the values \[3\]"),
        ({"split": [0, 0, 0, 0, 2]}, "no validation rows"),
        ({"split": [1, 1, 1, 1, 2]}, "no training rows"),
        ({"split": [0, 0, 0, 1, 1]}, "no test rows"),
        ({"split": [0, 1, 0, 1, 2]}, "'late' has only one class in the training rows"),
        ({"categorical": []}, "'carrier' has values of .* if they are categories, name it in"),
        (
            {"target": "miles", "task": "regression", "categorical": ["late", "carrier"]},
            "the target 'miles' has missing values",
        ),
        (
            {"columns": {"late": COLUMNS["late"]}, "categorical": []},
            "the table only has the target .late.; add a column to learn from",
        ),
        ({"columns": {**COLUMNS, "miles": [1, 2, 3, 4, math.inf]}}, "'miles' has .* infinite"),
        ({"columns": {**COLUMNS, "miles": [1, 2, 3, 4, 1e300]}}, "'miles' has .* too large"),
        ({"columns": {**COLUMNS, "miles": np.ones((5, 2))}}, r"'miles' has the shape \(5, 2\)"),
    ],
)
def test_columns_that_make_no_table_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        write(tmp_path / "t.npz", **changes)
    assert not (tmp_path / "t.npz").exists()


def test_a_file_that_is_no_table_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    meta = {"numeric": ["n"], "categorical": {}, "target": "t", "task": "regression", "classes": []}
    arrays: dict[str, Any] = {
        "meta": np.array(json.dumps(meta)),
        "numeric": np.zeros((3, 2)),
        "categorical": np.zeros((3, 0)),
        "target": np.zeros(3),
        "split": np.zeros(3),
    }
    for content in (b"", b"nonsense", b"PK\x03\x04half"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"t\.npz is not a table"):
            table.read_table(path)
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match="shapes"):
        table.read_table(path)
    np.savez(path, **{k: v for k, v in arrays.items() if k != "split"})
    with pytest.raises(ValueError, match="split"):
        table.read_table(path)
    np.savez(path, **(arrays | {"numeric": np.array([{}, {}, {}])}))  # unpickling runs code
    with pytest.raises(ValueError, match="allow_pickle"):
        table.read_table(path)
