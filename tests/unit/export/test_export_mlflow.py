"""Models in MLflow: each exported once to a real server, even after kills; and logins."""

from __future__ import annotations

import hashlib
import json
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

from tests.conftest import MakeRun
from tests.ports import reserved_port
from tests.unit.export.exported_models import publish_models, publish_run
from tests.unit.study.study_texts import MINIMAL, error_of
from trialfleet.errors import ExportError
from trialfleet.workflows.control.export import mlflow_models
from trialfleet.workflows.control.export.export_pass import export_all
from trialfleet.workflows.control.export.mlflow_models import MlflowServer
from trialfleet.workflows.control.export.published_models import read_published
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
    done = server_of(tmp_path, uri).export(read_published(folder), None)
    assert done == ["r1: version 1 of demo.X1", "r2: version 2 of demo.X1", "champion is version 2"]
    assert server_of(tmp_path, uri).export(read_published(folder), None) == []
    shutil.rmtree(tmp_path / "records")  # lost: it is looked for
    assert len(server_of(tmp_path, uri).export(read_published(folder), None)) == 2
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
    assert server_of(tmp_path, uri).export(read_published(folder), None) == [
        "champion is version 1"
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("client")
def test_a_model_is_exported_with_its_data_commit_and_trials(
    uri: str, tmp_path: Path, make_run: MakeRun, work: Path
) -> None:
    from mlflow import MlflowClient

    there, data = MlflowClient(uri, uri), work / "A.csv"
    data.write_text("a,b\n")
    folder = publish_run(
        make_run(budget={"trials": 3, "lanes": 1}, data=["A.csv"], name=f"t-{tmp_path.name}")
    )
    done = server_of(tmp_path, uri, trials=True).export(read_published(folder), None)
    assert len(done) == 2
    shutil.rmtree(tmp_path / "records")
    server_of(tmp_path, uri, trials=True).export(read_published(folder), None)
    experiment = there.get_experiment_by_name(tmp_path.name)
    assert experiment
    runs = there.search_runs([experiment.experiment_id])
    [model] = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    [used] = model.inputs.dataset_inputs
    sha256 = hashlib.sha256(data.read_bytes()).hexdigest()
    assert (used.dataset.name, used.dataset.digest) == ("A.csv", sha256[:36])
    assert json.loads(used.dataset.source) == {"uri": str(data)}
    assert [(tag.key, tag.value) for tag in used.tags] == [("mlflow.data.context", "training")]
    source = json.loads((folder / "r1" / "provenance.json").read_text())["source"]
    assert model.data.tags["mlflow.source.git.commit"] == source["commit"]
    assert model.data.tags["trialfleet.git.dirty"] == str(source["dirty"])
    trials = {run.info.run_name: run for run in runs if run is not model}
    assert {name: run.info.status for name, run in trials.items()} == {
        "trial 0": "FINISHED",
        "trial 1": "FINISHED",
        "trial 2": "FAILED",
    }
    for run in trials.values():
        assert run.data.tags["mlflow.parentRunId"] == model.info.run_id
        assert 0 <= float(run.data.params["x"]) <= 1
    best = trials["trial 1"]
    assert best.data.metrics == {"loss": 1.0, "seconds": 0.5}
    curve = there.get_metric_history(best.info.run_id, "loss")
    assert [(point.step, point.value) for point in curve] == [(1, 2.0), (2, 1.5), (2, 1.0)]
    assert "can't be trained" in trials["trial 2"].data.tags["trialfleet.error"]


@pytest.mark.slow
@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("storage", ["gone", "damaged"])
def test_a_model_is_exported_without_trials_that_cannot_be_read(
    uri: str, tmp_path: Path, make_run: MakeRun, storage: str
) -> None:
    run = make_run(budget={"trials": 3, "lanes": 1}, name=f"{storage}-{tmp_path.name}")
    folder = publish_run(run)
    if storage == "gone":
        shutil.rmtree(run.folder)
    else:
        [database] = [path for path in run.folder.rglob("*.db") if path.is_file()]
        database.write_bytes(b"no database" * 1000)
    first, _ = server_of(tmp_path, uri, trials=True).export(read_published(folder), None)
    assert ", without its trials: " in first
    assert ("does not exist" in first) == (storage == "gone")


KILLED = """
import os, signal, sys
from pathlib import Path
import requests
from mlflow import MlflowClient
from trialfleet.workflows.control.export.mlflow_models import MlflowServer
from trialfleet.workflows.control.export.published_models import read_published
from trialfleet.workflows.study.export import Mlflow

folder, records, uri, moment = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4]
models, trials = int(sys.argv[5]), int(sys.argv[6])
name = folder.parent.name + "." + folder.name
settings = Mlflow(uri=uri, experiment=f"killed-{moment} {name}", trials=True)

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
    MlflowServer(settings, records).export(read_published(folder), None)
    os._exit(0)

kills = 0
while os.WIFSIGNALED(os.waitpid(os.fork() or export_and_die(kills + 1), 0)[1]):
    kills += 1
there = MlflowClient(uri, uri)
experiment = there.get_experiment_by_name(settings.experiment).experiment_id
runs = there.search_runs([experiment])
assert len(runs) == models + trials
assert not [run for run in runs if run.info.status == "RUNNING"]
versions = there.search_model_versions(f"name = '{name}'")
assert sorted(int(each.version) for each in versions) == [1, 2][:models], versions
assert int(there.get_model_version_by_alias(name, "champion").version) == models
print(kills)
"""


@pytest.mark.thorough
@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("moment", ["before", "after"])
def test_kill_9_at_any_request_makes_nothing_twice(uri: str, tmp_path: Path, moment: str) -> None:
    folder = publish_models(tmp_path, "r1", "r2", region=f"K-{moment}")
    assert count_kills(uri, tmp_path, moment, folder, models=2, trials=0) > 10


@pytest.mark.thorough
@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("moment", ["before", "after"])
def test_kill_9_at_any_request_makes_no_trial_twice(
    uri: str, tmp_path: Path, make_run: MakeRun, moment: str
) -> None:
    run = make_run(budget={"trials": 3, "lanes": 1}, name=f"killed-{moment}")
    folder = publish_run(run)
    assert count_kills(uri, tmp_path, moment, folder, models=1, trials=3) > 10


def count_kills(
    uri: str, tmp_path: Path, moment: str, folder: Path, *, models: int, trials: int
) -> int:
    """Return at how many requests an export was killed, each time going on where it was."""
    command = [sys.executable, "-c", KILLED, str(folder), str(tmp_path / "records"), uri, moment]
    command += [str(models), str(trials)]
    root = Path(__file__).parents[3]  # a test may have gone elsewhere
    done = subprocess.run(command, capture_output=True, text=True, cwd=root)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


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
def test_a_login_is_sent_and_never_written(
    refusing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "another's")  # of this shell, not of the study
    publish_models(tmp_path, "r1")
    (tmp_path / "password").write_text("hunter2\n")
    mlflow = Mlflow(uri=refusing, user="bob", password_file=str(tmp_path / "password"))
    folder = ExportFolder(tmp_path / "models" / "demo" / ".export")
    with folder.hold_lock(wait=True):
        [problem] = export_all(folder, Targets(export=Export(mlflow=mlflow)), print).values()
    assert _Refusing.heard[-1] == "Basic Ym9iOmh1bnRlcjI="  # bob:hunter2
    assert "401" in problem
    assert os.environ["MLFLOW_TRACKING_TOKEN"] == "another's"
    for path in folder.root.rglob("*"):
        assert path.is_dir() or b"hunter2" not in path.read_bytes()


@pytest.mark.usefixtures("client")
def test_an_unreachable_server_is_an_export_error_for_all_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasty = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "1", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    monkeypatch.setattr(mlflow_models, "_SETTINGS", mlflow_models._SETTINGS | hasty)
    published = read_published(publish_models(tmp_path, "r1"))
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
        ("{uri: 'https://bob:hunter2@mlflow.org'}", "contains a password"),
        ("{uri: 'sqlite:///x.db'}", "must be a URL such as"),
        ("{uri: 'http://m', user: bob}", "either password_file or password_env"),
        ("{uri: 'http://m', password_env: P}", "needs user"),
        ("{uri: 'http://m', token_env: A, token_file: b}", "must have only one of"),
        ("{uri: 'http://m', token_env: 'A B'}", "name of an environment variable"),
        ("{uri: 'http://m', url: x}", "unknown key"),
        ("{uri: 'http://m', token_file: nowhere}", "nowhere' does not exist"),
        ("http://m", "must be a table"),
    ],
)
def test_wrong_mlflow_settings_are_refused_without_showing_a_password(
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
        ("publish: s3://UPPER/x\n", "is not a folder"),
        ("publish: gs://bucket/x\n", "is not a folder"),
        ("publish: s3://bucket/a//b\n", "is not a folder"),
        (
            "publish: s3://bucket/a\nexport: {s3: 's3://b-b/c'}\n",
            "`publish` already names a place in S3",
        ),
        ("publish: none\nexport: {s3: 's3://b-b/c'}\n", "`publish` is `none`"),
    ],
)
def test_wrong_export_settings_are_refused(tmp_path: Path, text: str, message: str) -> None:
    assert message in error_of(tmp_path, MINIMAL + text)


def test_a_missing_mlflow_package_is_reported_when_the_study_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_settings, "NEEDED", "no_such_module")
    (tmp_path / "go.sh").touch()
    message = error_of(tmp_path, MINIMAL + "export: {mlflow: {uri: 'http://m'}}\n")
    assert "export.mlflow" in message
    assert "needs the package mlflow-skinny" in message
