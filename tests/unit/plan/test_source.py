"""Origin of a run's study: noted when the run is planned, for each model of it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.study.study_texts import MINIMAL, write
from trialfleet import load_study, plan

pytestmark = pytest.mark.slow


@pytest.fixture
def planned(work: Path) -> Callable[..., Any]:
    """Plans a study in a folder, by its file or as it was loaded; gives what is noted."""
    (work / "project").mkdir()
    (work / "project" / "go.sh").write_text("echo\n")
    file = write(work / "project", MINIMAL)

    def plan_it(run: str, *, as_file: bool = True) -> Any:
        made = plan(file if as_file else load_study(file), run=run, out=work / "runs" / run)
        return json.loads((made.folder / "inputs.json").read_text()).get("source")

    return plan_it


def git(folder: Path, *words: str) -> str:
    name = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    command = ["git", "-C", str(folder), *name, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_the_source_has_the_commit_of_the_checkout_and_whether_it_is_dirty(
    work: Path, planned: Callable[..., Any]
) -> None:
    project = work / "project"
    file = str(project / "study.yaml")
    assert planned("r0") == {"file": file}
    assert not planned("r1", as_file=False)
    git(project, "init", "-q")
    assert planned("r2") == {"file": file}  # nothing is committed
    git(project, "add", ".")
    git(project, "commit", "-qm", "one")
    commit = git(project, "rev-parse", "HEAD")
    (project / "new.txt").touch()  # that git doesn't know
    assert planned("r3") == {"file": file, "commit": commit, "dirty": False}
    (project / "go.sh").write_text("echo changed\n")
    assert planned("r4") == {"file": file, "commit": commit, "dirty": True}
    assert planned("r5", as_file=False) == {"commit": commit, "dirty": True}
