"""A real MLflow server for the tests of exports.

The client is mlflow-skinny, with pandas to load models by. The server is the package mlflow, which
is large, so that CI has none:

    python3 -m venv build/mlflow && build/mlflow/bin/pip install mlflow
    .venv/bin/pip install mlflow-skinny pandas
    export TRIALFLEET_MLFLOW=build/mlflow/bin/mlflow
    .venv/bin/pytest tests/unit/export
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator

import pytest

from tests.ports import reserved_port

PROGRAM = shutil.which(os.environ.get("TRIALFLEET_MLFLOW", "mlflow-server-is-not-installed"))
START_SECONDS = 120


@pytest.fixture
def client() -> None:
    pytest.importorskip("mlflow", reason="mlflow-skinny is not installed")


@pytest.fixture(scope="session")
def uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if PROGRAM is None:
        pytest.skip("TRIALFLEET_MLFLOW names no mlflow program")
    folder, port = tmp_path_factory.mktemp("mlflow"), reserved_port()
    command = [PROGRAM, "server", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder}/server.db"]
    command += ["--artifacts-destination", str(folder / "artifacts")]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            command, stdout=log, stderr=log, cwd=folder, start_new_session=True
        )
    uri = f"http://127.0.0.1:{port}"
    end = time.monotonic() + START_SECONDS
    while not answers(uri):
        assert server.poll() is None, (folder / "log").read_text()
        assert time.monotonic() < end, (folder / "log").read_text()
        time.sleep(0.5)
    yield uri
    os.killpg(server.pid, 15)
    server.wait()


def answers(uri: str) -> bool:
    try:
        with urllib.request.urlopen(f"{uri}/health", timeout=5) as answer:  # noqa: S310
            return bool(answer.status == 200)
    except OSError:
        return False
