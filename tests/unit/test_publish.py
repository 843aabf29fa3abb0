"""Publishing: the model arrives whole, `latest` is switched, former models stay."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from trialfleet.workflows import publish as publish_module
from trialfleet.workflows.folder import TrialFolder
from trialfleet.workflows.publish import publish
from trialfleet.workflows.study import Study


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
    best.result.write_text('{"metrics": {"loss": 0.25}, "device": "cpu", "seconds": 1.5}')
    return best


def test_model_metrics_and_provenance_are_published(study: Study, best: TrialFolder) -> None:
    published = publish("r1", study, "A", best)
    assert published == Path(study.publish) / "A" / "r1"
    assert (published / "deep" / "weights").read_text() == "w1"
    assert json.loads((published / "metrics.json").read_text()) == {"loss": 0.25}
    provenance = json.loads((published / "provenance.json").read_text())
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
