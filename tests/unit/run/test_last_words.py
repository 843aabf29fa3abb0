"""Excerpts of a failed trainer's standard error, from real programs."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import MakeRun
from tests.unit.terminal import printed
from trialfleet.optimizer.region_types import Failed
from trialfleet.workflows.control.run.trainer_check import failure_text, last_words
from trialfleet.workflows.control.scripts.region_studies import RegionStudies
from trialfleet.workflows.facts.run_folder.dag_structure import build_graph
from trialfleet.workflows.facts.run_folder.folder import RunFolder, TrialFolder
from trialfleet.workflows.rules.states import Stage
from trialfleet.workflows.status.missing_modules import (
    installation_advice,
    missing_modules,
    top_level_imports,
)
from trialfleet.workflows.study.frozen import load_frozen
from trialfleet.workflows.views.terminal.status_view import run_view
from trialfleet.workflows.views.why.node_rules import explain_node
from trialfleet.workflows.views.why.region_rules import explain_region
from trialfleet.workflows.views.why.run_sources import RunFactsReader


def failed(folder: Path, program: str) -> Path:
    """Run a program that fails; return the file of its standard error."""
    (folder / "train.py").write_text(program)
    error = TrialFolder(folder).err
    with error.open("w") as file:
        command = [sys.executable, str(folder / "train.py")]
        assert subprocess.run(command, stderr=file, check=False).returncode == 1
    return error


def test_the_trainers_own_frame_is_shown_before_the_frames_of_a_library(tmp_path: Path) -> None:
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    calls = "\n".join(f"def f{n}():\n    f{n + 1}()" for n in range(9))
    (packages / "deep.py").write_text(f"{calls}\ndef f9():\n    raise KeyError('prize')\n")
    program = f"import sys\nsys.path.insert(0, {str(packages)!r})\nimport deep\ndeep.f0()\n"
    shown = last_words(failed(tmp_path, program)).splitlines()
    assert f'{tmp_path / "train.py"}", line 4' in shown[0]
    assert shown[1].strip() == "deep.f0()"
    assert shown[-1].strip() == "KeyError: 'prize'"
    assert len(shown) == 12


def test_short_output_is_shown_completely(tmp_path: Path) -> None:
    shown = last_words(failed(tmp_path, "1 / 0\n"))
    assert shown.startswith("  Traceback")
    assert shown.count("train.py") == 1
    assert last_words(tmp_path / "none") == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "python", "words"),
    [
        (["python3", "train.py"], "/opt/py/bin/python", ["/opt/py/bin/python -m pip", "`python:`"]),
        (["python3", "train.py"], None, ["python3 -m pip install nowhere ", "`python:`"]),
        (["/opt/x/python", "train.py"], None, ["/opt/x/python -m pip install nowhere "]),
    ],
)
def test_a_missing_module_is_shown_with_its_remedy(
    make_run: MakeRun, work: Path, command: list[str], python: str | None, words: list[str]
) -> None:
    error = failed(work, "import nowhere.inside\n")
    run = make_run(trainer={"command": command, "files": ["train.py"]})
    study = run.study.model_copy(update={"python": python})
    explanation = installation_advice(last_words(error), study)
    assert all(each in explanation for each in words)
    assert ("`python:`" in explanation) is ("`python:`" in words)
    assert explanation in failure_text(study, "A", "exit code 1", TrialFolder(work))
    assert installation_advice(last_words(failed(work, "raise ValueError\n")), study) == ""


def test_the_package_of_a_well_known_module_is_named(make_run: MakeRun, work: Path) -> None:
    command = ["/opt/x/python", "train.py"]
    own = "raise ModuleNotFoundError(\"No module named 'sklearn.linear_model'\")\n"
    error = failed(work, own)
    study = make_run(trainer={"command": command, "files": ["train.py"]}).study
    explanation = installation_advice(last_words(error), study)
    assert "'sklearn' is your own file" in explanation
    assert explanation.endswith("/opt/x/python -m pip install scikit-learn")


SKLEARN = "exit code 1: ModuleNotFoundError: No module named 'joblib'"


def test_all_missing_packages_of_a_trainer_are_named_at_once(make_run: MakeRun, work: Path) -> None:
    python = work / "python"  # one that has numpy alone
    python.write_text('#!/bin/sh\necho \'["joblib", "sklearn", "yaml"]\'\n')
    python.chmod(0o755)
    own = "import csv, os\nimport joblib, numpy\nimport trial\nfrom helper import x\n"
    rest = "from sklearn.linear_model import Ridge\nimport yaml\n"
    (work / "train.py").write_text(own + rest + "try:\n    import maybe\nexcept Exception: ...\n")
    (work / "helper.py").write_text("x = 1\n")
    files = [work / "train.py", work / "helper.py"]
    assert top_level_imports(files) == ["joblib", "numpy", "sklearn", "yaml"]
    trainer = {"command": [str(python), "train.py"], "files": [str(file) for file in files]}
    explanation = installation_advice(SKLEARN, make_run(trainer=trainer).study)
    assert "if 'joblib' is your own file" in explanation
    assert explanation.endswith("/python -m pip install scikit-learn pyyaml")
    away = {"command": ["/no/python", "train.py"], "files": trainer["files"]}  # of other machines
    explanation = installation_advice(SKLEARN, make_run(run="r2", trainer=away).study)
    assert explanation.endswith("/no/python -m pip install joblib")


def test_missing_modules_are_found_with_the_given_python() -> None:
    assert missing_modules(sys.executable, ("csv", "no_such_module", "pytest")) == (
        "no_such_module",
    )
    assert missing_modules("/no/python", ("csv",)) == ()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["exit code 1", "the trainer's own words"])
def test_status_and_why_show_the_remedy_for_a_missing_module(make_run: MakeRun, how: str) -> None:
    run = make_run()
    error = f"{how}: ModuleNotFoundError: No module named 'nowhere'"
    folder = RunFolder(run.folder)
    study = RegionStudies(folder, load_frozen(folder.study)).get_study("A")
    for node in ("A.l1.t01", "A.l1.t02"):
        study.ask(node)
        study.note_failure(node, attempt=0, error=error)
        study.tell(node, Failed(error=error, final=True))
    assert "-m pip install nowhere" in printed(run_view(run.status()), 300)
    graph, facts_reader = build_graph(run.study).regions[0], RunFactsReader(run.folder)
    whole = facts_reader.run()
    region = replace(facts_reader.region(graph), stage=Stage.FAILED)
    assert "-m pip install nowhere" in explain_region(whole, region).advice
    facts = facts_reader.node(graph, "A.l1.t01")
    assert "-m pip install nowhere" in explain_node(whole, region, facts).advice
