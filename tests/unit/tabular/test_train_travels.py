"""Files sent with a trial of the reference trainer: the kernels only with a trial for a GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.tabular.small_trials import make_table
from trialfleet.workflows.control.plan import run_folder_writer as plan
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.study.spec import Study


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for runs. Nothing is submitted here, so /tmp will do."""
    return tmp_path


def planned(place: Path, accelerator: str) -> RunFolder:
    make_table(place / "rows.npz")
    study = Study.model_validate(
        {
            "name": "demo",
            "regions": ["A"],
            "objective": {"metric": "val_loss", "direction": "minimize"},
            "search_space": {"hidden": {"type": "int", "low": 8, "high": 64}},
            "budget": {"trials": 1},
            "trainer": "tabular",
            "data": "rows.npz",
            "accelerator": accelerator,
        }
    )
    return plan.write_plan(study.resolve(place), run="r1", out=place / "run")


def test_the_kernels_without_their_benchmarks_are_sent_with_a_gpu_trial(place: Path) -> None:
    code = planned(place, "gpu").code
    files = {str(path.relative_to(code / "kernels")) for path in (code / "kernels").rglob("*")}
    assert {"ops.py", "plain.py", "build.py", "csrc/schema.cpp", "csrc/cuda/launchers.h"} <= files
    assert not [name for name in files if "bench" in name.lower() or "__pycache__" in name]


def test_the_kernels_are_not_sent_with_a_cpu_trial(place: Path) -> None:
    assert not (planned(place, "cpu").code / "kernels").exists()


@pytest.mark.slow
def test_the_trainer_for_a_gpu_needs_only_the_files_sent_with_it(place: Path) -> None:
    folder = planned(place, "gpu")
    program = (
        "import trial_imports; from trialfleet.nodes import trial;"
        "from trialfleet.nodes.tabular import graph_steps, train"
    )
    subprocess.run([sys.executable, "-c", program], cwd=folder.code, check=True)
