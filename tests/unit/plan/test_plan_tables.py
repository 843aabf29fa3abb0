"""Tables that `plan` makes of the data of `trainer: tabular`, before any job."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner

from tests.unit.study.study_texts import TRAINER as TRAINER_LINE
from tests.unit.study.study_texts import error_of, with_line
from tests.unit.tabular.small_trials import make_table
from trialfleet import ctrl_c
from trialfleet.errors import InputError
from trialfleet.nodes.tabular.model_measurement import check_columns
from trialfleet.nodes.tabular.table import Columns, read_table
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.cli.printing.plan_summary import plan_summary, plan_text
from trialfleet.workflows.control.plan import table_examination as planning
from trialfleet.workflows.control.plan.run_folder_writer import write_plan
from trialfleet.workflows.control.plan.table_summary import table_progress
from trialfleet.workflows.control.plan.trial_json_and_submit_file import TrialFiles, TrialOrder
from trialfleet.workflows.control.run.run import Run
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.facts.run_folder.table_findings import source_of_table
from trialfleet.workflows.study.daily import RunsDay
from trialfleet.workflows.study.frozen import load_frozen
from trialfleet.workflows.study.spec import Study
from trialfleet.workflows.tables.reading import read_rows

ROWS = 200


def frame(seed: int, rows: int = ROWS) -> pl.DataFrame:
    dealt = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "customer": [f"c{seed}-{i}" for i in range(rows)],
            "amount": dealt.normal(50, 10, rows).round(2),
            "plan": dealt.choice(["free", "pro", "team"], rows),
            "churned": dealt.choice(["no", "yes"], rows),
        }
    )


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for runs, with a CSV file for two regions. Nothing is submitted: /tmp will do."""
    (tmp_path / "data").mkdir()
    for seed, region in enumerate(("north", "south")):
        frame(seed).write_csv(tmp_path / f"data/{region}.csv")
    return tmp_path


def study(place: Path, **changes: Any) -> Study:
    values: dict[str, Any] = {
        "name": "churn",
        "regions": ["north", "south"],
        "data": "data/{region}.csv",
        "trainer": "tabular",
        "target": "churned",
        "objective": {"metric": "val_auc", "direction": "maximize"},
        "search_space": {"hidden": {"type": "int", "low": 8, "high": 64}},
        "budget": {"trials": 1},
        "accelerator": "cpu",
    }
    given = {key: value for key, value in {**values, **changes}.items() if value is not None}
    return Study.model_validate(given).resolve(place)


def planned(place: Path, **changes: Any) -> RunFolder:
    return write_plan(study(place, **changes), run="r1", out=place / "runs" / "r1")


def problems_of(place: Path, **changes: Any) -> list[str]:
    """Return a plan's errors as lines; it leaves nothing behind."""
    with pytest.raises(InputError) as caught:
        planned(place, **changes)
    assert [*place.glob("runs/*")] == []
    assert caught.value.exit_code == 2
    text = str(caught.value).replace(f"{place}/", "")
    return text.replace(f"{os.path.relpath(place)}/", "").splitlines()  # if that is shorter


def test_plan_names_classes_that_may_be_a_slip(place: Path) -> None:
    rows = frame(0)
    slip = pl.when(pl.int_range(ROWS) == 7).then(pl.lit("yess")).otherwise("churned")
    rows.with_columns(churned=slip).write_csv(place / "data/north.csv")
    changes = {"objective": {"metric": "val_loss", "direction": "minimize"}}
    text = plan_text(Run(planned(place, **changes).root))
    expected = (
        "classes of fewer than 3 rows: 'yess' (did you mean 'yes'?); correct the file if that is a"
    )
    assert f"{expected} mistake (in north)" in text


