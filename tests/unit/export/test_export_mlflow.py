"""Models in MLflow: on a real server, once each, whatever is killed; and its logins."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.ports import reserved_port
from tests.unit.export.exported_models import publish_models
from tests.unit.study.study_texts import MINIMAL, error_of
from trialfleet.workflows.control.export import mlflow_server
from trialfleet.workflows.control.export.mlflow_server import MlflowServer
from trialfleet.workflows.control.export.passes import export_all
from trialfleet.workflows.control.export.published import ExportError, published_in
from trialfleet.workflows.control.models.latest import rollback
from trialfleet.workflows.facts.models.export_folder import ExportFolder, Targets
from trialfleet.workflows.study import export as export_settings
from trialfleet.workflows.study.export import Export, Mlflow


def server_of(tmp_path: Path, uri: str, **given: Any) -> MlflowServer:
    settings = Mlflow(uri=uri, experiment=tmp_path.name, **given)
    return MlflowServer(settings, tmp_path / "records")


@pytest.mark.slow
@pytest.mark.usefixtures("client")
def test_models_are_runs_and_versions_and_the_alias_follows_latest(
    uri: str, tmp_path: Path
) -> None:
    from mlflow import MlflowClient

    folder, there = publish_models(tmp_path, "r1", "r2", region="X1"), MlflowClient(uri, uri)
    done = server_of(tmp_path, uri).export(published_in(folder), None)
    assert done == ["r1: version 1 of demo.X1", "r2: version 2 of demo.X1", "champion is version 2"]
    assert server_of(tmp_path, uri).export(published_in(folder), None) == []
    shutil.rmtree(tmp_path / "records")  # lost: it is looked for
    assert len(server_of(tmp_path, uri).export(published_in(folder), None)) == 2
    version = there.get_model_version_by_alias("demo.X1", "champion")
    run = there.get_run(str(version.run_id))
    assert run.info.status == "FINISHED"
    assert run.data.params == {"learning_rate": "0.1", "optimizer": "sgd"}
    assert run.data.metrics == {"loss": 0.25}
    assert run.data.tags["trialfleet.model"] == "demo/X1/r2"
    assert run.data.tags["data.0"] == "/data/A.csv 5e884898"
    experiment = there.get_experiment_by_name(tmp_path.name)
    assert experiment
    assert len(there.search_runs([experiment.experiment_id])) == 2
    files = Path(there.download_artifacts(run.info.run_id, "model", str(tmp_path)))
    assert (files / "deep" / "weights").read_text() == "weights of r2"
    rollback(folder)
    assert server_of(tmp_path, uri).export(published_in(folder), None) == ["champion is version 1"]


KILLED = """
import os, signal, sys
from pathlib import Path
import requests
from mlflow import MlflowClient
from trialfleet.workflows.control.export.mlflow_server import MlflowServer
from trialfleet.workflows.control.export.published import published_in
from trialfleet.workflows.study.export import Mlflow

folder, records, uri, moment = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4]
settings = Mlflow(uri=uri, experiment="killed-" + moment)

def export_and_die(kill_at):
    calls, send = [], requests.Session.send
    def counted(*args, **kwargs):
        if moment == "after":
            answer = send(*args, **kwargs)
        calls.append(1)
        if len(calls) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer if moment == "after" else send(*args, **kwargs)
    requests.Session.send = counted
    MlflowServer(settings, records).export(published_in(folder), None)
    os._exit(0)

kills = 0
while os.WIFSIGNALED(os.waitpid(os.fork() or export_and_die(kills + 1), 0)[1]):
    kills += 1
