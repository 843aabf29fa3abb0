"""A test run that is killed, or interrupted until it ends, leaves no pool behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pool.guard import ROOT
from trialfleet.infra.pool import processes

WAITING = """
import time
from pathlib import Path

def test_waits(pool, manager):
    Path(TOLD).write_text(str(pool.folder.parent))
    time.sleep(600)
"""


@pytest.mark.parametrize(
    "signals",
    [[signal.SIGKILL], pytest.param([signal.SIGINT, signal.SIGINT], marks=pytest.mark.thorough)],
)
def test_a_test_run_that_dies_leaves_no_pool(
    work: Path, wait_for: Callable[..., None], signals: list[signal.Signals]
) -> None:
    (work / "conftest.py").write_text(
        "from tests.conftest import *\nfrom tests.pool.conftest import *\n"
    )
    marker = work / "told"
    (work / "test_inner.py").write_text(WAITING.replace("TOLD", repr(str(marker))))
    inner = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", work, work],
        cwd=work,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
    )
    try:
        wait_for(lambda: marker.exists() and marker.read_text())
        folder = marker.read_text()
        assert living_in(folder)
        for number in signals:
            inner.send_signal(number)
        inner.wait(60)
        wait_for(lambda: not living_in(folder) and not Path(folder).exists())
    finally:
        inner.kill()
        inner.wait()


def living_in(folder: str) -> list[processes.Process]:
    """Return processes of pools whose configuration is in a folder."""
    begin = f"CONDOR_CONFIG={folder}/"
    return [
        process
        for process in processes.list_processes()
        if any(entry.startswith(begin) for entry in process.environment)
    ]