@pytest.mark.parametrize(
    ("classes", "said"),
    [
        (["yes", "no", "YES", "Yes"], "'YES', 'Yes' and 'yes'"),
        (["True", "False", "1", "0"], "'0' and 'False', '1' and 'True'"),
        (["a  b", "a b", "c"], "'a  b' and 'a b'"),
        (["e\u0301", "é"], "'e\u0301' and 'é'"),
        (["1", "0", "2", "y", "n"], ""),
        (["n", "y", "maybe"], ""),
    ],
)
def test_plan_names_classes_that_differ_only_in_spelling(
    place: Path, classes: list[str], said: str
) -> None:
    labels = [classes[i % len(classes)] for i in range(ROWS)]
    for region in ("north", "south"):
        frame(0).with_columns(churned=pl.Series(labels)).write_csv(place / f"data/{region}.csv")
    objective = {"metric": "val_loss", "direction": "minimize"}
    text = plan_text(Run(planned(place, objective=objective).root))
    lines = [line for line in text.splitlines() if "separate classes" in line]
    expected = (
        f"    separate classes that may be the same: {said}; write each in one way in the file"
    )
    assert lines == ([expected] if said else [])


@pytest.mark.parametrize("repeats", [1, 2])
def test_plan_counts_test_rows_that_are_also_training_rows(place: Path, repeats: int) -> None:
    for seed, region in enumerate(("north", "south")):
        rows = pl.concat([frame(seed)] * repeats)
        rows.write_csv(place / f"data/{region}.csv")
    text = plan_text(Run(planned(place).root))
    assert ("test rows that are also training rows: about 8" in text) == (repeats == 2)


def test_plan_names_a_column_that_determines_the_target(place: Path) -> None:
    for seed, region in enumerate(("north", "south")):
        copied = pl.col("churned").str.to_uppercase().alias("left")
        frame(seed).with_columns(copied).write_csv(place / f"data/{region}.csv")
    text = plan_text(Run(planned(place).root))
    assert (
        "    column 'left' determines the target in all 200 rows checked. If its value is known "
        "only after the target, leave it out: table: {columns: {left: ignore}}"
    ) in text.splitlines()


def test_plan_names_columns_and_classes_missing_in_the_training_rows(place: Path) -> None:
    parts = ["train"] * 140 + ["validation"] * 30 + ["test"] * 30
    for region in ("north", "south"):
        screened = [None] * 140 + [5.0] * 60 if region == "north" else [*range(100)] * 2
        rows = frame(0).with_columns(part=pl.Series(parts), screened=pl.Series(screened))
        is_new = (pl.int_range(ROWS) > 170) & (region == "north")
        churned = pl.when(is_new).then(pl.lit("left")).otherwise("churned")
        rows.with_columns(churned=churned).write_csv(place / f"data/{region}.csv")
    split = {"table": {"split": {"column": "part"}, "task": "classification"}}
    objective = {"metric": "val_loss", "direction": "minimize"}
    run = Run(planned(place, objective=objective, **split).root)
    text = plan_text(run)
    said = "column 'screened' is ignored: it has no values in the training rows (in north)"
    assert said in text
    assert (
        "classes without a training row: 'left' (29); the model can't learn them, see table.split "
        "(in north)"
    ) in text
    [north, south] = plan_summary(run)["regions"]
    assert "screened" in north["table"]["ignored"]
    assert south["table"]["numeric"] == ["amount", "screened"]


def test_plan_refuses_a_target_that_is_the_same_everywhere(place: Path) -> None:
    for region in ("north", "south"):
        frame(0).with_columns(churned=pl.lit("5.5")).write_csv(place / f"data/{region}.csv")
    objective = {"metric": "val_rmse", "direction": "minimize"}
    [error] = problems_of(place, objective=objective)
    said = "'churned' has only one value in the training rows: 5.5; see the file"
    assert said in error
    assert "data/north.csv" in error


def test_a_metric_that_needs_a_spread_is_refused_where_the_rows_have_none(place: Path) -> None:
    parts = ["train"] * 140 + ["validation"] * 30 + ["test"] * 30
    rows = frame(0).with_columns(part=pl.Series(parts), churned=pl.int_range(ROWS) % 40 * 0.5)
    still = pl.when(pl.col("part") == "test").then(7.5).otherwise("churned")
    for region in ("north", "south"):
        rows.with_columns(churned=still).write_csv(place / f"data/{region}.csv")
    objective = {"metric": "val_r2", "direction": "maximize"}
    given = {"table": {"split": {"column": "part"}}, "objective": objective}
    [error] = problems_of(place, report_metric="test_r2", **given)
    assert "report_metric: the test rows have only one value, but test_r2 needs more" in error


