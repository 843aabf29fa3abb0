"""Inputs of a model: checksums of files that stayed unchanged, and of no others."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from tests.conftest import MOODY, MakeRun
from tests.moto_server import moto_server, s3_with_bucket
from tests.unit.report.report_studies import text_of
from tests.unit.scripts import Scripts
from tests.unit.terminal import printed
from trialfleet.workflows import checksums
from trialfleet.workflows.checksums import Checksums
from trialfleet.workflows.cli.main import main
from trialfleet.workflows.control.daily.region_outcomes import RunsEndings
from trialfleet.workflows.control.daily.unchanged_regions import data_fingerprint
from trialfleet.workflows.control.plan import input_provenance
from trialfleet.workflows.control.plan.input_provenance import freeze_data
from trialfleet.workflows.control.scripts.publish_program import publish_region
from trialfleet.workflows.facts.journal.journal import Attempt
from trialfleet.workflows.facts.run_folder.dag_structure import EXITS
from trialfleet.workflows.study.daily import RunsDay
from trialfleet.workflows.study.frozen import load_frozen
from trialfleet.workflows.study.paths import DataError
from trialfleet.workflows.views.report.report_reader import read_report
from trialfleet.workflows.views.terminal.status_view import run_view

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

pytestmark = pytest.mark.slow

OLD, NEW = b"old\n", b"new\n"


class OneRegion(Scripts):
    """A run of region A. The test plays its jobs."""

    def full_training(self) -> None:
        self.train_best(1.0)
        (self.best.model / "weights").touch()
        assert self.tell_best(0).exit_code == EXITS["done"]

    def publish(self) -> dict[str, Any]:
        """Publish the model; return its provenance."""
        assert publish_region(self.folder, "A") == EXITS["done"]
        published = Path(json.loads(self.files.published.read_text())["path"])
        provenance: dict[str, Any] = json.loads((published / "provenance.json").read_text())
        card = json.loads((published / "card.json").read_text())
        assert {key: card.get(key) for key in provenance} == provenance
        return provenance


MakeRegion = Callable[..., OneRegion]


@pytest.fixture
def region(make_run: MakeRun, work: Path) -> MakeRegion:
    def make(**changes: Any) -> OneRegion:
        return OneRegion(make_run(budget={"trials": 3, "lanes": 1}, **changes))

    (work / "A.txt").write_bytes(OLD)
    (work / "folder").mkdir()
    (work / "folder" / "A.txt").write_bytes(OLD)
    (work / "link.txt").symlink_to(work / "A.txt")
    return make


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def in_place(path: Path) -> None:
    path.write_bytes(NEW)


def in_place_with_the_old_time(path: Path) -> None:
    before = path.stat()
    path.write_bytes(NEW)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def for_a_moment(path: Path) -> None:
    """Change the content for a moment, in which a job may have read it."""
    before = path.stat()
    path.write_bytes(NEW)
    path.write_bytes(OLD)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def by_another_file(path: Path) -> None:
    beside = path.with_name("beside")
    beside.write_bytes(NEW)
    beside.replace(path)


def by_another_file_for_a_moment(path: Path) -> None:
    aside = path.rename(path.with_name("aside"))
    path.write_bytes(NEW)
    aside.replace(path)


def by_a_link_elsewhere(path: Path) -> None:
    path.unlink()
    other = path.with_name("other")
    other.write_bytes(NEW)
    path.symlink_to(other)


@pytest.mark.parametrize("data", ["A.txt", "folder", "link.txt"])
def test_a_model_names_the_checksums_of_data_and_code(
    region: MakeRegion, work: Path, data: str
) -> None:
    one = region(data=data)
    one.train(1.0)
    one.full_training()
    provenance = one.publish()
    [entry] = provenance["data"]
    file = work / data / "A.txt" if data == "folder" else work / data
    assert entry == {"path": str(file), "sha256": sha256(OLD), "bytes": 4}
    code = {entry["path"]: entry["sha256"] for entry in provenance["code"]}
    assert code["code/moody.py"] == sha256(MOODY.read_bytes())
    assert "agent" in code
    assert "changed" not in provenance
    assert one.run.status().regions[0].changed is None


@pytest.mark.parametrize(
    "change",
    [
        in_place,
        in_place_with_the_old_time,
        for_a_moment,
        by_another_file,
        by_another_file_for_a_moment,
        by_a_link_elsewhere,
        Path.unlink,
    ],
)
def test_data_that_changes_in_any_way_has_no_checksum(
    region: MakeRegion, work: Path, change: Callable[[Path], None]
) -> None:
    one = region(data="A.txt")
    change(work / "A.txt")
    input_provenance.note_changes(one.folder, "A")
    found = input_provenance.training_provenance(one.folder, "A", one.run.study)
    assert found["data"] == [{"path": str(work / "A.txt"), "sha256": None}]
    assert f"changed since the run was submitted: {work / 'A.txt'} " in found["changed"]


@pytest.mark.parametrize("when", ["a trial", "the full training"])
def test_data_changed_before_a_job_ends_is_shown_by_status_why_report_and_card(
    region: MakeRegion, work: Path, when: str
) -> None:
    one = region(data="A.txt")
    if when == "a trial":
        in_place(work / "A.txt")
    one.train(1.0)
    if when == "the full training":
        in_place(work / "A.txt")
    one.full_training()
    expected = f"changed since the run was submitted: {work / 'A.txt'}"
    assert expected in (one.run.status().regions[0].changed or "")
    provenance = one.publish()
    assert provenance["data"] == [{"path": str(work / "A.txt"), "sha256": None}]
    assert expected in provenance["changed"]
    assert expected in printed(run_view(one.run.status()), 500)
    asked = CliRunner().invoke(main, ["why", "A", "--run", str(one.run.folder)])
    assert expected in asked.output
    report = read_report(one.folder)
    assert expected in report.to_json()
    assert expected in text_of(report)
    card = CliRunner().invoke(main, ["models", str(work / "models/demo/A/r1"), "--card"])
    assert "unknown" in card.output
    assert expected in " ".join(card.output.split())


@pytest.mark.parametrize("name", ["code/moody.py", "agent"])
def test_changed_code_of_a_run_is_reported_and_has_no_checksum(
    region: MakeRegion, name: str
) -> None:
    one = region(data="A.txt")
    one.train(1.0)
    with (one.folder.root / name).open("a") as file:
        file.write("\n# repaired\n")
    one.ask("A.l1.t02")
    one.finish("A.l1.t02", 1.0)
    one.full_training()
    provenance = one.publish()
    checksums_of = {entry["path"]: entry["sha256"] for entry in provenance["code"]}
    assert [path for path, checksum in checksums_of.items() if checksum is None] == [name]
    assert name in provenance["changed"]
    assert provenance["data"][0]["sha256"] == sha256(OLD)


def test_a_second_changed_file_is_reported_too(region: MakeRegion, work: Path) -> None:
    one = region(data=["A.txt", "folder"])
    in_place(work / "A.txt")
    one.train(1.0)
    in_place(work / "folder" / "A.txt")
    one.full_training()
    provenance = one.publish()
    assert [entry["sha256"] for entry in provenance["data"]] == [None, None]
    assert str(work / "folder" / "A.txt") in provenance["changed"]


@pytest.mark.parametrize("place", ["folder", "code"])
def test_an_added_file_is_reported_as_a_change(region: MakeRegion, work: Path, place: str) -> None:
    one = region(data="folder")
    root = one.folder.code if place == "code" else work / "folder"
    (root / "more").touch()
    one.train(1.0)
    assert "more" in (one.run.status().regions[0].changed or "")


def test_a_frozen_table_that_changes_leaves_the_data_without_checksum(
    make_run: MakeRun, work: Path
) -> None:
    rows = "\n".join(f"{i % 7},{i % 2}" for i in range(200))
    (work / "rows.csv").write_text(f"x,y\n{rows}\n")
    one = OneRegion(
        make_run(
            data="rows.csv",
            trainer="tabular",
            target="y",
            objective={"metric": "val_loss", "direction": "minimize"},
            search_space={"learning_rate": {"type": "float", "low": 1.0e-3, "high": 0.1}},
        )
    )
    (work / "rows.csv").write_text("the run has its own copy\n")
    found = input_provenance.training_provenance(one.folder, "A", one.run.study)
    assert found["data"][0]["sha256"] == sha256(f"x,y\n{rows}\n".encode())
    assert "changed" not in found
    with one.files.table.open("ab") as file:
        file.write(b"more")
    input_provenance.note_changes(one.folder, "A")
    found = input_provenance.training_provenance(one.folder, "A", one.run.study)
    assert found["data"] == [{"path": str(work / "rows.csv"), "sha256": None}]


def test_a_run_trains_on_the_data_at_its_submission(region: MakeRegion, work: Path) -> None:
    one = region(data="A.txt")
    (work / "A.txt").write_bytes(NEW)
    freeze_data(one.folder, one.run.study)  # as `submit` does
    one.train(1.0)
    one.full_training()
    assert one.publish()["data"][0]["sha256"] == sha256(NEW)
    (work / "A.txt").unlink()
    with pytest.raises(DataError, match=r"region 'A': its data can't be read: .*A\.txt") as error:
        freeze_data(one.folder, one.run.study)
    assert list(error.value.by_region) == ["A"], "a day leaves out only this region"


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any file is too large to be read when the run is submitted."""
    monkeypatch.setattr(input_provenance, "AT_ONCE", 0)


