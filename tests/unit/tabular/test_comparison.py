"""Mode `evaluate` of the reference trainer, and the gate's verdict on its results."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.tabular.small_trials import (
    ROWS,
    make_sandbox,
    make_table,
    read_result,
    run_here,
    start,
    write_order,
)
from trialfleet.nodes.tabular import model_measurement, table
from trialfleet.workflows.control.scripts.gate_job import read_measurements
from trialfleet.workflows.facts.models.verdict import Verdict
from trialfleet.workflows.facts.run_folder.folder import TrialFolder
from trialfleet.workflows.rules.gate_decision import Rule, decide

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
DAYS = 20


Train = Callable[..., Path]


@pytest.fixture
def sandbox(tmp_path: Path) -> Path:
    return make_sandbox(tmp_path / "sandbox")


@pytest.fixture
def train(sandbox: Path, monkeypatch: pytest.MonkeyPatch) -> Train:
    """Train in full on the sandbox's table and move the model to a name in the sandbox."""

    def trained(name: str, seed: int = 11, epochs: int = 8) -> Path:
        objective = {"metric": "val_loss", "direction": "minimize"}
        params = {"epochs": epochs}
        write_order(sandbox, mode="final", params=params, objective=objective, seed=seed)
        shutil.rmtree(sandbox / "model", ignore_errors=True)
        assert run_here(sandbox, monkeypatch) == 0
        shutil.rmtree(sandbox / name, ignore_errors=True)
        return (sandbox / "model").rename(sandbox / name)

    return trained


