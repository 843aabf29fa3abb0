"""Small storms, as `make storm` raises large ones."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.fleet.lab.namespaces import why_none
from tests.storm import clock
from tests.storm.audit import Audit
from tests.storm.matrix import PHASES

REPOSITORY = Path(__file__).parents[2]
# Prints what the time of day is, how old a file seems to be, and how long a wait was.
LOOK = """
import os, sys, time
began = time.monotonic()
time.sleep(0.5)
print(time.time(), time.time() - os.stat(sys.argv[1]).st_mtime, time.monotonic() - began)
"""


def storm(*arguments: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.storm", *arguments, "--json"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-2000:]}"
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.pool
@pytest.mark.timeout(900)  # a busy machine; some two minutes on a quiet one
def test_no_crash_leaves_a_run_stuck() -> None:
    storm("--kills", "30", "--seed", "1", "--regions", "4", "--trials", "4", "--mean", "1")


DAEMONS = {"master", "collector", "negotiator", "schedd", "startd", "shared port", "procd"}
ALWAYS_THERE = DAEMONS | {"dagman", "supervisor", "service"}  # of a run's processes
ALSO_THERE = {
    "asking": {"script"},  # that clears the way of the region, whose DAGMan comes after it
    "first trials": {"dagman of a region", "shadow", "starter", "trainer"},
    "last trial": {"dagman of a region", "shadow", "starter", "trainer"},
    "best": {"dagman of a region", "shadow", "starter", "trainer"},
    "publish": {"dagman of a region", "publish"},
    "report": {"report"},
}


@pytest.mark.pool
@pytest.mark.thorough
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("phase", PHASES)
def test_whatever_dies_in_a_phase_of_a_region_all_runs_again_within_a_minute(phase: str) -> None:
    found = storm("--matrix", "--phase", phase)
    assert isinstance(found["seconds"], dict)
    killed = {kind for kind, seconds in found["seconds"][phase].items() if seconds != "-"}
    assert killed >= ALWAYS_THERE | ALSO_THERE[phase]


@pytest.mark.pool
@pytest.mark.thorough
@pytest.mark.timeout(1200)
def test_no_clock_that_is_set_leaves_a_run_stuck() -> None:
    size = ("--regions", "4", "--trials", "6", "--mean", "3")
    found = storm("--kills", "10", "--seed", "4", "--clocks", "0.5", *size)
    events, left_out = found["events"], found["left_out"]
    assert isinstance(events, dict)
    assert isinstance(left_out, list)
    assert events.get("clock") or any("clock" in event for event in left_out)


@pytest.mark.pool
@pytest.mark.thorough
@pytest.mark.timeout(1200)
def test_no_crash_loses_a_trial_that_is_stopped_early() -> None:
    size = ("--regions", "3", "--trials", "8", "--mean", "6")
    found = storm("--stopping", "--kills", "15", "--seed", "5", *size)
    assert isinstance(found["stopped"], int)
    assert found["stopped"] > 0


@pytest.mark.fleet
@pytest.mark.thorough
@pytest.mark.timeout(1800)
@pytest.mark.skipif(bool(why_none()), reason=f"no lab: {why_none()}")
def test_no_cut_and_no_lost_machine_leaves_a_run_stuck() -> None:
    size = ("--regions", "2", "--trials", "3", "--mean", "8")
    storm("--lab", "--kills", "6", "--seed", "1", *size)


def test_an_audit_is_told_as_json_and_added_up() -> None:
    one, sum_of_two = Audit(runs=1, mends=Counter({"kick: silent": 2})), Audit(lost=1)
    for _ in range(2):
        sum_of_two.merge(json.loads(json.dumps(one.to_json())))
    assert (sum_of_two.lost, sum_of_two.runs) == (1, 2)
    assert sum_of_two.mends == {"kick: silent": 4}


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_a_wrong_clock_is_wrong_for_files_as_a_machines_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, library = tmp_path / "clock", tmp_path / "wrong_clock.so"
    clock.make(file, library)
    monkeypatch.setenv(clock.FILE, str(file))
    before, after = tmp_path / "before", tmp_path / "after"
    before.touch()
    time.sleep(2)  # the clock is set to whole seconds
    clock.Clock().set(600)
    after.touch()
    ages = {}
    for place in (before, after):
        result = subprocess.run(
            [sys.executable, "-c", LOOK, place],
            env={**os.environ, "LD_PRELOAD": str(library)},
            capture_output=True,
            text=True,
            check=True,
        )
        now, ages[place], waited = map(float, result.stdout.split())
        assert now == pytest.approx(time.time() + 600, abs=60)  # a busy machine
        assert 0.5 <= waited < 60
    assert ages[before] > 600
    assert ages[after] < 60
