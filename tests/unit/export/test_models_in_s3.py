"""Restoring models from S3, for a manager that continues the day of another manager."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.moto_server import s3_with_bucket
from tests.unit.export.exported_models import add_model, publish_models
from tests.unit.study.study_texts import MINIMAL, write
from trialfleet.errors import ExportError
from trialfleet.workflows.control.export.published_models import read_published
from trialfleet.workflows.control.export.s3_client import s3_client
from trialfleet.workflows.control.export.s3_mirror import S3Mirror
from trialfleet.workflows.control.models.latest import models_lock, promote, rollback
from trialfleet.workflows.control.takeover import models_in_s3
from trialfleet.workflows.control.takeover.models_in_s3 import ModelsInS3
from trialfleet.workflows.facts.journal.journal import Attempt, Ending
from trialfleet.workflows.facts.models import history
from trialfleet.workflows.facts.models.approval import read_awaiting
from trialfleet.workflows.facts.models.verdict import ComparedModel, Verdict
from trialfleet.workflows.study.loading import load_published

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

pytestmark = pytest.mark.slow
BUCKET, URL = "models-of-ours", "s3://models-of-ours/some/prefix"
Export = Callable[[Path], list[str]]


@pytest.fixture
def s3(moto: str, monkeypatch: pytest.MonkeyPatch) -> S3Client:
    return s3_with_bucket(moto, BUCKET, monkeypatch)


def export(folder: Path) -> None:
    S3Mirror(s3_client(None), URL).export(read_published(folder), None)


def other_manager(tmp_path: Path, more: str = "") -> tuple[ModelsInS3, Path]:
    """Return the models as a manager without any sees them, and the folder of its region A."""
    place = tmp_path / "other"
    place.mkdir()
    (place / "go.sh").write_text("exit 0\n")
    text = MINIMAL.replace("name:", f"publish: {URL}\nname:", 1) + more
    study = load_published(write(place, text)).model_copy(update={"name": "demo"})
    return ModelsInS3(study), Path(study.publish) / "demo" / "A"


def attempt_of(run: str) -> Attempt:
    now = datetime.now(UTC)
    return Attempt(
        date=date(2026, 11, 20), attempt=1, run=run, regions=("A",), started=now, deadline=None
    )


def test_the_current_model_is_restored_and_replaces_only_an_older_switch(
    s3: S3Client, tmp_path: Path
) -> None:
    ours = publish_models(tmp_path / "models", "r1", "r2")
    export(ours)
    models, theirs = other_manager(tmp_path)
    said: list[str] = []
    models.restore(["A", "NO"], said.append)
    assert history.current_run(theirs / "latest") == "r2"
    assert (theirs / "r2/deep/weights").read_text() == "weights of r2"
    assert len(said) == 1
    models.restore(["A"], said.append)
    assert len(said) == 1, "it is here already"

    rollback(ours)
    export(ours)
    models.restore(["A"], said.append)
    assert history.current_run(theirs / "latest") == "r1"
    promote(theirs / "r2", "here and later")
    models.restore(["A"], said.append)
    assert history.current_run(theirs / "latest") == "r2"


def test_a_persons_choice_at_the_same_moment_stays(
    s3: S3Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export(publish_models(tmp_path / "models", "r1", "r2"))
    models, theirs = other_manager(tmp_path)
    models.outcomes(attempt_of("r1"), ["A"])

    @contextmanager
    def lock_after_a_person(folder: Path) -> Iterator[None]:
        promote(theirs / "r1", "it is better")
        with models_lock(folder):
            yield

    monkeypatch.setattr(models_in_s3, "models_lock", lock_after_a_person)
    said: list[str] = []
    models.restore(["A"], said.append)
    assert history.current_run(theirs / "latest") == "r1"
    assert said == []


def test_a_model_is_current_before_a_publication_can_remove_it(
    s3: S3Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export(publish_models(tmp_path / "models", "r1"))
    models, theirs = other_manager(tmp_path)

    @contextmanager
    def lock_before_a_publication(folder: Path) -> Iterator[None]:
        with models_lock(folder):
            yield
        if history.current_run(folder / "latest") is None:
            shutil.rmtree(folder / "r1")  # as `keep` does

    monkeypatch.setattr(models_in_s3, "models_lock", lock_before_a_publication)
    models.restore(["A"], lambda _: None)
    assert (theirs / "latest" / "provenance.json").exists()


def test_a_model_that_another_manager_published_is_the_outcome_of_its_day(
    s3: S3Client, tmp_path: Path
) -> None:
    ours = publish_models(tmp_path / "models", "r1", "r2")
    export(ours)
    models, theirs = other_manager(tmp_path)
    (found,) = models.outcomes(attempt_of("r2"), ["A", "NO"])
    assert (found.region, found.ending, found.run) == ("A", Ending.PUBLISHED, "r2")
    (older,) = models.outcomes(attempt_of("r1"), ["A"])
    assert (older.ending, older.why) == (Ending.KEPT, "latest stays with r2")
    assert (theirs / "r1/provenance.json").exists()


def test_a_model_that_waits_for_approval_waits_on_the_other_manager_too(
    s3: S3Client, tmp_path: Path
) -> None:
    ours = publish_models(tmp_path / "models", "r1")
    new = add_model(ours, "r2", 1)
    challenger = ComparedModel(run="r2")
    gate = Verdict(
        verdict="promoted",
        why="it is better",
        metric="loss",
        champion=None,
        challenger=challenger,
        baseline=None,
        interval=None,
    )
    (new / "card.json").write_text(json.dumps({"gate": gate.to_json()}))
    export(ours)
    models, theirs = other_manager(tmp_path, "gate: {approve: true}\n")
    models.restore(["A"], lambda _: None)
    (found,) = models.outcomes(attempt_of("r2"), ["A"])
    assert found.ending is Ending.KEPT
    assert found.why.startswith(
        "it passed the gate: it is better; with gate.approve a person promotes"
    )
    waits = read_awaiting(theirs)
    assert waits is not None
    assert waits.run == "r2"
    assert history.current_run(theirs / "latest") == "r1"


def test_a_partly_copied_model_is_removed_and_can_be_exported_again(
    s3: S3Client, tmp_path: Path
) -> None:
    export(publish_models(tmp_path / "models", "r1"))
    key = "some/prefix/demo/A/r1"
    s3.delete_object(Bucket=BUCKET, Key=f"{key}.json")  # the manifest, which is put last
    models, _ = other_manager(tmp_path)
    assert not models.has("A", "r1")
    assert models.outcomes(attempt_of("r1"), ["A"]) == []
    left = s3.list_objects_v2(Bucket=BUCKET, Prefix=key).get("Contents", [])
    assert left == []
    export(publish_models(tmp_path / "again", "r1"))
    assert models.has("A", "r1")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("r1/deep/weights", b"others", "has changed since it was copied to S3"),
        ("r1.json", b"{}", "is not a complete model"),
        (
            "r1.json",
            b'{"files": [{"name": "../../x", "sha256": ""}]}',
            r"lists the file '\.\./\.\./x'",
        ),
    ],
)
def test_a_damaged_copy_is_refused_and_nothing_of_it_is_left(
    s3: S3Client, tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    export(publish_models(tmp_path / "models", "r1"))
    s3.put_object(Bucket=BUCKET, Key=f"some/prefix/demo/A/{name}", Body=content)
    models, theirs = other_manager(tmp_path)
    with pytest.raises(ExportError, match=message):
        models.restore(["A"], lambda _: None)
    assert not (theirs / "r1").exists()
    assert not (theirs / "latest").exists()
    assert not (theirs.parent / "x").exists()