there = MlflowClient(uri, uri)
experiment = there.get_experiment_by_name(settings.experiment).experiment_id
name = "demo." + folder.name
assert len(there.search_runs([experiment])) == 2
versions = there.search_model_versions(f"name = '{name}'")
assert sorted(int(each.version) for each in versions) == [1, 2], versions
assert int(there.get_model_version_by_alias(name, "champion").version) == 2
print(kills)
"""


@pytest.mark.thorough
@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("moment", ["before", "after"])
def test_kill_9_at_any_request_makes_nothing_twice(uri: str, tmp_path: Path, moment: str) -> None:
    folder = publish_models(tmp_path, "r1", "r2", region=f"K-{moment}")
    command = [sys.executable, "-c", KILLED, str(folder), str(tmp_path / "records"), uri, moment]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path.cwd())
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10


class _Refusing(BaseHTTPRequestHandler):
    """Answers 401 and notes who asked."""

    heard: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        self.heard.append(self.headers.get("Authorization"))
        body = b"who are you?"
        self.send_response(401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def refusing() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _Refusing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.usefixtures("client")
def test_a_login_is_sent_and_never_told(
    refusing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "another's")  # of this shell, not of the study
    publish_models(tmp_path, "r1")
    (tmp_path / "password").write_text("hunter2\n")
    mlflow = Mlflow(uri=refusing, user="bob", password_file=str(tmp_path / "password"))
    folder = ExportFolder(tmp_path / "models" / "demo" / ".export")
    with folder.alone(wait=True):
        [problem] = export_all(folder, Targets(export=Export(mlflow=mlflow)), print).values()
    assert _Refusing.heard[-1] == "Basic Ym9iOmh1bnRlcjI="  # bob:hunter2
    assert "401" in problem
    assert os.environ["MLFLOW_TRACKING_TOKEN"] == "another's"
    for path in folder.root.rglob("*"):
        assert path.is_dir() or b"hunter2" not in path.read_bytes()


@pytest.mark.usefixtures("client")
def test_a_server_that_is_away_or_never_answers_is_a_problem_for_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasty = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "1", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    monkeypatch.setattr(mlflow_server, "_SETTINGS", mlflow_server._SETTINGS | hasty)
    published = published_in(publish_models(tmp_path, "r1"))
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        for port in (silent.getsockname()[1], reserved_port()):
            server = server_of(tmp_path, f"http://127.0.0.1:{port}")
            for ask in (server.check, lambda to=server: to.export(published, None)):
                with pytest.raises(ExportError, match=r"127\.0\.0\.1") as caught:
                    ask()
                assert caught.value.is_of_all


# The study's key


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{uri: 'https://bob:hunter2@mlflow.org'}", "holds a password"),
        ("{uri: 'sqlite:///x.db'}", "must be a URL such as"),
        ("{uri: 'http://m', user: bob}", "password_file and password_env"),
        ("{uri: 'http://m', password_env: P}", "needs user"),
        ("{uri: 'http://m', token_env: A, token_file: b}", "one token"),
        ("{uri: 'http://m', token_env: 'A B'}", "name of an environment variable"),
        ("{uri: 'http://m', url: x}", "unknown key"),
        ("{uri: 'http://m', token_file: nowhere}", "nowhere' does not exist"),
        ("http://m", "must be a table"),
    ],
)
def test_what_is_wrong_with_mlflow_is_said_without_a_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, message: str
) -> None:
    monkeypatch.setattr(export_settings, "NEEDED", "json")  # installed or not
    (tmp_path / "go.sh").touch()
    text = error_of(tmp_path, MINIMAL + f"export: {{mlflow: {value}}}\n")
    assert message in text
    assert "hunter2" not in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("export: {}\n", "needs s3, mlflow or both"),
        ("export: {s3: http://x}\n", "must be s3://BUCKET"),
        ("publish: s3://UPPER/x\n", "is no folder"),
        ("publish: gs://bucket/x\n", "is no folder"),
        ("publish: s3://bucket/a//b\n", "is no folder"),
        ("publish: s3://bucket/a\nexport: {s3: 's3://b-b/c'}\n", "is in publish already"),
        ("publish: none\nexport: {s3: 's3://b-b/c'}\n", "publish is none"),
    ],
)
def test_what_is_wrong_with_an_export(tmp_path: Path, text: str, message: str) -> None:
    assert message in error_of(tmp_path, MINIMAL + text)


def test_a_missing_package_is_told_when_the_study_is_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_settings, "NEEDED", "no_such_module")
    (tmp_path / "go.sh").touch()
    message = error_of(tmp_path, MINIMAL + "export: {mlflow: {uri: 'http://m'}}\n")
    assert "export.mlflow" in message
    assert "needs the package mlflow-skinny" in message