def test_plan_describes_the_table_of_each_region(place: Path) -> None:
    run = Run(planned(place).root)
    text = plan_text(run)
    assert "    north   200   140/30/30" in text
    assert "1 numeric, 1 categorical, 1 ignored" in text
    assert "classification, inferred from the target" in text
    assert "predicted is the probability of 'yes'" in text
    assert "column 'customer' is ignored: its text is different in every row: an id" in text
    assert "fewer than 50 rows for validation or test" in text
    [north, south] = plan_summary(run)["regions"]
    assert north["table"]["parts"] == {"train": 140, "validation": 30, "test": 30}
    assert north["table"]["numeric"] == ["amount"]
    assert north["table"]["categorical"] == {"plan": 3}
    assert sum(south["table"]["classes"].values()) == ROWS
    json.dumps(plan_summary(run))


@pytest.mark.slow
def test_plan_names_only_the_first_of_many_ignored_columns(place: Path) -> None:
    wide = {f"c{number}": pl.lit(1) for number in range(300)}
    frame(0).with_columns(**wide).write_csv(place / "data/north.csv")
    lines = plan_text(Run(planned(place).root)).splitlines()
    ignored = [line for line in lines if "is ignored: it is the same in every row" in line]
    assert len(ignored) < 25
    assert any("more columns, ignored; trialfleet plan --json has all" in line for line in lines)


@pytest.mark.slow
def test_notes_of_regions_that_differ_only_in_their_examples_are_merged(place: Path) -> None:
    for seed, region in enumerate(("north", "south", "east")):
        humidity = [f"{20 + (i * (seed + 3)) % (40 + seed)}%" for i in range(ROWS)]
        frame(seed).with_columns(humidity=pl.Series(humidity)).write_csv(
            place / f"data/{region}.csv"
        )
    frame(4).write_csv(place / "data/west.csv")
    note = "column 'humidity' is categorical, 40 different texts: it is text such as '20%'"
    text = plan_text(Run(planned(place, regions=["north", "south", "east"]).root))
    [line] = [line for line in text.splitlines() if "'humidity' is categorical" in line]
    assert note in line
    assert line.endswith("(in north; likewise in all others)")
    shutil.rmtree(place / "runs")
    text = plan_text(Run(planned(place, regions=["north", "south", "east", "west"]).root))
    [line] = [line for line in text.splitlines() if "'humidity' is categorical" in line]
    assert line.endswith("(in north; likewise in south, east)")


def test_plan_shows_the_boundaries_of_a_split_by_time(place: Path) -> None:
    for name, year in [("north", 2025), ("south", 2026)]:
        days = [f"{year}-{1 + i // 20:02}-01" for i in range(ROWS)]
        frame(1).with_columns(day=pl.Series(days)).write_csv(place / f"data/{name}.csv")
    text = plan_text(Run(planned(place, table={"split": {"time": "day"}}).root))
    assert "split by time: validation from 2025-08-01, test from 2025-09-01 (in north)" in text
    assert "split by time: validation from 2026-08-01, test from 2026-09-01 (in south)" in text
    shutil.rmtree(place / "runs")
    found = planned(place, table={"split": {"time": "day"}}, regions=["south"])
    text = plan_text(Run(found.root))
    assert (
        "    split by time: validation from 2026-08-01, test from 2026-09-01" in text.splitlines()
    )


def test_plan_names_null_values_that_occur_in_no_region(place: Path) -> None:
    rows = pl.read_csv(place / "data/north.csv", infer_schema=False)
    rows[5, "amount"] = "-9"
    rows.write_csv(place / "data/north.csv")
    text = plan_text(Run(planned(place, table={"null_values": [-9, "?", "NA"]}).root))
    assert "    table.null_values: no cell of any region is '?'" in text.splitlines()


