"""Models that a release up to 0.1 published in MODELS/REGION, and where their readers find them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trialfleet.errors import InputError
from trialfleet.workflows.models.folders import adopt, models_folder_of
from trialfleet.workflows.models.latest import promote
from trialfleet.workflows.plan.folder import RunFolder
from trialfleet.workflows.run.new_run import plan
from trialfleet.workflows.scripts.publish_node import publish_region
from trialfleet.workflows.study.spec import Study


def study_called(name: str, folder: Path) -> Study:
    return Study.model_validate(
        {
            "name": name,
            "regions": ["A", "B"],
            "objective": {"metric": "loss", "direction": "minimize"},
            "search_space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
            "trainer": {"command": ["sh"]},
            "accelerator": "cpu",
        }
    ).resolve(folder)


def publish_formerly(models: Path, region: str, study: str, run: str, day: int) -> None:
    model = models / region / run
    (model / "deep").mkdir(parents=True)
    (model / "deep" / "weights").write_text(f"{study} {run}")
    provenance = {"study": study, "run": run, "created": f"2026-11-{day:02}T06:00:00+00:00"}
    (model / "provenance.json").write_text(json.dumps(provenance))
    (models / region / "latest").unlink(missing_ok=True)
    (models / region / "latest").symlink_to(run)


def weights(model: Path) -> str:
    return (model / "deep" / "weights").read_text()


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """Two studies in one folder: `ours` published last in B, `other` in A."""
    models = tmp_path / "models"
    publish_formerly(models, "A", "ours", "r1", 1)
    publish_formerly(models, "A", "ours", "r2", 2)
    publish_formerly(models, "A", "other", "s1", 3)
    publish_formerly(models, "B", "other", "s1", 1)
    publish_formerly(models, "B", "ours", "r1", 2)
    publish_formerly(models, "B", "ours", "r2", 3)
    (models / "B" / "latest").unlink()
    (models / "B" / "latest").symlink_to("r1")  # a person went back to it
    return models


def test_a_studys_models_move_to_its_own_folder_and_latest_keeps_its_target(
    models: Path, tmp_path: Path
) -> None:
    ours = study_called("ours", tmp_path)
    line = adopt(ours)
    assert line is not None
    assert line.startswith(f"moved 4 model(s) of ours from {models}/REGION to {models}/ours/REGION")
    for region in ("A", "B"):
        assert {run: weights(models / "ours" / region / run) for run in ("r1", "r2")} == {
            "r1": "ours r1",
            "r2": "ours r2",
        }
    assert (models / "ours" / "B" / "latest").readlink() == Path("r1")
    assert (models / "ours" / "A" / "latest").readlink() == Path("r2")  # its newest: it had none
    assert adopt(ours) is None


def test_other_studies_models_stay_where_they_are(models: Path, tmp_path: Path) -> None:
    adopt(study_called("ours", tmp_path))
    assert (models / "A" / "latest").readlink() == Path("s1")
    for region in ("A", "B"):
        assert not (models / region / "s1").is_symlink()
        assert weights(models / region / "s1") == "other s1"
    adopt(study_called("other", tmp_path))
    assert weights(models / "other" / "A" / "latest") == "other s1"
    assert weights(models / "other" / "B" / "latest") == "other s1"
    assert weights(models / "A" / "latest") == "other s1"
    assert weights(models / "B" / "latest") == "ours r1"


def test_who_reads_the_former_paths_goes_on_and_gets_what_is_published_later(
    models: Path, tmp_path: Path
) -> None:
    adopt(study_called("ours", tmp_path))
    assert weights(models / "B" / "r2") == "ours r2"
    assert weights(models / "B" / "latest") == "ours r1"
    promote(models / "ours" / "B" / "r2")
    assert weights(models / "B" / "latest") == "ours r2"
    assert promote(models / "B" / "r1") == "r2"  # by the former path
    assert weights(models / "ours" / "B" / "latest") == "ours r1"
    assert (models / "B" / "latest").readlink() == Path("../ours/B/latest")


def test_files_are_copied_where_they_cant_be_shared(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    adopt(study_called("ours", tmp_path))
    assert weights(models / "ours" / "A" / "r1") == "ours r1"


def test_a_run_of_the_same_id_that_was_published_since_loses_nothing(
    models: Path, tmp_path: Path
) -> None:
    newer = models / "ours" / "B" / "r1"
    newer.mkdir(parents=True)
    (newer / "provenance.json").write_text('{"study": "ours", "run": "r1", "params": {}}')
    adopt(study_called("ours", tmp_path))
    assert weights(models / "B" / "r1") == "ours r1"
    assert "params" in (newer / "provenance.json").read_text()
    assert weights(models / "ours" / "B" / "r2") == "ours r2"


@pytest.mark.parametrize("place", ["ours", "ours/A"])
def test_no_models_are_put_into_a_published_model(tmp_path: Path, place: str) -> None:
    ours = study_called("ours", tmp_path)
    model = Path(ours.publish) / place
    model.mkdir(parents=True)
    (model / "provenance.json").write_text('{"study": "x", "run": "ours"}')
    with pytest.raises(InputError, match="is a published model"):
        models_folder_of(ours, "A")


def test_a_plan_and_a_publication_move_them_with_a_line(
    models: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    notices: list[str] = []
    run = plan(
        study_called("ours", tmp_path), run="r3", out=tmp_path / "run", notice=notices.append
    )
    assert adopted(4, models, "ours") in notices
    publish_formerly(models, "A", "ours", "r0", 1)  # by a run of the earlier release
    folder = RunFolder(run.folder)
    assert publish_region(folder, "A") != 0  # nothing was trained
    assert adopted(1, models, "ours") in capsys.readouterr().out
    assert weights(models / "ours" / "A" / "r0") == "ours r0"


def adopted(count: int, models: Path, study: str) -> str:
    return (
        f"moved {count} model(s) of {study} from {models}/REGION to {models}/{study}/REGION; "
        "links in the former places lead there"
    )


KILLED = """
import os, shutil, sys
from pathlib import Path
from tests.killed_child import status_of
from tests.unit.models.test_model_folders import study_called, weights
from trialfleet.workflows.models.folders import adopt

