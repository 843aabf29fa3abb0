"""Folders of a run and its models, read without parsing the study: the same as in the study."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.conftest import MakeRun
from trialfleet.errors import InputError
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.facts.run_folder.frozen_head import FrozenHead, parse_head
from trialfleet.workflows.study.frozen import load_frozen

LONG = "a folder with many words in its name, so that a writer of YAML folds it " * 3


@pytest.mark.parametrize(
    "publish", ["models", "none", f"{LONG}: #1", "'quoted'", "no", "12", "é ü"]
)
def test_the_head_equals_the_values_of_the_frozen_study(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, publish: str
) -> None:
    search_space = {"publish": {"type": "float", "low": 0.0, "high": 1.0}, "name": 3, "run": 1}
    run = make_run(search_space, regions=["name", "publish", "folder"], publish=publish)
    folder = RunFolder(run.folder)
    frozen = load_frozen(folder.study)
    monkeypatch.setattr("trialfleet.workflows.study.frozen.load_frozen", None)
    assert parse_head(folder) == FrozenHead(
        frozen.run, frozen.folder, frozen.cost_day, frozen.study.name, frozen.study.publish
    )
    assert parse_head(folder).publishes == frozen.study.publishes


@pytest.mark.parametrize("copy", [None, "", "{}", "[1]", '{"sha256": 1, "frozen": {}}'])
def test_a_run_without_a_copy_of_its_study_is_read_by_the_study(
    make_run: MakeRun, copy: str | None
) -> None:
    folder = RunFolder(make_run().folder)
    known = parse_head(folder)
    folder.study_copy.unlink() if copy is None else folder.study_copy.write_text(copy)
    assert parse_head(folder) == known
    folder.study.write_text("run: [r1")
    with pytest.raises(InputError, match=r"study\.yaml"):
        parse_head(folder)


def test_a_run_that_was_moved_is_refused(make_run: MakeRun, work: Path) -> None:
    run = make_run()
    run.folder.rename(work / "elsewhere")
    with pytest.raises(InputError, match=r"works only there, .*paths; move it back"):
        parse_head(RunFolder(work / "elsewhere"))
    run.folder.mkdir()  # as HTCondor does for a run in progress
    with pytest.raises(
        InputError, match=r"paths; move it back \(first remove what its jobs .* since\)"
    ):
        parse_head(RunFolder(work / "elsewhere"))
    shutil.copytree(work / "elsewhere", run.folder, dirs_exist_ok=True)
    with pytest.raises(InputError, match=r"paths; move it back"):
        parse_head(RunFolder(work / "elsewhere"))
