"""Exports on a real pool: regions publish while S3 is away, and it gets their models later."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from tests.conftest import MakeRun
from tests.pool.watching import WaitFor, programs_of
from tests.ports import reserved_port
from trialfleet import RunState

pytestmark = pytest.mark.usefixtures("pool")


def pointer() -> Any:
    client = boto3.client("s3")
    try:
        body = client.get_object(Bucket="our-models", Key="demo/A/latest.json")["Body"]
    except client.exceptions.NoSuchKey:
        return None
    return json.loads(body.read())["run"]


@pytest.mark.thorough
def test_a_model_is_published_without_s3_and_exported_once_s3_answers(
    make_run: MakeRun, work: Path, wait_for: WaitFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, keys = reserved_port(), work / "credentials"
    keys.write_text("[default]\naws_access_key_id = id\naws_secret_access_key = hunter2hunter2\n")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(keys))
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    run = make_run(publish="s3://our-models")
    run.submit()
    wait_for(lambda: programs_of(run.folder, "export"))
    programs_of(run.folder, "export")[0].kill()  # the supervisor starts another
    assert run.wait().state is RunState.DONE
    assert (work / "models" / "demo" / "A" / "latest" / "provenance.json").exists()
    wait_for(lambda: any("export to s3://our-models" in each for each in run.status().troubles))
    server = ThreadedMotoServer("127.0.0.1", port, verbose=False)
    server.start()
    try:
        boto3.client("s3").create_bucket(Bucket="our-models")
        wait_for(lambda: pointer() == "r1")
        wait_for(lambda: not programs_of(run.folder, "export"))
    finally:
        server.stop()
    assert not run.status().troubles
    for path in run.folder.rglob("*"):
        assert not path.is_file() or b"hunter2" not in path.read_bytes()
