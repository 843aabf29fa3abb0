"""The AWS account of a run's autoscaler: that of the run's planner, or none."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from tests.conftest import MakeRun
from tests.fleet.mock_aws.moto_account import ACCOUNT, HOME, Account, fleet
from tests.moto_server import moto_server
from trialfleet.errors import FleetError, InputError
from trialfleet.infra.fleet.aws import account
from trialfleet.infra.fleet.aws.account import SECRETS, AwsEnvironment
from trialfleet.infra.fleet.aws.clients import Aws
from trialfleet.infra.fleet.instances import inventory
from trialfleet.infra.fleet.scaling.last_report import read_report
from trialfleet.workflows.facts.run_folder.folder import RunFolder

KEYS = "[default]\naws_access_key_id = testing\naws_secret_access_key = testing\n"
OTHER = "999988887777"


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing is submitted here, so /tmp will do."""
    return tmp_path


@pytest.fixture
def shell(cloud: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The environment of a shell in which the keys are in files."""
    (tmp_path / "keys").write_text(KEYS)
    for name in SECRETS:
        monkeypatch.setenv(name, "")  # the same as none; moto wants to delete them itself
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "keys"))
    return monkeypatch


def test_the_account_settings_are_kept_without_secrets(
    shell: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shell.chdir(tmp_path)
    given = {
        "AWS_PROFILE": "nightly",
        "AWS_SHARED_CREDENTIALS_FILE": "keys",
        "AWS_ENDPOINT_URL_S3": "https://s3.example",
        "https_proxy": "http://me:secret@proxy:3128",
        "AWS_ACCESS_KEY_ID": "",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN": "t",
        "LANG": "C",
    }
    with mock.patch.dict(os.environ, given, clear=True):
        found = account.variables()
    assert found == {
        "AWS_PROFILE": "nightly",
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "keys"),
        "AWS_ENDPOINT_URL_S3": "https://s3.example",
        "https_proxy": "http://me:secret@proxy:3128",
    }


def test_keys_in_the_environment_alone_are_refused(shell: pytest.MonkeyPatch) -> None:
    shell.setenv("AWS_ACCESS_KEY_ID", "testing")
    shell.setenv("AWS_SECRET_ACCESS_KEY", "very-secret")
    assert account.snapshot(HOME).account == ACCOUNT  # the same account's are in the file
    shell.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    with pytest.raises(InputError) as refused:
        account.snapshot(HOME)
    text = str(refused.value)
    assert text.startswith("AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY: ")
    assert "it can't use AWS" in text
    assert "~/.aws/credentials" in text
    assert "very-secret" not in text


def test_a_run_with_an_autoscaled_fleet_cannot_be_planned_without_credentials(
    shell: pytest.MonkeyPatch, make_run: MakeRun
) -> None:
    shell.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    with pytest.raises(FleetError, match="no AWS credentials here"):
        make_run(fleet=FLEET)
    assert make_run(fleet=FLEET | {"autoscale": "off"})


FLEET = {"aws_regions": [HOME], "autoscale": "service"}


def test_a_run_records_the_account_that_its_autoscaler_uses(
    shell: pytest.MonkeyPatch, make_run: MakeRun, tmp_path: Path
) -> None:
    folder = RunFolder(make_run(fleet=FLEET).folder)
    assert stat.S_IMODE(folder.aws.stat().st_mode) == 0o600
    assert json.loads(folder.aws.read_text())["account"] == ACCOUNT
    shell.setenv("AWS_SHARED_CREDENTIALS_FILE", "/another/shell")
    aws = account.read(folder.aws).enter()
    assert inventory.instances(aws, fleet()) == []
    texts = [path.read_text() for path in folder.root.glob("*.sub")]
    assert not any(str(tmp_path / "keys") in text for text in texts)


@pytest.fixture
def server(work: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """AWS as another process sees it, by a profile that only this shell's variables lead to."""
    (work / "keys").write_text(KEYS.replace("default", "nightly"))
    (work / "config").write_text("[profile nightly]\n")
    for name in SECRETS:
        monkeypatch.delenv(name, raising=False)
    with moto_server() as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        monkeypatch.setenv("AWS_PROFILE", "nightly")
        monkeypatch.setenv("AWS_REGION", HOME)
        monkeypatch.setenv("AWS_CONFIG_FILE", str(work / "config"))
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(work / "keys"))
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield address


@pytest.mark.slow
@pytest.mark.usefixtures("server")
def test_the_graphs_autoscaler_finds_the_account_without_shell_variables(
    make_run: MakeRun, tmp_path: Path
) -> None:
    folder = RunFolder(make_run(fleet=FLEET).folder)
    job = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "CONDOR_CONFIG": "/nowhere"}
    with (tmp_path / "out").open("w") as out:
        command = [str(folder.root / "client"), "autoscale"]
        process = subprocess.Popen(command, env=job, stdout=out, stderr=out)
    deadline = time.monotonic() + 120
    while not (report := read_report(folder.fleet_state)) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.terminate()
    process.wait()
    said = (tmp_path / "out").read_text()
    assert report, said
    assert "AWS" not in said, "it lacks the pool alone"
    assert "HTCondor" in report["error"]


def test_credentials_of_another_account_are_refused(
    shell: pytest.MonkeyPatch,
) -> None:
    aws = AwsEnvironment(account=OTHER, variables={}).enter()
    for _ in range(2):
        with pytest.raises(FleetError) as refused:
            inventory.instances(aws, fleet())
    assert str(refused.value) == (
        f"the AWS credentials here belong to account {ACCOUNT}, but this fleet is in account "
        f"{OTHER}: use keys, a profile or a role of {OTHER}"
    )
    assert inventory.instances(Aws(account=ACCOUNT), fleet()) == []


@pytest.mark.parametrize("text", ["{", "[]", '{"account": "1"}', None])
def test_an_unreadable_account_file_is_reported(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "aws.json").write_text(text)
    with pytest.raises(InputError, match=r"can't read .*aws\.json .*plan the study again"):
        account.read(tmp_path / "aws.json")
