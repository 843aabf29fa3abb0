"""`trialfleet dashboard`: the real optuna-dashboard, asked over HTTP, on a copy of a study."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import optuna
import pytest
from click.testing import CliRunner
from optuna.storages import BaseStorage
from optuna.trial import create_trial

from tests.conftest import MakeRun
from trialfleet import Run
from trialfleet.optimizer.storage import close_storage, open_storage
from trialfleet.optimizer.storage_url import sqlite_url
from trialfleet.workflows.cli.main import main

pytestmark = pytest.mark.slow


TRIALFLEET = Path(sys.executable).with_name("trialfleet")


@pytest.fixture
def run(make_run: MakeRun) -> Run:
    return make_run()


@pytest.fixture
def storage(run: Run) -> Iterator[BaseStorage]:
    """The run's storage, with one trial in it."""
    opened = open_storage(sqlite_url(run.folder / "study.db"))
    opened.create_new_study([optuna.study.StudyDirection.MINIMIZE], "demo/r1/A")
    add(opened, 0.5)
    yield opened
    close_storage(opened)


def add(storage: BaseStorage, value: float) -> None:
    storage.create_new_trial(1, create_trial(value=value))


def request_json(url: str, path: str, method: str = "GET", sent: Any = None) -> Any:
    body = None if sent is None else json.dumps(sent).encode()
    where = Request(url.removesuffix("/dashboard") + path, body, method=method)  # noqa: S310
    where.add_header("Content-Type", "application/json")
    with urlopen(where, timeout=60) as answer:  # noqa: S310
        return json.loads(answer.read() or "null")


def values(url: str) -> list[float]:
    return [trial["values"][0] for trial in request_json(url, "/api/studies/1?after=0")["trials"]]


@pytest.mark.parametrize("command", [["dashboard"], ["serve", "--port", "0", "--dashboard"]])
def test_no_copy_is_left_behind(
    run: Run, storage: BaseStorage, tmp_path: Path, command: list[str]
) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    before = set(tmp_path.iterdir())
    shown = subprocess.Popen(
        [TRIALFLEET, *command, run.folder], stdout=subprocess.PIPE, env=environment, text=True
    )
    with shown:
        try:
            assert shown.stdout is not None
            assert any("http://" in line for line in iter(shown.stdout.readline, ""))
            assert any("trialfleet-dashboard-" in path.name for path in tmp_path.iterdir())
            shown.send_signal(signal.SIGTERM)
            assert shown.wait(60) == 0
            left = {path for path in tmp_path.iterdir() if "dashboard" in path.name}
            assert left <= before
        finally:
            shown.kill()


def test_the_real_dashboard_shows_a_copy_that_follows_the_run(
    run: Run, storage: BaseStorage, tmp_path: Path, wait_for: Callable[..., None]
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    shown = subprocess.Popen(
        [TRIALFLEET, "dashboard", run.folder],
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1"},
        text=True,
    )
    with shown:
        try:
            assert shown.stdout is not None
            line = shown.stdout.readline()
            found = re.match(r"(http://127\.0\.0\.1:\d+/dashboard) ", line)
            assert found, line
            url = found[1]
            with urlopen(url) as page:  # noqa: S310
                assert b"<title>Optuna Dashboard</title>" in page.read()
            (study,) = request_json(url, "/api/studies")["study_summaries"]
            assert study["study_name"] == "demo/r1/A"
            assert values(url) == [0.5]
            add(storage, 0.25)
            wait_for(lambda: values(url) == [0.5, 0.25])
            request_json(url, "/api/studies/1/note", "PUT", {"body": "seen", "version": 1})
            assert request_json(url, "/api/studies/1")["note"]["body"] == "seen"
            request_json(url, "/api/studies/1", "DELETE")  # a person may do that there
            assert request_json(url, "/api/studies")["study_summaries"] == []
            assert len(storage.get_all_trials(1)) == 2
            shown.send_signal(signal.SIGINT)
            assert shown.wait(60) == 0
            assert list(temporary.iterdir()) == []
        finally:
            shown.kill()


def test_dashboard_refuses_a_run_without_trials(run: Run) -> None:
    result = CliRunner().invoke(main, ["dashboard", str(run.folder)])
    assert result.exit_code == 2
    assert "has no trials yet" in result.stderr


def test_a_missing_dashboard_package_is_named_with_its_pip_command(
    run: Run, storage: BaseStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna_dashboard", None)
    result = CliRunner().invoke(main, ["dashboard", str(run.folder)])
    assert result.exit_code == 2
    assert f"{sys.executable} -m pip install optuna-dashboard" in result.stderr


def test_help_and_docs_name_the_same_package_as_the_error() -> None:
    """Trialfleet itself is on no package index, so no extra of it can be installed from one."""
    page = (Path(__file__).parents[3] / "docs" / "status.md").read_text(encoding="utf-8")
    for text in (page, CliRunner().invoke(main, ["dashboard", "--help"]).output):
        assert "python3 -m pip install optuna-dashboard" in " ".join(text.split())
        assert "trialfleet[" not in text


def test_a_port_in_use_is_reported(run: Run, storage: BaseStorage) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = CliRunner().invoke(main, ["dashboard", str(run.folder), "--port", port])
    assert result.exit_code == 2
    assert f"port {port} of 127.0.0.1 can't be used" in result.stderr
    assert "--port 0 takes any free port" in result.stderr