def compare(sandbox: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    models = {"champion": "champion", "challenger": "challenger"}
    write_order(sandbox, mode="evaluate", models=models)
    return run_here(sandbox, monkeypatch)


def verdict(sandbox: Path, metric: str = "test_auc", direction: Any = "maximize") -> Verdict:
    rule = Rule(
        metric=metric, direction=direction, tolerance=0.0, confidence=0.95, baseline=True, seed=0
    )
    return decide(rule, read_measurements(TrialFolder(sandbox)), champion="r1", challenger="r2")


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_a_model_is_measured_as_its_training_measured_it(
    sandbox: Path, train: Train, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    make_table(sandbox / "r.npz", task)
    train("challenger")
    trained = read_result(sandbox)["metrics"]
    shutil.copytree(sandbox / "challenger", sandbox / "champion")
    assert compare(sandbox, monkeypatch) == 0
    found = read_measurements(TrialFolder(sandbox))
    for name in ("champion", "challenger"):
        assert found[name].metrics == pytest.approx(trained, rel=1e-5)
        losses = found[name].losses
        assert losses is not None
        assert len(losses) == ROWS // 3
        assert losses.mean() == pytest.approx(trained["test_loss"], rel=1e-5)
    constant = found["baseline"].metrics
    assert constant["test_loss"] > 1.2 * trained["test_loss"]
    if task == "regression":
        assert constant["test_r2"] == pytest.approx(0, abs=0.05)
    if task == "binary":
        assert constant["test_auc"] == 0.5


def test_the_evaluation_runs_in_a_sandbox_with_only_the_files_sent(
    sandbox: Path, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    train("champion")
    shutil.copytree(sandbox / "champion", sandbox / "challenger")
    assert compare(sandbox, monkeypatch) == 0
    here = (sandbox / "losses/champion.txt").read_text()
    (sandbox / "result.json").write_text("")
    process = start(sandbox)
    output = process.communicate()[1]
    assert process.returncode == 0, output
    assert (sandbox / "losses/champion.txt").read_text() == here


def rewritten(sandbox: Path, seed: int = 1, **changes: Any) -> None:
    """Today's table: other rows, in which columns may be others."""
    random = np.random.default_rng(seed)
    number, kind = random.normal(5, 3, ROWS), random.choice(["a", "b", "c"], ROWS)
    score = (number - 5) / 3 + 2 * (kind == "b") + 0.3 * random.normal(size=ROWS)
    columns: dict[str, Any] = {
        "kind": kind,
        "new": random.normal(size=ROWS),
        "y": score > 0.5,
        "number": number,
        "constant": np.ones(ROWS),
    }
    given = {name: values for name, values in (columns | changes).items() if values is not None}
    words = [name for name, values in given.items() if values.dtype.kind == "U"]
    table.write_table(
        sandbox / "r.npz",
        given,
        target="y",
        task="classification",
        split=np.arange(ROWS) % 3,
        categorical=[name for name in words if name != "y"],
    )


def test_a_champion_of_other_columns_and_categories_reads_its_own(
    sandbox: Path, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    train("champion")
    kind = np.random.default_rng(1).choice(["zz", "c", "b", "a"], ROWS)
    rewritten(sandbox, kind=kind, y=np.array(kind == "b") | (np.arange(ROWS) % 7 == 0))
    train("challenger")
    assert compare(sandbox, monkeypatch) == 0
    models = read_result(sandbox)["models"]
    new = (kind[np.arange(ROWS) % 3 != table.TRAIN] == "zz").sum()
    assert models["champion"]["note"] == (
        f"{new} of 400 validation and test rows hold values that the champion never saw: 'kind' "
        f"in {new} of them, such as 'zz'"
    )
    seen = {"champion_seen", "challenger_seen"}
    assert {*models} == {"champion", "challenger", "baseline", *seen}
    found = read_measurements(TrialFolder(sandbox))
    rows = (kind[np.arange(ROWS) % 3 == 2] != "zz").sum()
    assert {len(np.asarray(found[name].losses)) for name in seen} == {rows}


def test_a_champion_that_knows_nothing_of_todays_spelling_is_kept(
    sandbox: Path, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    train("champion")
    kind = np.random.default_rng(1).choice(["A", "B", "C"], ROWS)
    noise = np.random.default_rng(2).normal(size=ROWS)
    rewritten(sandbox, kind=kind, y=(kind == "B") | (noise > 1), number=noise)
    train("challenger")
    assert compare(sandbox, monkeypatch) == 0
    found = verdict(sandbox)
    assert not found.promoted
    assert "no fair comparison; 400 of 400 validation and test rows" in found.why
    assert found.champion
    assert found.baseline
    assert "NaN" not in (sandbox / "result.json").read_text()


def test_whole_numbers_are_known_however_they_are_spelt(
    sandbox: Path, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = np.random.default_rng(1).choice(["1", "2", "3"], ROWS)
    rewritten(sandbox, kind=kind, y=kind == "2")
    train("champion")
    model = sandbox / "champion/model.json"  # as earlier releases wrote it
    model.write_text(re.sub(r'"([123])"', r'"\1.0"', model.read_text()))
    rewritten(sandbox, kind=kind, y=kind == "2")
    train("challenger")
    assert compare(sandbox, monkeypatch) == 0
    found = read_result(sandbox)["models"]
    assert set(found) == {"champion", "challenger", "baseline"}
    assert found["champion"]["metrics"] == pytest.approx(found["challenger"]["metrics"], rel=1e-5)


@pytest.mark.parametrize("column", ["number", "kind"])
@pytest.mark.parametrize("is_empty", [False, True])
def test_a_champion_reads_what_todays_model_does_without(
    sandbox: Path, train: Train, monkeypatch: pytest.MonkeyPatch, column: str, is_empty: bool
) -> None:
    train("champion")
    previous = table.read_table(sandbox / "r.npz")
    columns = dataclasses.replace(previous.columns, unused=[column])
    today = dataclasses.replace(previous, columns=columns)
    if is_empty:  # in every row of the file
        today = today.used()
        today = dataclasses.replace(
            today, columns=dataclasses.replace(today.columns, empty=[column])
        )
    table.save_table(sandbox / "r.npz", today)
    train("challenger")
    assert column not in json.loads((sandbox / "challenger/model.json").read_text())["columns"]
    assert compare(sandbox, monkeypatch) == 0
    champion, challenger = (
        read_result(sandbox)["models"][name]["metrics"]["test_auc"]
        for name in ("champion", "challenger")
    )
    assert (champion > 0.9) is not is_empty
    assert challenger < 0.9


def test_a_champion_is_accurate_on_new_rows_with_reordered_columns(
    sandbox: Path, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    train("champion")
    rewritten(sandbox)
    train("challenger")
    assert compare(sandbox, monkeypatch) == 0
    found = read_result(sandbox)["models"]
    assert found["champion"]["metrics"]["test_auc"] > 0.95
    assert found["challenger"]["metrics"]["test_auc"] > 0.95


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"number": None}, "there is no column number; the model needs number, constant, kind"),
        ({"kind": np.ones(ROWS)}, "the column 'kind' holds numbers; the model takes categories"),
        (
            {"y": np.arange(ROWS) % 4},
            "the target is 'y' (multiclass), but the model predicts 'y' (binary)",
        ),
        (
            {"y": np.where(np.arange(ROWS) % 2 == 0, "yes", "no")},
            "the model doesn't know the class 'no', 'yes' of 'y'; it knows 'false', 'true'",
        ),
    ],
)
def test_a_champion_that_can_not_read_todays_data_is_named_with_the_reason(
    sandbox: Path,
    train: Train,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    words: str,
) -> None:
    train("champion")
    rewritten(sandbox, **changes)
    train("challenger")
    assert compare(sandbox, monkeypatch) == 64
    error = read_result(sandbox)["error"]
    assert error == f"the champion can't be measured on today's data: {words}"


def test_a_model_of_another_trainer_is_refused(
    sandbox: Path, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    train("challenger")
    (sandbox / "champion").mkdir()
    (sandbox / "champion" / "weights").write_text("0.5")
    assert compare(sandbox, monkeypatch) == 64
    assert "not a model of `trainer: tabular`" in read_result(sandbox)["error"]


def poison(path: Path, seed: int, *, everywhere: bool) -> None:
    """Shuffle a table's labels: all of them, as a wrong join does, or those to train on."""
    previous = table.read_table(path)
    target = previous.target.copy()
    rows = np.flatnonzero(everywhere | (previous.split != table.TEST))
    target[rows] = np.random.default_rng(seed).permutation(target[rows])
    table.save_table(
        path,
        table.Table(
            columns=previous.columns,
            numeric=previous.numeric,
            categorical=previous.categorical,
            target=target,
            split=previous.split,
        ),
    )


def test_a_model_of_shuffled_labels_is_never_promoted(
    sandbox: Path, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    train("champion")
    promoted = []
    for day in range(DAYS):
        rewritten(sandbox, seed=day)
        poison(sandbox / "r.npz", day, everywhere=day % 2 == 0)
        train("challenger", seed=day)
        assert compare(sandbox, monkeypatch) == 0
        found = [verdict(sandbox), verdict(sandbox, "test_loss", "minimize")]
        promoted += [(day, each.why) for each in found if each.promoted]
    assert not promoted


def test_a_model_of_a_good_day_is_promoted(
    sandbox: Path, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    train("champion", epochs=2)
    for day in range(3):
        rewritten(sandbox, seed=day)
        train("challenger", seed=day)
        assert compare(sandbox, monkeypatch) == 0
        found = verdict(sandbox)
        assert found.promoted, found.why


def test_the_result_of_an_evaluation_is_json_without_metrics_of_a_trial(
    sandbox: Path, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    train("champion")
    shutil.copytree(sandbox / "champion", sandbox / "challenger")
    assert compare(sandbox, monkeypatch) == 0
    result = json.loads((sandbox / "result.json").read_text())
    assert (result["schema"], result["status"], result["device"]) == (1, "complete", "cpu")
    assert "metrics" not in result


@pytest.mark.parametrize(
    ("now", "then", "agree"),
    [
        ({}, {"n": "decimal_comma"}, True),
        ({"n": "date"}, {"n": "%d.%m.%Y"}, True),
        ({"n": "date"}, {}, False),
        ({"n": "time"}, {"n": "date"}, False),
    ],
)
def test_a_column_may_be_written_in_another_way_than_the_model_knows(
    now: dict[str, str], then: dict[str, str], agree: bool
) -> None:
    today, previous = (
        table.Columns(
            numeric=["n"], categorical={}, target="y", task="regression", classes=[], kinds=each
        )
        for each in (now, then)
    )
    if agree:
        model_measurement.check_columns(today, previous)
    else:
        with pytest.raises(ValueError, match="column 'n' is read as"):
            model_measurement.check_columns(today, previous)
