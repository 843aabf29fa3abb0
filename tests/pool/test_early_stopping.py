"""Trials that are stopped early, on a real pool: by chirp, with any trainer."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeRun
from tests.pool.watching import WaitFor, services
from trialfleet import Run, RunState
from trialfleet.workflows.facts.run_folder.folder import RunFolder

TRAINERS = Path(__file__).parent / "trainers"
BAD = 0.6  # a larger x waits for the order to stop
A_JOB_EACH = {"trials": 8, "lanes": 4, "trials_per_job": 1}  # a trial's order stays where it is
SETTINGS = {"min_steps": 4, "max_steps": 30, "startup_trials": 2, "grace_seconds": 3}


def curves(
    make_run: MakeRun,
    mood: str = "listens",
    *,
    trainer: str = "curve.py",
    program: str = "python3",
    **changes: Any,
) -> Run:
    study: dict[str, Any] = {
        "trainer": {"command": [program, trainer], "files": [str(TRAINERS / trainer)]},
        "budget": {"trials": 8, "lanes": 4},
        "early_stopping": SETTINGS,
    }
    return make_run({"mood": mood, **changes.pop("params", {})}, **(study | changes))


def assert_bad_ones_were_stopped(run: Run) -> None:
    """Check that each trial was recorded once, and only those that wait for it were stopped."""
    trials = run.trials("A")
    assert [trial.trial for trial in trials] == list(range(8))
    for trial in trials:
        right = (trial.params["x"] - 0.3) ** 2 + 1 / 30
        assert trial.attempts == 1
        if trial.params["x"] > BAD:
            assert trial.state == "stopped early"
            assert trial.value is None
            assert trial.predicted == pytest.approx(right, abs=0.1)
        else:
            assert trial.state == "complete"
            assert trial.value == pytest.approx(right, abs=1e-4)  # awk has six digits
            assert trial.predicted is None
    states = [trial.state.value for trial in trials]
    assert states.count("stopped early") >= 2
    (best,) = run.best()
    assert best.value == min(trial.value for trial in trials if trial.value is not None)
    (region,) = run.status().regions
    assert (region.stopped_early, region.pruned) == (states.count("stopped early"), 0)
    assert region.finished == 8


@pytest.mark.usefixtures("pool")
def test_trials_that_would_not_become_the_best_are_stopped_early(make_run: MakeRun) -> None:
    run = curves(make_run)
    run.submit()
    assert run.wait().state is RunState.DONE
    assert_bad_ones_were_stopped(run)
    stopped = next(trial for trial in run.trials("A") if trial.state == "stopped early")
    assert stopped.metrics["loss"] == pytest.approx((stopped.params["x"] - 0.3) ** 2 + 1 / 20)
    report = json.loads((run.folder / "report.json").read_text())
    assert report["regions"][0]["stopped_early"] >= 2
    assert "stopped early, which saved about" in run.report.read_text()


@pytest.mark.thorough
@pytest.mark.usefixtures("pool")
def test_a_shell_trainer_can_be_stopped_early(make_run: MakeRun) -> None:
    run = curves(make_run, trainer="curve.sh", program="sh")
    run.submit()
    assert run.wait().state is RunState.DONE
    assert_bad_ones_were_stopped(run)


@pytest.mark.thorough
@pytest.mark.usefixtures("pool")
@pytest.mark.parametrize("mood", ["ignores", "saves"])
def test_a_trainer_that_ignores_the_order_to_stop_is_killed_by_its_job(
    make_run: MakeRun, mood: str
) -> None:
    """One that takes the end of its job for an eviction, and saves, doesn't begin again."""
    run = curves(make_run, mood)
    run.submit()
    assert run.wait().state is RunState.DONE
    assert_bad_ones_were_stopped(run)


@pytest.mark.thorough
@pytest.mark.usefixtures("pool")
def test_a_trainer_that_never_reports_is_never_stopped(make_run: MakeRun) -> None:
    run = curves(make_run, "silent")
    run.submit()
    assert run.wait().state is RunState.DONE
    assert {trial.state for trial in run.trials()} == {"complete"}


@pytest.mark.thorough
@pytest.mark.usefixtures("pool")
def test_a_service_killed_after_its_decision_loses_nothing(
    make_run: MakeRun, wait_for: WaitFor
) -> None:
    stopping = {**SETTINGS, "grace_seconds": 10}
    run = curves(make_run, "ignores", early_stopping=stopping, budget=A_JOB_EACH)
    run.submit()
    wait_for(lambda: orders(run))
    for process in services(run):
        with suppress(ProcessLookupError):  # a script's client, that has ended
            os.kill(process.pid, signal.SIGKILL)
    ordered = orders(run)
    assert run.wait().state is RunState.DONE
    assert_bad_ones_were_stopped(run)
    assert ordered.items() <= orders(run).items()  # decisions stay


@pytest.mark.thorough
@pytest.mark.usefixtures("pool")
def test_a_run_that_is_stopped_after_a_decision_can_be_resumed(
    make_run: MakeRun, wait_for: WaitFor
) -> None:
    """The job of a trial with an order is removed before it leaves: it is not trained again."""
    stopping = {**SETTINGS, "grace_seconds": 3600}
    run = curves(make_run, "ignores", early_stopping=stopping, budget=A_JOB_EACH)
    run.submit()
    wait_for(lambda: orders(run))
    run.stop()
    ordered = orders(run)
    for place in ordered:
        begun = (place / "log").read_text().count("Job executing on host")
        assert begun == 1
    run.resume()
    wait_for(lambda: all(trial_of(run, place) == "stopped early" for place in ordered))
    for place in ordered:
        assert (place / "log").read_text().count("Job executing on host") == 1
    run.stop()


def orders(run: Run) -> dict[Path, str]:
    """Return the orders to stop, by the trials' folders."""
    trials = RunFolder(run.folder).region("A").trials
    found = {path.parents[1]: path.read_text() for path in trials.glob("*/words/stop.json")}
    return {place: text for place, text in found.items() if text}


def trial_of(run: Run, place: Path) -> str:
    return next(trial.state for trial in run.trials("A") if trial.node == place.name)
