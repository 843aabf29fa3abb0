"""The gate in a study file, in a plan and on its documentation page."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeRun
from trialfleet import InputError, Study
from trialfleet.nodes import trial
from trialfleet.workflows.cli.printing.plan_summary import plan_text
from trialfleet.workflows.cli.printing.plan_warnings import shares_rows_with_champion
from trialfleet.workflows.control.scripts.gate_job import read_measurements
from trialfleet.workflows.facts.models.verdict import CHALLENGER, CHAMPION
from trialfleet.workflows.facts.run_folder.folder import RunFolder, TrialFolder
from trialfleet.workflows.rules.gate_decision import gate_rule

pytestmark = pytest.mark.slow


def study(gate: Any, **changes: Any) -> Study:
    return Study.model_validate(
        {
            "name": "demo",
            "regions": ["A"],
            "data": "A.npz",
            "objective": {"metric": "val_auc", "direction": "maximize"},
            "search_space": {"epochs": {"type": "int", "low": 1, "high": 3}},
            "trainer": "tabular",
            "gate": gate,
            **changes,
        }
    )


def test_the_gate_rule_takes_metric_and_direction_from_the_study() -> None:
    plain = gate_rule(study({}, seed=7))
    assert (plain.metric, plain.direction, plain.seed) == ("test_auc", "maximize", 7)
    own = gate_rule(study({"metric": "test_loss", "direction": "minimize", "tolerance": 0.01}))
    assert (own.metric, own.direction, own.tolerance) == ("test_loss", "minimize", 0.01)
    reported = gate_rule(study({}, report_metric="test_loss", report_direction="minimize"))
    assert (reported.metric, reported.direction) == ("test_loss", "minimize")


@pytest.mark.parametrize(
    ("gate", "more", "words"),
    [
        ({"direction": "minimize"}, {}, "requires gate.metric"),
        ({}, {"publish": "none"}, "`publish` is `none`"),
        ({"tolerance": -1}, {}, "greater than or equal to 0"),
        ({"confidence": 1.0}, {}, "less than 1"),
        ({"margin": 1}, {}, "valid keys: metric, direction, tolerance"),
    ],
)
def test_an_impossible_gate_is_refused(gate: Any, more: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        study(gate, **more)


def test_files_named_like_the_gates_are_refused_only_with_a_gate(
    make_run: MakeRun, work: Path
) -> None:
    (work / "losses").write_text("")
    trainer = {"command": ["sh", "losses"], "files": ["losses"]}
    make_run(trainer=trainer)
    with pytest.raises(InputError, match="'losses' is a name that trialfleet itself uses"):
        make_run(run="r2", trainer=trainer, gate={})


def test_a_study_without_a_gate_has_no_dag_node_for_it(make_run: MakeRun) -> None:
    plain = make_run(run="plain")
    files = RunFolder(plain.folder).region("A")
    assert ".gate" not in files.dag.read_text()
    assert not files.gate.root.exists()
    gated = RunFolder(make_run(run="gated", gate={}).folder).region("A")
    assert "PARENT A.gate CHILD A.publish" in gated.dag.read_text()
    assert "PARENT A.best CHILD A.gate" in gated.dag.read_text()


def test_the_plan_names_the_gates_metric_and_a_mode_that_the_trainer_lacks(
    make_run: MakeRun, work: Path
) -> None:
    text = plan_text(make_run(gate={"tolerance": 0.01}))
    gate = "compares each new model with the current one by loss, at most 0.01 worse"
    assert f"gate     {gate}" in text
    assert "evaluate" not in text
    (work / "go.sh").write_text("echo 1 > model/x")
    trainer = {"command": ["sh", "go.sh"], "files": ["go.sh"]}
    assert "mentions mode evaluate" in plan_text(make_run(run="r2", trainer=trainer, gate={}))
    assert "evaluate" not in plan_text(make_run(run="r3", trainer=trainer))


@pytest.mark.parametrize(
    ("table", "data", "is_noted"),
    [
        ({}, "t.csv", True),
        ({"split": {"random": [0.6, 0.2, 0.2]}}, "t.csv", True),
        ({"split": {"time": "day"}}, "t.csv", False),
        ({"split": {"column": "part"}}, "t.csv", False),
        ({}, "t.npz", False),
    ],
)
def test_the_plan_notes_that_a_random_split_favours_the_champion(
    table: Any, data: str, is_noted: bool
) -> None:
    more: dict[str, Any] = {"regions": {"A": {"data": [data]}}}
    more |= {"target": "y"} if data.endswith("csv") else {}
    more |= {"table": table} if table else {}
    assert shares_rows_with_champion(study({}, **more)) is is_noted
    assert not shares_rows_with_champion(study(None, **more))


def test_the_trainer_of_the_gate_page_measures_both_models(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "gate.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    blocks = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    (order,) = (block for block in blocks if '"mode"' in block)
    (tmp_path / "trial.json").write_text(order)
    (tmp_path / "north.csv").write_text("1\n2\n")
    for name, value in (("champion", 1.5), ("challenger", 1.0)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "weights").write_text(str(value))
    (tmp_path / "train.py").write_text(program)
    shutil.copy(Path(trial.__file__), tmp_path)
    subprocess.run([sys.executable, "train.py"], cwd=tmp_path, check=True)
    found = read_measurements(TrialFolder(tmp_path))
    assert found[CHAMPION].metrics == {"loss": 0.25}
    losses = found[CHALLENGER].losses
    assert losses is not None
    assert losses.tolist() == [0.0, 1.0]
