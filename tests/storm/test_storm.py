"""Small storms; `make storm` runs large ones."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fleet.lab.namespaces import why_none
from tests.storm import clock
from tests.storm.ledger import Times, begun_again, read_ledger, trained_again
from tests.storm.matrix import PHASES
from tests.storm.moments import VICTIMS
from tests.storm.words import Word

REPOSITORY = Path(__file__).parents[2]
# Prints the time of day, the apparent age of a file, and the duration of a wait.
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
    storm("--kills", "15", "--seed", "1", "--regions", "2", "--trials", "4", "--mean", "1")


@pytest.mark.pool
@pytest.mark.thorough
@pytest.mark.timeout(2400)
def test_a_lane_survives_a_kill_at_any_moment_of_its_messages() -> None:
    found = storm("--moments")
    assert isinstance(found["seconds"], dict)
    hit = {kind for row in found["seconds"].values() for kind, cell in row.items() if cell != "-"}
    assert hit == set(VICTIMS)


DAEMONS = {"master", "collector", "negotiator", "schedd", "startd", "shared port", "procd"}
ALWAYS_THERE = DAEMONS | {"dagman", "supervisor", "service"}  # of a run's processes
RUNNING = {"dagman of a region", "shadow", "starter", "agent", "trainer"}
ALSO_THERE = {
    "asking": {"script"},  # that clears the way of the region, whose DAGMan comes after it
    "first trials": RUNNING,
    "last trial": RUNNING,
    "best": RUNNING,
    "publish": {"dagman of a region", "publish"},
    "report": {"report"},
}


@pytest.mark.pool
@pytest.mark.thorough
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("phase", PHASES)
def test_a_kill_in_any_phase_of_a_region_is_repaired_within_a_minute(phase: str) -> None:
    found = storm("--matrix", "--phase", phase)
    assert isinstance(found["seconds"], dict)
    killed = {kind for kind, seconds in found["seconds"][phase].items() if seconds != "-"}
    assert killed >= ALWAYS_THERE | ALSO_THERE[phase]


@pytest.mark.pool
@pytest.mark.thorough
@pytest.mark.timeout(1200)
def test_no_clock_change_leaves_a_run_stuck() -> None:
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
def test_no_lost_or_disconnected_machine_leaves_a_run_stuck() -> None:
    size = ("--regions", "2", "--trials", "3", "--mean", "8")
    storm("--lab", "--kills", "6", "--seed", "1", *size)


def test_a_trial_that_begins_after_a_success_counts_as_trained_again() -> None:
    lines = [
        "008 (012.000.000) 2026-11-25 09:18:24.310 trialfleet: A.l1.t1 begins",
        "008 (012.000.000) 2026-11-25 09:18:25.310 trialfleet: A.l1.t1 ends code=-9 cpu=1.0",
        "008 (012.000.000) 2026-11-25 09:18:26.310 trialfleet: A.l1.t1 begins",
        "008 (012.000.000) 2026-11-25 09:18:27.310 trialfleet: A.l1.t1 ends code=0 cpu=1.0",
        "008 (012.000.000) 2026-11-25 09:18:27.310 trialfleet: A.l1.t2 begins",
    ]
    assert begun_again("\n".join(lines)) == set()
    again = lines[0].replace("012", "013")
    assert begun_again("\n".join([*lines, again])) == {"A.l1.t1"}


def test_a_training_whose_result_had_arrived_is_counted_as_useless(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    ledger.write_text(
        "".join(
            json.dumps({"time": time, "region": "A", "trial": trial, "what": what}) + "\n"
            for time, trial, what in [
                *((1.0, "t1", "begins"), (2.0, "t1", "ends"), (4.0, "t1", "begins")),
                *((1.0, "t2", "begins"), (2.0, "t2", "ends"), (4.0, "t2", "begins")),
                *((1.0, "t3", "begins"), (4.0, "t3", "begins"), (5.0, "t3", "ends")),
                *((1.0, "t4", "begins"), (2.0, "t4", "ends")),
            ]
        )
    )
    codes = {1: None, 2: 0, 3: -9, 4: 0}
    words = [
        *(Word(3.0, "arrived", "A", "A.l1", "1.0", f"t{n}", code) for n, code in codes.items()),
        Word(3.1, "told", "A", "A.l1", "1.0", "t1"),
        Word(3.1, "told", "A", "A.l1", "1.0", "t3", -9),
        Word(3.1, "told", "A", "A.l1", "1.0", "t4"),
    ]
    found = read_ledger(ledger)
    assert found["A", "t1"] == Times(begins=[1.0, 4.0], ends=[2.0])
    assert trained_again(found, words) == {("A", "t1"), ("A", "t2")}


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_a_wrong_clock_also_applies_to_file_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, library = tmp_path / "clock", tmp_path / "wrong_clock.so"
    clock.make(file, library)
    monkeypatch.setenv(clock.FILE, str(file))
    before, after = tmp_path / "before", tmp_path / "after"
    before.touch()
    time.sleep(2)  # the clock is set to whole seconds
    clock.Clock().set(600)
    time.sleep(0.1)  # a file is stamped by the last tick, perhaps of the second before
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