@pytest.mark.usefixtures("large")
def test_a_large_file_is_read_when_its_model_is_published(region: MakeRegion, work: Path) -> None:
    one = region(data="A.txt")
    assert sha256(OLD) not in one.files.inputs.read_text()
    one.train(1.0)
    one.full_training()
    provenance = one.publish()
    assert provenance["data"][0]["sha256"] == sha256(OLD)
    (work / "A.txt").write_bytes(NEW)  # tomorrow's
    one.files.published.unlink()  # the job was killed right before its end
    assert one.publish() == provenance


@pytest.mark.usefixtures("large")
def test_a_large_file_that_changes_before_it_is_read_has_no_checksum(
    region: MakeRegion, work: Path
) -> None:
    one = region(data="A.txt")
    one.train(1.0)
    one.full_training()
    in_place_with_the_old_time(work / "A.txt")
    provenance = one.publish()
    assert provenance["data"] == [{"path": str(work / "A.txt"), "sha256": None}]
    assert str(work / "A.txt") in provenance["changed"]


@pytest.mark.usefixtures("large")
def test_a_large_file_that_changes_while_it_is_read_has_no_checksum(
    region: MakeRegion, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = region(data="A.txt")
    one.train(1.0)
    one.full_training()

    def read_and_write(path: Path) -> str:
        found = checksums_of(path)
        if path == work / "A.txt":
            in_place(path)
        return found

    checksums_of = checksums.compute_sha256
    monkeypatch.setattr(checksums, "compute_sha256", read_and_write)
    assert one.publish()["data"] == [{"path": str(work / "A.txt"), "sha256": None}]


def test_a_file_is_read_only_once_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[Path] = []

    def read(path: Path) -> str:
        reads.append(path)
        return sha256(path.read_bytes())

    monkeypatch.setattr(checksums, "compute_sha256", read)
    file, cache = tmp_path / "file", tmp_path / "cache"
    file.write_bytes(OLD)
    ours, theirs = Checksums(cache), Checksums(cache)
    assert ours.entry(file) == ours.entry(file) == theirs.entry(file)
    with cache.open("a") as torn:
        torn.write('\n{"path": "/da')
    Checksums(cache).entry(file)
    assert len(reads) == 1
    file.write_bytes(NEW)
    theirs.entry(file)
    ours.entry(file)
    Checksums(cache).entry(file)
    assert len(reads) == 2


def test_a_day_records_no_fingerprint_of_data_that_changed_during_the_run(
    region: MakeRegion, work: Path, tmp_path: Path
) -> None:
    def outcome() -> Any:
        day = datetime.now(UTC)
        attempt = Attempt(
            date=day.date(), attempt=1, run="r1", regions=("A",), started=day, deadline=None
        )
        settings = RunsDay(date=day.date(), settings={"A": "settings"})
        frozen = load_frozen(one.folder.study).model_copy(update={"day": settings})
        [found] = RunsEndings(attempt, one.folder, frozen).published_outcomes(one.run.status())
        return found

    for changes in (False, True):
        one = region(data="A.txt", run=f"r{changes}")
        one.train(1.0)
        if changes:
            in_place(work / "A.txt")
        one.full_training()
        one.publish()
        fingerprint = data_fingerprint(one.run.study, "A", Checksums(tmp_path / "cache"))
        expected = (None, None) if changes else (fingerprint, "settings")
        assert (outcome().fingerprint, outcome().settings) == expected


# -- S3 ----------------------------------------------------------------------------------------


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Client]:
    with moto_server() as address:
        yield s3_with_bucket(address, "ours", monkeypatch)


