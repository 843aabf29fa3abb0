from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FAILING = """
from tests.pool.watching import finished_trials

def test_passes_before(pool):
    pool.status()

def test_fails(pool, make_run, wait_for):
    run = make_run({"seconds": 0.0}, budget={"trials": 2, "lanes": 1})
    run.submit()
    wait_for(lambda: finished_trials(run) >= 1)
    assert not "this far"
"""


@pytest.fixture(scope="module")
def output(session_folder: Path) -> str:
    """Pytest's output of a test that fails on a pool of its own."""
    inner = session_folder / "inner"
    inner.mkdir()
    (inner / "conftest.py").write_text(
        "from tests.conftest import *\nfrom tests.pool.conftest import *\n"
    )
    (inner / "test_inner.py").write_text(FAILING)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", inner, inner],
        cwd=inner,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("log", "content"),
    [
        ("pool/log/MasterLog", "STARTING UP"),
        ("pool/log/SchedLog", "Negotiating"),
        ("pool/log/StartLog", "State change"),
        ("runs/r1/study.dag.dagman.out", "Submitting node"),
        ("regions/A/region.dag.dagman.out", "Submitting node"),
        ("regions/A/scripts.log", ""),
        ("runs/r1/service.log", ""),
    ],
)
def test_the_report_of_a_failure_ends_with_the_logs(output: str, log: str, content: str) -> None:
    sections = output.split("end of ")[1:]
    (found,) = [section for section in sections if section.partition(" ")[0].endswith(log)]
    assert content in found


def test_a_test_that_passes_shows_no_log(output: str) -> None:
    assert output.count("MasterLog ") == 1
