"""Publishing: the model arrives whole, `latest` is switched, former models stay."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from trialfleet.errors import InputError
from trialfleet.files import write_json
from trialfleet.workflows import publish as publish_module
from trialfleet.workflows.folder import TrialFolder
from trialfleet.workflows.publish import data_checksums, publish
from trialfleet.workflows.study import Study

RESULT = '{"status": "complete", "metrics": {"loss": 0.25}, "device": "cpu", "seconds": 1.5}'


def told(published: Path) -> Any:
    return json.loads((published / "provenance.json").read_text())


@pytest.fixture
def study(tmp_path: Path) -> Study:
    (tmp_path / "A.csv").write_text("1,2\n")
    return Study.model_validate(
        {
            "name": "demo",
            "regions": ["A"],
            "data": "A.csv",
            "objective": {"metric": "loss", "direction": "minimize"},
            "search_space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
            "trainer": {"command": ["sh"]},
            "accelerator": "cpu",
        }
    ).resolve(tmp_path)


@pytest.fixture
def best(tmp_path: Path) -> TrialFolder:
    best = TrialFolder(tmp_path / "best")
    (best.model / "deep").mkdir(parents=True)
    (best.model / "deep" / "weights").write_text("w1")
    best.trial_json.write_text(
        '{"region": "A", "trial": 3, "params": {"x": 0.5}, "seed": 7, "objective": {}}'
    )
    best.result.write_text(RESULT)
    return best


def test_model_metrics_and_provenance_are_published(study: Study, best: TrialFolder) -> None:
    published = publish("r1", study, "A", best)
    assert published == Path(study.publish) / "A" / "r1"
    assert (published / "deep" / "weights").read_text() == "w1"
    assert json.loads((published / "metrics.json").read_text()) == {"loss": 0.25}
    provenance = told(published)
    assert (provenance["params"], provenance["seed"]) == ({"x": 0.5}, 7)
    assert provenance["data"][0]["sha256"] == hashlib.sha256(b"1,2\n").hexdigest()


def test_latest_is_switched_and_the_former_model_stays(study: Study, best: TrialFolder) -> None:
    first = publish("r1", study, "A", best)
    (best.model / "deep" / "weights").write_text("w2")
    publish("r2", study, "A", best)
    latest = Path(study.publish) / "A" / "latest"
    assert (latest / "deep" / "weights").read_text() == "w2"
    assert (first / "deep" / "weights").read_text() == "w1"


def test_publishing_twice_is_publishing_once(study: Study, best: TrialFolder) -> None:
    assert publish("r1", study, "A", best) == publish("r1", study, "A", best)
    shelf = Path(study.publish) / "A"
    assert sorted(path.name for path in shelf.iterdir()) == ["latest", "r1"]


def test_a_crash_before_the_end_leaves_the_former_model_in_force(
    study: Study, best: TrialFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish("r1", study, "A", best)
    with monkeypatch.context() as patch:
        patch.setattr(
            publish_module, "_sync_tree", lambda _: (_ for _ in ()).throw(OSError("full"))
        )
        with pytest.raises(OSError, match="full"):
            publish("r2", study, "A", best)
    shelf = Path(study.publish) / "A"
    assert (shelf / "latest").resolve().name == "r1"
    assert sorted(path.name for path in shelf.iterdir()) == ["latest", "r1"]
    assert publish("r2", study, "A", best).name == "r2"


def test_an_attempt_that_ended_before_the_switch_is_taken_up(
    study: Study, best: TrialFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = publish("r1", study, "A", best)
    before = (published / "deep" / "weights").stat().st_ino
    (published.parent / "latest").unlink()
    monkeypatch.setattr(publish_module, "version", lambda _: "another since")
    publish("r1", study, "A", best)
    assert (published.parent / "latest").resolve() == published
    assert (published / "deep" / "weights").stat().st_ino == before


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model/deep/weights", "w2"),  # size and time are the same: only the bytes tell
        ("model/more", ""),
        ("result.json", RESULT.replace("0.25", "0.125")),
        ("data.json", "[]"),
        ("trial.json", '{"region": "A", "trial": 4, "params": {}, "seed": 7, "objective": {}}'),
    ],
)
def test_a_model_of_another_run_of_the_same_id_is_neither_kept_nor_overwritten(
    study: Study, best: TrialFolder, name: str, content: str
) -> None:
    former = told(publish("r1", study, "A", best))
    publish("r2", study, "A", best)
    (best.root / name).write_text(content)
    weights = best.model / "deep" / "weights"
    os.utime(weights, ns=(0, (Path(study.publish) / "A/r1/deep/weights").stat().st_mtime_ns))
    with pytest.raises(InputError, match="another run of the same id; plan with another --run-id"):
        publish("r1", study, "A", best)
    shelf = Path(study.publish) / "A"
    assert (shelf / "latest").resolve().name == "r2"
    assert (shelf / "r1" / "deep" / "weights").read_text() == "w1"
    assert told(shelf / "r1") == former
    assert sorted(path.name for path in shelf.iterdir()) == ["latest", "r1", "r2"]


@pytest.mark.parametrize("provenance", ["{", "[]", None])
def test_a_folder_that_no_run_published_is_not_taken_for_ones_own(
    study: Study, best: TrialFolder, provenance: str | None
) -> None:
    published = publish("r1", study, "A", best)
    if provenance is None:
        shutil.rmtree(published)
        published.write_text("a file")
    else:
        (published / "provenance.json").write_text(provenance)
    with pytest.raises(InputError, match="exists already"):
        publish("r1", study, "A", best)


def test_data_is_told_as_it_was_when_the_training_was_asked_for(
    study: Study, best: TrialFolder, tmp_path: Path
) -> None:
    write_json(best.data_checksums, data_checksums(study, "A"))
    (tmp_path / "A.csv").write_text("tomorrow's\n")
    (data,) = told(publish("r1", study, "A", best))["data"]
    assert data["path"] == str(tmp_path / "A.csv")
    assert (data["sha256"], data["bytes"]) == (hashlib.sha256(b"1,2\n").hexdigest(), 4)


@pytest.mark.parametrize("name", ["metrics.json", "provenance.json"])
def test_a_model_file_of_a_name_of_ours_is_not_lost(
    study: Study, best: TrialFolder, name: str
) -> None:
    (best.model / "deep" / name).write_text("{}")
    publish("r1", study, "A", best)
    (best.model / name).symlink_to(best.model / "deep" / name)
    with pytest.raises(InputError, match=f"model/{name}.*can't be published"):
        publish("r2", study, "A", best)


def test_a_link_to_a_file_of_the_model_is_published_as_that_file(
    study: Study, best: TrialFolder
) -> None:
    (best.model / "last").symlink_to("deep/weights")
    published = publish("r1", study, "A", best)
    assert not (published / "last").is_symlink()
    assert (published / "last").read_text() == "w1"


@pytest.mark.parametrize(
    "target", ["/etc/passwd", "../trial.json", "missing", "../model", "deep", "link\udcff"]
)
def test_any_other_link_is_refused(study: Study, best: TrialFolder, target: str) -> None:
    (best.model / "deep" / "link\udcff").symlink_to(f"../{target}")
    (best.model / "link").symlink_to(target)
    with pytest.raises(InputError, match="links to its own files only") as caught:
        publish("r1", study, "A", best)
    assert str(caught.value).isprintable()
    assert not Path(study.publish).exists()


def test_a_model_folder_that_is_itself_a_link_is_refused(study: Study, best: TrialFolder) -> None:
    best.model.rename(best.root / "elsewhere")
    best.model.symlink_to("elsewhere")
    with pytest.raises(InputError, match="links to 'elsewhere'"):
        publish("r1", study, "A", best)


def test_a_pipe_in_the_model_is_refused(study: Study, best: TrialFolder) -> None:
    os.mkfifo(best.model / "pipe")
    with pytest.raises(InputError, match="pipe' is no file and no folder"):
        publish("r1", study, "A", best)


def test_the_published_folder_can_be_read_by_others(study: Study, best: TrialFolder) -> None:
    best.model.chmod(0o700)
    assert publish("r1", study, "A", best).stat().st_mode & 0o777 == 0o755


def test_only_a_complete_result_is_published(study: Study, best: TrialFolder) -> None:
    best.result.write_text(RESULT.replace("0.25", "NaN"))
    with pytest.raises(InputError, match="loss is nan"):
        publish("r1", study, "A", best)
    assert list((Path(study.publish) / "A").iterdir()) == []


def test_what_the_trainer_tells_is_published_cleaned(study: Study, best: TrialFolder) -> None:
    versions = '{"lib": "1\\u001b[31m\\ud800", "torch": [], "trialfleet": "0"}'
    best.result.write_text(
        f'{{"status": "complete", "metrics": {{"loss": 1, "odd": NaN, "a\\ud800": 2}}, '
        f'"seconds": NaN, "versions": {versions}}}'
    )
    published = publish("r1", study, "A", best)
    assert json.loads((published / "metrics.json").read_text()) == {"loss": 1, "a\ufffd": 2}
    assert told(published)["seconds"] is None
    assert told(published)["versions"]["lib"] == "1\ufffd"
    assert "torch" not in told(published)["versions"]
