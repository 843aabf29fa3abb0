"""A small storm, as `make storm` raises large ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.pool
@pytest.mark.timeout(900)  # a busy machine; some two minutes on a quiet one
def test_no_crash_leaves_a_run_stuck() -> None:
    storm = ["--kills", "30", "--seed", "1", "--regions", "4", "--trials", "4", "--mean", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.storm", *storm],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-2000:]}"
