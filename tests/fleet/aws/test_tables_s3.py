"""Tables whose data is an s3:// URL: examined before any job, as files are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fleet.mock_aws.moto_account import HOME, Account
from trialfleet.errors import InputError
from trialfleet.files import read_json
from trialfleet.workflows.control.plan.run_folder_writer import write_plan
from trialfleet.workflows.facts.run_folder.folder import RegionFolder
from trialfleet.workflows.study.spec import Study

ROWS = "y,n\n" + "".join(f"{'ab'[i % 2]},{i % 7}\n" for i in range(40))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for runs. Nothing is submitted here, so /tmp will do."""
    for name in ("id", "secret"):
        (tmp_path / name).write_text("testing\n")
    return tmp_path


def planned(place: Path, **changes: Any) -> RegionFolder:
    values = {
        "name": "churn",
        "regions": ["São Paulo"],
        "data": "s3://users/rows/{region}.csv",
        "s3": {"access_key_id_file": "id", "secret_access_key_file": "secret"},
        "trainer": "tabular",
        "target": "y",
        "objective": {"metric": "val_auc", "direction": "maximize"},
        "search_space": {"hidden": {"type": "int", "low": 8, "high": 64}},
        "accelerator": "cpu",
        **changes,
    }
    study = Study.model_validate(values).resolve(place)
    folder = write_plan(study, run="r1", out=place / "runs" / "r1")
    [region] = folder.regions.iterdir()
    return RegionFolder(region)


def test_an_object_is_examined_and_its_temporary_copy_deleted(cloud: Account, place: Path) -> None:
    s3 = cloud.client("s3", HOME)
    where = {"LocationConstraint": HOME}
    s3.create_bucket(Bucket="users", CreateBucketConfiguration=where)
    s3.put_object(Bucket="users", Key="rows/São Paulo.csv", Body=ROWS.encode())
    region = planned(place)
    assert region.table.exists()
    noted = read_json(region.table_found)
    assert noted["table"]["parts"] == {"train": 28, "validation": 6, "test": 6}
    [source] = noted["source"]
    assert (source["url"], source["bytes"]) == ("s3://users/rows/S%C3%A3o%20Paulo.csv", len(ROWS))
    assert sorted(path.name for path in region.root.iterdir() if path.name.startswith(".")) == []


def test_a_missing_object_is_reported_with_its_url(cloud: Account, place: Path) -> None:
    where = {"LocationConstraint": HOME}
    cloud.client("s3", HOME).create_bucket(Bucket="users", CreateBucketConfiguration=where)
    with pytest.raises(
        InputError, match=r"^data: s3://users/rows/S%C3%A3o%20Paulo\.csv: there is no suc"
    ):
        planned(place)
    assert [*(place / "runs").iterdir()] == []


def test_an_unreachable_s3_is_reported(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    with pytest.raises(InputError, match="S3 can't be reached from here"):
        planned(place)