def test_plan_counts_rows_without_a_target(place: Path) -> None:
    rows = (place / "data/north.csv").read_text().splitlines()
    blank = [",".join("" if name == "churned" else "1" for name in rows[0].split(","))]
    (place / "data/north.csv").write_text("\n".join([*rows, *blank * 3]) + "\n")
    text = plan_text(Run(planned(place).root))
    assert "    rows without a target are left out: 3 in north" in text


def test_every_trial_reads_the_rows_as_they_were_when_the_run_was_planned(place: Path) -> None:
    folder = planned(place)
    files = folder.region("north")
    before = files.table.read_bytes()
    (place / "data/north.csv").write_text("nothing of the kind")
    frozen = load_frozen(folder.study).study
    trial = files.trial("north.l1.t01")
    order = TrialOrder(region="north", node="north.l1.t01", trial=0, mode="tune", seed=1, params={})
    TrialFiles("r1", frozen, folder, trial, order).write()
    assert json.loads(trial.trial_json.read_text())["data"] == ["table.npz"]
    assert f"region_files = {files.table}\n" in trial.submit.read_text()
    assert files.table.read_bytes() == before
    [source] = source_of_table(files) or []
    assert (source["path"], source["bytes"]) == (str(place / "data/north.csv"), len(csv_of(0)))


def csv_of(seed: int) -> bytes:
    return frame(seed).write_csv().encode()


@pytest.mark.slow
def test_the_same_files_and_seed_give_the_same_bytes(place: Path) -> None:
    tables = [
        write_plan(study(place), run="r1", out=place / name).region("north").table.read_bytes()
        for name in ("a", "b")
    ]
    assert tables[0] == tables[1]
    other = write_plan(study(place, seed=7), run="r1", out=place / "c").region("north")
    assert other.table.read_bytes() != tables[0]


@pytest.mark.slow
def test_parquet_gives_the_same_table_as_csv_and_npz_files_are_used_unchanged(place: Path) -> None:
    for region in ("north", "south"):
        pl.read_csv(place / f"data/{region}.csv").write_parquet(place / f"data/{region}.parquet")
        make_table(place / f"data/{region}.npz")
    forms: list[tuple[str, dict[str, Any]]] = [
        ("csv", {}),
        ("parquet", {"data": "data/{region}.parquet"}),
        ("npz", {"data": "data/{region}.npz", "target": None}),
    ]
    csv, parquet, npz = (
        write_plan(study(place, **changes), run="r1", out=place / name).region("north")
        for name, changes in forms
    )
    assert csv.table.read_bytes() == parquet.table.read_bytes()
    assert not npz.table.exists()
    assert json.loads(npz.table_found.read_text())["table"]["parts"]["train"] == 200
    assert source_of_table(npz) is None


