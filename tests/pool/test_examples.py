"""The examples as a user runs them: init, run, and the cells of the notebook."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.examples import LACKING, TRAINERS

TRIALFLEET = Path(sys.executable).with_name("trialfleet")


def call(work: Path, *words: str) -> str:
    done = subprocess.run([TRIALFLEET, *words], cwd=work, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.usefixtures("pool")
@pytest.mark.thorough  # without a pool: tests/unit/plan/test_examples.py
@pytest.mark.parametrize("name", TRAINERS)
def test_each_trainer_runs_unchanged(name: str, work: Path) -> None:
    if name in LACKING:
        pytest.skip(LACKING[name])
    call(work, "init", "mine", "--example", name)
    study = work / "mine/study.yaml"
    text = study.read_text()
    assert "trials: 12, lanes: 2, startup_trials: 5" in text
    few = text.replace("trials: 12, lanes: 2, startup_trials: 5", "trials: 3, lanes: 2")
    study.write_text(few)
    output = call(work, "run", "mine/study.yaml")
    assert "report  " in output
    (listed,) = json.loads(call(work, "runs", "--json"))
    assert (listed["state"], listed["published"], listed["regions"]) == ("done", 2, 2)
    assert listed["seconds"] > 0
    trials = json.loads(call(work, "trials", "--json"))
    assert [t["state"] for t in trials] == ["complete"] * 6
    best = json.loads(call(work, "best", name, "--json"))
    for region in best:
        assert region["final"].keys() == {"val_error", "test_error"}
        assert len(list(Path(region["published"]).iterdir())) > 2  # more than our two files


@pytest.mark.thorough  # the main path without a pool: tests/unit/plan/test_examples.py
@pytest.mark.usefixtures("pool")
@pytest.mark.parametrize("name", ["first", *TRAINERS])
def test_a_gate_works_with_each_trainer_unchanged(name: str, work: Path) -> None:
    if name in LACKING:
        pytest.skip(LACKING[name])
    call(work, "init", "mine", "--example", name)
    study = work / "mine/study.yaml"
    text = study.read_text().replace("# gate: {}", "gate: {}")
    assert "\ngate: {}" in text
    text = text.replace("trials: 12, lanes: 2, startup_trials: 5", "trials: 1, lanes: 1")
    study.write_text(text.replace("regions: [north, south]", "regions: [north]"))
    call(work, "run", "mine/study.yaml", "--run-id", "first")
    call(work, "run", "mine/study.yaml", "--run-id", "second")
    verdict = json.loads((work / f"runs/{name}/second/regions/north/gate.json").read_text())
    assert verdict["verdict"] == "promoted", verdict  # the same points give the same model
    assert verdict["metric"] == "test_error"
    for model in ("champion", "challenger", "baseline"):
        assert verdict[model]["metrics"].keys() == {"val_error", "test_error"}
    assert verdict["champion"]["run"] == "first"
    assert verdict["interval"] == [0, 0]
    error, constant = (verdict[m]["metrics"]["test_error"] for m in ("challenger", "baseline"))
    assert error < constant


@pytest.mark.thorough
@pytest.mark.usefixtures("pool")
def test_the_notebooks_cells_run_one_after_the_other(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    call(work, "init", "notebook", "--example", "notebook")
    monkeypatch.chdir(work / "notebook")
    notebook = json.loads(Path("first.ipynb").read_text())
    names: dict[str, Any] = {}
    shown = [
        run_cell("".join(cell["source"]), names)
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    ]
    assert "done" in shown[-1] or shown[-1].endswith("report.html')")
    assert any("<pre" in text and "planned" in text for text in shown)
    assert any("<pre" in text and "8/8" in text for text in shown)
    assert names["run"].status().state == "done"
    assert "running" in capsys.readouterr().out
    assert [cell for cell in notebook["cells"] if cell.get("outputs")] == []


def run_cell(source: str, names: dict[str, Any]) -> str:
    """Run a cell as Jupyter does and return what it would show: its last line's value."""
    tree = ast.parse(source)
    last = tree.body.pop()
    assert isinstance(last, ast.Expr), "each cell ends with what it shows"
    exec(compile(tree, "cell", "exec"), names)  # noqa: S102 - the project's own notebook
    value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)  # noqa: S307
    return str(value._repr_html_()) if hasattr(value, "_repr_html_") else repr(value)