origin, place = Path(sys.argv[1]), Path(sys.argv[2])
ours = study_called("ours", place)

kills, models = 0, place / "models"
while True:
    shutil.rmtree(models, ignore_errors=True)
    shutil.copytree(origin, models, symlinks=True)
    status = status_of(lambda: adopt(ours), kills + 1)
    # who reads the former latest finds a whole model at every moment
    assert weights(models / "B" / "latest") == "ours r1", kills
    assert weights(models / "A" / "latest") == "other s1", kills
    assert status_of(lambda: adopt(ours), 0) == 0, kills
    for region, latest in (("A", "r2"), ("B", "r1")):
        models_folder = models / "ours" / region
        assert os.readlink(models_folder / "latest") == latest, (kills, region)
        left = {name for name in os.listdir(models / region) if name != ".lock"}
        assert left == {"r1", "r2", "s1", "latest"}, (kills, left)
        for run in ("r1", "r2"):
            moved, former = models_folder / run, models / region / run
            assert weights(moved) == weights(former) == f"ours {run}", kills
            assert (models / region / run).is_symlink(), kills
    if not os.WIFSIGNALED(status):
        break
    kills += 1
print(kills)
"""


@pytest.mark.slow
def test_kill_9_at_any_call_of_the_system_is_completed_by_the_next(
    models: Path, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    command = [sys.executable, "-c", KILLED, str(models), str(work)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path.cwd())
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100, "every call was a place of a death"
    assert os.path.lexists(work / "models" / "ours" / "A" / "latest")