def test_problems_of_all_regions_are_reported_at_once_and_no_run_remains(place: Path) -> None:
    (place / "data/north.csv").write_text("churned,amount\n")
    lines = problems_of(place, target="churn")
    known = "the columns are 'customer', 'amount', 'plan', 'churned'"
    assert lines == [
        "data: data/north.csv: has a header and no rows",
        f"target: there is no column 'churn' (did you mean 'churned'?); {known} (data/south.csv)",
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"target": None},
            "no column to predict is named: write `target: COLUMN`; the columns are 'cus",
        ),
        ({"data": ["data/north.csv", "data/south.csv"]}, "one file per region, but `data` names 2"),
        ({"data": []}, "data: region 'north', region 'south': `trainer: tabular` reads one file"),
        ({"data": "data"}, "must be a .csv, .tsv, .csv.gz or .parquet file, or an .npz file"),
        ({"data": "folder.csv"}, "is not a file; `trainer: tabular` reads one file per region"),
        (
            {"data": "data/{region}.npz"},
            "data: data/north.npz, data/south.npz: is not a table that",
        ),
        (
            {"data": "real.npz", "target": "z"},
            "target: 'z' differs from the target in the .npz file, 'y'",
        ),
        (
            {"data": "real.npz", "target": None, "table": {}},
            "does not apply to .npz files, because",
        ),
        (
            {"objective": {"metric": "val_acc", "direction": "maximize"}},
            "objective.metric: there is no 'val_acc' (did you mean 'val_auc'?); the target 'chur",
        ),
        (
            {"objective": {"metric": "auc", "direction": "maximize"}},
            "the target 'churned' has 2 classes; use val_loss, val_auc, val_accuracy, test_loss",
        ),
        (
            {"report_metric": "test_rmse"},
            "test_rmse is for numbers; the target 'churned' has 2 classes; use test_auc, test_acc",
        ),
        (
            {"gate": {"metric": "test_acuracy"}},
            "gate.metric: there is no 'test_acuracy' (did you mean 'test_accuracy'?); the targ",
        ),
        (
            {"target": "amount"},
            "val_auc is for two classes; the target 'amount' has numbers; use val_rmse, val_mae,",
        ),
        (
            {"target": "amount", "objective": {"metric": "val_accuracy", "direction": "maximize"}},
            "val_accuracy is for classes; the target 'amount' has numbers; use val_rmse, ",
        ),
        (
            {"target": "amount", "objective": {"metric": "val_acc", "direction": "maximize"}},
            "objective.metric: there is no 'val_acc'; the target 'amount' has numbers; use val_",
        ),
        (
            {"target": "plan"},
            "val_auc is for two classes; the target 'plan' has 3 classes ('free' 66 times, 'pro'",
        ),
        (
            {"objective": {"metric": "val_auc", "direction": "minimize"}},
            "objective.direction: is minimize, but a large val_auc is good: write maximize",
        ),
        (
            {"target": "amount", "objective": {"metric": "val_mae", "direction": "maximize"}},
            "objective.direction: is maximize, but a small val_mae is good: write minimize",
        ),
        (
            {"objective": {"metric": "test_auc", "direction": "maximize"}},
            "objective.metric: the tuning must not use the test rows: write val_auc",
        ),
        (
            {"report_metric": "test_auc", "report_direction": "minimize"},
            "report_direction: is minimize, but a large test_auc is good: write maximize",
        ),
        (
            {"report_metric": "test_loss"},
            "report_metric: a small test_loss is good, but the direction is by default maximize: ",
        ),
        (
            {"gate": {"metric": "test_loss"}},
            "gate.metric: a small test_loss is good, but the direction is by default maximize: ",
        ),
        (
            {"search_space": {"droput": 0.1, "hidden": {"type": "int", "low": 8, "high": 16}}},
            "search_space.droput: the tabular trainer has no setting droput (did you mean dropout",
        ),
        (
            {"regions": {"north": None, "south": {"search_space": {"dropout": 2}}}},
            "regions.south.search_space.dropout: dropout is 2; it must be from 0.0 to 0.99",
        ),
        (
            {"search_space": {"hidden": {"type": "int", "low": 8, "high": 99999}}},
            "search_space.hidden: hidden is 99999; it must be from 1 to 65536",
        ),
        (
            {"search_space": {"momentum": {"type": "float", "low": 0.5, "high": 0.9}}},
            "search_space.momentum: has no effect without optimizer: sgd; leave it out",
        ),
        (
            {"search_space": {"layers": {"type": "int", "low": 1, "high": 2}, "outer_momentum": 0}},
            "search_space.outer_momentum: has no effect without local_steps above 1; leave it out",
        ),
        (
            {"search_space": {"optimizer": {"type": "categorical", "choices": ["adamw", "lion"]}}},
            "search_space.optimizer: optimizer is 'lion'; choose adamw or sgd",
        ),
        (
            {"table": {"split": {"column": "part"}}},
            "objective.metric: the validation rows have only one class, but val_auc needs both",
        ),
    ],
)
def test_plan_refuses_data_that_no_trial_could_use(
    place: Path, changes: dict[str, Any], words: str
) -> None:
    (place / "folder.csv").mkdir()
    make_table(place / "real.npz")
    for region in ("north", "south"):
        (place / f"data/{region}.npz").write_bytes(b"no zip")
    if "table" in changes and "split" in changes["table"]:
        rows = frame(0).with_columns(part=pl.lit("train"))
        one, other = rows.filter(churned="no"), rows.filter(churned="yes")
        parts = [rows, one.head(5).with_columns(part=pl.lit("val")), other.head(5)]
        parts[2] = parts[2].with_columns(part=pl.lit("test"))
        for region in ("north", "south"):
            pl.concat(parts).write_csv(place / f"data/{region}.csv")
    assert words in problems_of(place, **changes)[0]


