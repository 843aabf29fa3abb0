"""The gate on a real pool: a day's new model against the current one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import MakeRun
from tests.pool.watching import WaitFor, assert_exactly_once, dagmans
from trialfleet import Run, RunState, promote
from trialfleet.files import read_json
from trialfleet.workflows.facts.dagman import job_queue
from trialfleet.workflows.facts.run_folder.folder import RunFolder

pytestmark = pytest.mark.usefixtures("pool")

SMALL = {"trials": 2, "lanes": 2}
TUNED = {"x": {"type": "float", "low": 0.29, "high": 0.31}}  # the optimum is in its middle
WORSE = {"x": {"type": "float", "low": 0.9, "high": 1.0}}


def day(
    make_run: MakeRun,
    number: int,
    params: dict[str, Any] | None = None,
    *,
    approve: bool = False,
    **budget: Any,
) -> Run:
    gate = {"approve": approve}
    run = make_run(params, run=f"day{number}", budget=SMALL | budget, gate=gate)
    run.submit()
    return run


def ended(run: Run) -> dict[str, object]:
    """Wait for a run's end; return the verdict on its region."""
    status = run.wait()
    assert status.state is RunState.DONE, status
    assert_exactly_once(run, 2)
    verdict: dict[str, object] = read_json(RunFolder(run.folder).region("A").verdict)
    return verdict


def latest(run: Run) -> str:
    return (Path(run.study.publish) / "demo" / "A" / "latest").readlink().name


def test_the_gate_promotes_a_first_or_better_model_and_no_other(make_run: MakeRun) -> None:
    first = day(make_run, 1)
    assert (ended(first)["verdict"], latest(first)) == ("promoted", "day1")

    worse = day(make_run, 2, WORSE)
    assert (ended(worse)["verdict"], latest(worse)) == ("kept", "day1")
    assert not RunFolder(worse.folder).region("A").gate.log.exists()  # a lane's job measured
    region = worse.status().regions[0]
    assert Path(region.published or "").name == "day2"  # in the models folder all the same
    assert region.not_latest
    kept = "kept the current model (run day1) instead of this one"
    assert region.not_latest.startswith(f"{kept}: loss ")
    assert "trialfleet promote" in region.not_latest
    assert kept in worse.report.read_text()

    better = day(make_run, 3, TUNED)
    assert (ended(better)["verdict"], latest(better)) == ("promoted", "day3")

    broken = day(make_run, 4, TUNED | {"evaluate_mood": "fails"})
    verdict = ended(broken)
    assert (verdict["verdict"], latest(broken)) == ("kept", "day3")
    assert "the gate's job failed: exit code 1: I always fail; see" in str(verdict["why"])
    assert RunFolder(broken.folder).region("A").gate.log.exists()


@pytest.mark.thorough
def test_a_model_that_passed_the_gate_waits_for_approval(
    make_run: MakeRun,
) -> None:
    first = day(make_run, 1, WORSE)
    assert (ended(first)["verdict"], latest(first)) == ("promoted", "day1")
    for number in (2, 3):
        waiting = day(make_run, number, TUNED, approve=True)
        verdict = ended(waiting)
        assert (verdict["verdict"], latest(waiting)) == ("promoted", "day1")
        assert verdict["champion"]["run"] == "day1"  # type: ignore[index]
        region = waiting.status().regions[0]
        assert (region.stage, bool(region.awaits_approval)) == ("kept", True)
    [switch] = promote(region.published or "", why="looked at it")
    assert (switch.run, switch.previous, latest(waiting)) == ("day3", "day1", "day3")
    assert waiting.status().regions[0].stage == "published"


@pytest.mark.thorough
def test_a_gate_survives_kills_of_every_dagman(
    make_run: MakeRun, work: Path, wait_for: WaitFor
) -> None:
    ended(day(make_run, 1))
    (gate := work / "gate").mkdir()
    for node in ("A.l1.t01", "A.l2.t01", "A.best"):
        (gate / node).touch()
    run = day(make_run, 2, WORSE | {"gate": str(gate)}, trials_per_job=1)
    wait_for(lambda: set(job_queue.look_up(RunFolder(run.folder)).running) == {"A.gate"})
    assert run.status().regions[0].stage == "gating"
    victims = dagmans(run)
    for process in victims:
        process.kill()
    wait_for(lambda: len(dagmans(run)) == len(victims))
    (gate / "A.gate").touch()
    assert (ended(run)["verdict"], latest(run)) == ("kept", "day1")
    assert run.status().repairs == ()


def write_rows(path: Path, *, shuffled: bool) -> None:
    late = [i % 7 + 3 * (i % 2) > 4 for i in range(600)]
    if shuffled:
        late = np.random.default_rng(0).permutation(late).tolist()
    rows = [f"{'ab'[i % 2]},{i % 7},{'yes' if late[i] else 'no'}" for i in range(600)]
    path.write_text("\n".join(["kind,number,late", *rows]) + "\n")


@pytest.mark.thorough
def test_a_model_of_shuffled_labels_does_not_become_the_current_model(
    make_run: MakeRun, work: Path
) -> None:
    study: dict[str, Any] = {
        "data": "rows.csv",
        "trainer": "tabular",
        "target": "late",
        "table": {"columns": {"number": "numeric"}},
        "objective": {"metric": "val_auc", "direction": "maximize"},
        "search_space": {
            "learning_rate": {"type": "float", "low": 1.0e-3, "high": 0.1, "default": 0.01},
            "epochs": 5,
        },
        "resources": {"memory": "1GB", "disk": "200MB"},
        "budget": {"trials": 1, "lanes": 1},
        "gate": {},
    }
    for number, shuffled in ((1, False), (2, True), (3, False)):
        write_rows(work / "rows.csv", shuffled=shuffled)
        run = make_run(run=f"day{number}", **study)
        run.submit()
        assert run.wait().state is RunState.DONE
        verdict = read_json(RunFolder(run.folder).region("A").verdict)
        assert verdict["verdict"] == ("kept" if shuffled else "promoted"), verdict
        assert latest(run) == ("day1" if shuffled else f"day{number}")
        if number > 1:
            assert verdict["interval"]
            assert verdict["champion"]["run"] == "day1"
