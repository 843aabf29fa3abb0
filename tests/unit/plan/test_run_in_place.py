"""A run's frozen study is refused if it is damaged, or if the run was moved."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.conftest import MakeRun
from trialfleet.errors import InputError
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.facts.run_folder.run_in_place import load_in_place


def test_a_damaged_study_is_named(make_run: MakeRun) -> None:
    folder = RunFolder(make_run().folder)
    folder.study.write_text('{"run": "r1"')
    with pytest.raises(InputError, match=r"study\.json"):
        load_in_place(folder)


def test_a_run_that_was_moved_is_refused(make_run: MakeRun, work: Path) -> None:
    run = make_run()
    run.folder.rename(work / "elsewhere")
    with pytest.raises(InputError, match=r"works only there, .*paths; move it back"):
        load_in_place(RunFolder(work / "elsewhere"))
    run.folder.mkdir()  # as HTCondor does for a run in progress
    with pytest.raises(
        InputError, match=r"paths; move it back \(first remove what its jobs .* since\)"
    ):
        load_in_place(RunFolder(work / "elsewhere"))
    shutil.copytree(work / "elsewhere", run.folder, dirs_exist_ok=True)
    with pytest.raises(InputError, match=r"paths; move it back"):
        load_in_place(RunFolder(work / "elsewhere"))