def test_a_setting_of_the_study_that_only_some_regions_use_is_accepted(place: Path) -> None:
    space = {"optimizer": "sgd", "momentum": {"type": "float", "low": 0.5, "high": 0.9}}
    regions = {"north": None, "south": {"search_space": {"optimizer": "adamw"}}}
    assert planned(place, search_space=space, regions=regions).root.is_dir()
    only_south = study(place, search_space=space, regions={"south": regions["south"]})
    day = RunsDay(date=date(2026, 11, 22))  # north has no data
    assert write_plan(only_south, run="r2", out=place / "runs" / "r2", day=day).root.is_dir()


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["val_rmse", "val_loss"])
def test_a_typo_in_a_numeric_target_is_reported_with_its_row(place: Path, objective: str) -> None:
    dealt = np.random.default_rng(0)
    bikes = [str(number) for number in dealt.integers(0, 60, ROWS)]
    rows = frame(0).with_columns(churned=pl.Series([*bikes[:7], "?", *bikes[8:]]))
    for region in ("north", "south"):
        rows.write_csv(place / f"data/{region}.csv")
    metric = {"metric": objective, "direction": "minimize"}
    slip = (
        "99% of its cells are numbers, 1 is not: '?' in row 8 below the header. If it stands for a "
        "missing value, add it to table.null_values; else correct the file"
    )
    if objective == "val_loss":  # of classes, too: numbers may not have been meant
        text = plan_text(Run(planned(place, objective=metric).root))
        assert f"column 'churned' is taken as classes: {slip}" in text
        return
    found = problems_of(place, objective=metric, report_metric="test_mae")
    assert found == [
        f"target: column 'churned' is taken as classes: {slip} (data/north.csv, data/south.csv)"
    ]
    nulls = {"null_values": ["?"]}
    made = planned(place, objective=metric, table=nulls)
    assert plan_summary(Run(made.root))["regions"][0]["table"]["task"] == "regression"


def test_two_slips_in_a_target_are_counted(place: Path) -> None:
    amounts = pl.Series([str(1000 + i % 60) for i in range(ROWS - 2)] + ["x", "y"])
    for region in ("north", "south"):
        frame(0).with_columns(churned=amounts).write_csv(place / f"data/{region}.csv")
    metric = {"metric": "val_rmse", "direction": "minimize"}
    [found] = problems_of(place, objective=metric)
    assert "2 are not, the first is 'x' in row 199 below the header. If it stands for" in found