@pytest.mark.parametrize("versions", [True, False])
def test_an_object_in_s3_is_named_by_its_etag_and_version_until_it_is_replaced(
    region: MakeRegion, s3: S3Client, work: Path, *, versions: bool
) -> None:
    if versions:
        s3.put_bucket_versioning(Bucket="ours", VersioningConfiguration={"Status": "Enabled"})
    put = s3.put_object(Bucket="ours", Key="A.txt", Body=OLD)
    for name in ("id", "secret"):
        (work / name).write_text(name)
    keys = {"access_key_id_file": "id", "secret_access_key_file": "secret"}
    one = region(data="s3://ours/{region}.txt", s3=keys)
    [entry] = input_provenance.training_provenance(one.folder, "A", one.run.study)["data"]
    assert entry["etag"] == hashlib.md5(OLD, usedforsecurity=False).hexdigest()
    assert entry.get("version") == put.get("VersionId")
    s3.put_object(Bucket="ours", Key="A.txt", Body=NEW)
    found = input_provenance.training_provenance(one.folder, "A", one.run.study)
    assert found["data"] == [{"url": "s3://ours/A.txt"}]
    assert "s3://ours/A.txt" in found["changed"]


def test_an_s3_object_without_an_etag_is_named_only_by_its_url(
    region: MakeRegion, s3: S3Client, work: Path
) -> None:
    for name in ("id", "secret"):
        (work / name).write_text(name)
    keys = {"access_key_id_file": "id", "secret_access_key_file": "secret"}
    one = region(data="s3://ours/{region}.txt", s3=keys)
    found = input_provenance.training_provenance(one.folder, "A", one.run.study)
    assert found["data"] == [{"url": "s3://ours/A.txt"}]
    assert "changed" not in found