def test_plan_refuses_targets_that_imply_different_tasks(place: Path) -> None:
    for region, last in (("north", "1"), ("south", "1.5")):
        rows = frame(0).with_columns(churned=pl.Series(["0", "1"] * (ROWS // 2 - 1) + ["0", last]))
        rows.write_csv(place / f"data/{region}.csv")
    objective = {"metric": "val_loss", "direction": "minimize"}
    assert problems_of(place, objective=objective) == [
        "table.task: classification in north; regression in south; say which with table: {task: …}"
    ]


def test_a_column_with_another_type_in_some_regions_is_reported(place: Path) -> None:
    rows = pl.read_csv(place / "data/south.csv", infer_schema=False)
    rows[5, "amount"] = "much"
    rows.write_csv(place / "data/south.csv")
    text = plan_text(Run(planned(place).root))
    assert "column 'amount' is numeric in some regions and categorical in others" in text
    assert "'much' is not a number. If it stands for a missing value" in text
    assert "(in south)" in text


def test_a_column_that_some_regions_lack_is_reported(place: Path) -> None:
    path = place / "data/north.csv"
    pl.read_csv(path).with_columns(age=pl.int_range(ROWS) % 7).write_csv(path)
    text = plan_text(Run(planned(place).root))
    assert "    column 'age' is in 1 of 2 regions, not in south" in text
    assert "column 'amount' is in" not in text
    assert "column 'customer' is in" not in text  # ignored, but there


@pytest.mark.parametrize("gated", [True, False])
def test_a_missing_column_that_the_current_model_needs_is_reported(
    place: Path, gated: bool
) -> None:
    model = place / "models/churn/north/r0"
    model.mkdir(parents=True)
    columns = {"numeric": ["amount", "age"], "categorical": {"plan": ["pro"]}}
    (model / "model.json").write_text(json.dumps({"columns": columns}))
    (model / "provenance.json").write_text(json.dumps({"study": "churn", "run": "r0"}))
    (model.parent / "latest").symlink_to("r0")
    gate = {"metric": "test_auc", "direction": "maximize"} if gated else None
    text = plan_text(Run(planned(place, gate=gate).root))
    line = "the gate will keep the current model of north, because it needs column 'age', which "
    assert (f"    {line}today's rows lack" in text) is gated
    assert "needs column 'amount'" not in text


def test_plan_agrees_with_the_gate_on_columns_that_the_current_model_needs(place: Path) -> None:
    path = place / "data/north.csv"
    pl.read_csv(path).with_columns(
        constant=pl.lit(1), same=pl.lit("x"), blank=pl.lit(None), area=pl.int_range(ROWS) % 7
    ).write_csv(path)
    model = place / "models/churn/north/r0"
    model.mkdir(parents=True)
    needed = Columns(
        numeric=["amount", "constant", "blank", "area", "height"],
        categorical={"plan": ["pro"], "same": ["x"]},
        target="churned",
        task="classification",
        classes=["no", "yes"],
    )
    (model / "model.json").write_text(json.dumps({"columns": asdict(needed)}))
    (model / "provenance.json").write_text(json.dumps({"study": "churn", "run": "r0"}))
    (model.parent / "latest").symlink_to("r0")
    gate = {"metric": "test_auc", "direction": "maximize"}
    files = planned(place, regions=["north"], gate=gate, table={"columns": {"area": "ignore"}})
    lines = plan_text(Run(files.root)).splitlines()
    said = [re.findall("needs column '(.*?)'", line)[0] for line in lines if "gate will" in line]
    assert said == ["area", "height"]
    columns = read_table(files.region("north").table).columns
    with pytest.raises(ValueError, match="there is no column area, height"):
        check_columns(columns, needed)


def test_many_problems_are_cut(place: Path) -> None:
    for i in range(30):
        (place / f"data/r{i:02}.csv").write_text(f"column{i}\n1\n")
    lines = problems_of(place, regions={"glob": "data/r*.csv"}, data=[])
    assert len(lines) == 21
    assert lines[-1] == "data: … and 10 more problems"


def test_a_problem_of_many_regions_is_reported_once(place: Path) -> None:
    for i in range(30):
        (place / f"data/r{i:02}.csv").write_text("")
    [line] = problems_of(place, regions={"glob": "data/r*.csv"}, data=[])
    assert line == "data: data/r00.csv, data/r01.csv, data/r02.csv and 27 more: is empty"


def test_a_file_that_changes_while_it_is_read_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_and_touch(path: Path, form: str) -> pl.DataFrame:
        rows = read_rows(path, form)
        with path.open("a") as file:
            file.write("c,1,free,no\n")
        return rows

    monkeypatch.setattr(planning, "read_rows", read_and_touch)
    assert problems_of(place)[0] == (
        "data: data/north.csv, data/south.csv: changed while it was read; plan again when the "
        "file is complete"
    )


def test_ctrl_c_ends_the_reading_and_leaves_nothing(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pressed: list[int] = []

    def pressing(path: Path, form: str) -> pl.DataFrame:
        os.kill(os.getpid(), signal.SIGINT)
        return read_rows(path, form)

    monkeypatch.setattr(planning, "read_rows", pressing)
    previous = signal.signal(signal.SIGINT, lambda number, _frame: pressed.append(number))
    try:
        with pytest.raises(KeyboardInterrupt), ctrl_c.delay_ctrl_c():
            planned(place)
        ctrl_c.stop_if_pressed()  # it has been answered
    finally:
        signal.signal(signal.SIGINT, previous)
    assert pressed
    assert [*(place / "runs").iterdir()] == []


def test_a_run_folder_that_files_cannot_be_sent_from_is_refused(place: Path) -> None:
    with pytest.raises(InputError, match=r"remove commas.*choose another folder with --out"):
        write_plan(study(place), run="r1", out=place / "a,b")


def test_the_frozen_study_has_the_defaults_of_missing_table_options(place: Path) -> None:
    options = {"split": {"time": "amount"}, "columns": {"customer": "ignore"}}
    folder = planned(place, table=options)
    frozen = load_frozen(folder.study).study
    assert frozen == study(place, table=options)
    made = read_table(folder.region("north").table)
    assert made.columns.null_values == (frozen.table and frozen.table.null_values)
    assert np.isin(made.split, [0, 1, 2]).all()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("target: y", "target: requires `trainer: tabular`; leave it out, because your trainer"),
        ("table: {task: auto}", "table: requires `trainer: tabular`"),
    ],
)
def test_target_and_table_require_the_tabular_trainer(
    tmp_path: Path, text: str, words: str
) -> None:
    (tmp_path / "go.sh").touch()
    assert words in error_of(tmp_path, with_line(TRAINER_LINE, f"{TRAINER_LINE}\n{text}"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{task: clasification}", "table.task: must be 'auto', 'classification' or"),
        ("{columns: {a: number}}", "table.columns.a: must be 'numeric', 'categorical', "),
        ("{columns: {a: '%d.%m.'}}", "or a strftime format of its dates, such as "),
        ("{colums: {}}", "unknown key 'colums' (did you mean 'columns'?); valid keys: task, col"),
        ("{split: {}}", "must have exactly one of random, time and column; it has none of them"),
        ("{split: {time: a, column: b}}", "one of random, time and column; it has time and column"),
        ("{split: {random: [0.8, 0.2]}}", "must be three shares above 0 that add up to 1"),
        ("{split: {random: [0.8, 0.1, 0.2]}}", "must be three shares above 0 that add up to 1"),
        ("{split: {random: [1.0, 0.0, 0.0]}}", "must be three shares above 0 that add up to 1"),
        ("{split: {column: p, shares: [0.6, 0.2, 0.2]}}", "table.split.shares: requires time"),
        ("{split: {tiem: a}}", "unknown key 'tiem' (did you mean 'time'?)"),
    ],
)
def test_an_error_in_the_table_section_names_its_line(
    tmp_path: Path, text: str, words: str
) -> None:
    found = error_of(tmp_path, with_line(TRAINER_LINE, f"trainer: tabular\ntable: {text}"))
    assert "study.yaml:8: table" in found
    assert words in found


def test_progress_of_a_long_reading_is_shown_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    tell = table_progress()
    for done in range(1, 6):
        now[0] += 0.9
        tell(done, 5)
    assert capsys.readouterr().err == "tables read: 3 of 5\n"


def test_plan_with_a_wrong_target_exits_with_2_and_no_traceback(place: Path) -> None:
    text = (
        "name: churn\nregions: [north, south]\ndata: 'data/{region}.csv'\ntrainer: tabular\n"
        "target: Churned\nobjective: {metric: val_auc, direction: maximize}\n"
        "search_space: {hidden: {type: int, low: 8, high: 64}}\naccelerator: cpu\n"
    )
    (place / "study.yaml").write_text(text)
    command = ["plan", str(place / "study.yaml"), "--out", str(place / "runs/r1")]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 2
    assert (
        result.stderr.count("study.yaml:5: target: there is no column 'Churned' (did you me") == 1
    )
    (place / "study.yaml").write_text(text.replace("Churned", "churned"))
    result = CliRunner().invoke(main, [*command, "--json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["regions"][0]["table"]["target"] == "churned"


def test_settings_are_compared_by_a_test_metric_unless_the_study_names_another(place: Path) -> None:
    assert study(place).compared_metric == "test_auc"
    assert study(place, report_metric="val_auc").compared_metric == "val_auc"
    objective = {"metric": "test_auc", "direction": "maximize"}
    assert study(place, objective=objective).compared_metric == "test_auc"
    assert study(place, trainer={"command": ["python3"]}, target=None).compared_metric == "val_auc"
