"""Runs whose money is spent: they end by themselves, and publish what a trial has found."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import MakeRun
from tests.pool.watching import WaitFor, finished_trials
from trialfleet import Run, RunState, Stage
from trialfleet.errors import PoolError
from trialfleet.files import read_json
from trialfleet.infra.fleet.scaling import price_cap_stop
from trialfleet.infra.fleet.scaling.price_cap_stop import PriceCapStop
from trialfleet.infra.fleet.spec.limits import NO_MONEY
from trialfleet.workflows.facts.dagman.job_queue import look_up
from trialfleet.workflows.facts.run_folder.folder import RunFolder

pytestmark = pytest.mark.usefixtures("pool")

TRIALS = PriceCapStop(reason=f"{NO_MONEY}trials have spent $48.10", finals=False)
ALL = PriceCapStop(
    reason=f"{NO_MONEY}the run's cap of $60.00 is reached: $60.02 is spent", finals=True
)
# The default settings come first and complete; of the others some never end. More at once than the
# pool has slots for, so that some wait for ever.
MOODS = {"mood": {"type": "categorical", "choices": ["good", "hangs"], "default": "good"}}
BUDGET = {"trials": 16, "lanes": 8, "failures": 0}


@contextmanager
def ending(run: Run, stop: PriceCapStop) -> Iterator[None]:
    """Let end what nothing pays for again and again, as the autoscaler's steps do."""
    done = threading.Event()

    def steps() -> None:
        while not done.wait(0.5):
            price_cap_stop.end(run.run_id, stop, str(run.folder))

    thread = threading.Thread(target=steps)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def queue(run: Run) -> tuple[int, int]:
    """Return the number of trials that run and that wait."""
    queued = look_up(RunFolder(run.folder))
    return len(queued.running), len(queued.idle)


def states(run: Run) -> set[str]:
    return {record.state for record in run.trials()}


def removed(run: Run) -> list[int]:
    """Count the removals of each trial's job."""
    logs = sorted(run.folder.glob("regions/*/trials/*/log"))
    return [log.read_text().count("Job was aborted") for log in logs]


def test_trials_without_money_left_end_and_the_best_model_is_published(
    make_run: MakeRun, wait_for: WaitFor
) -> None:
    run = make_run(MOODS, budget=BUDGET)
    run.submit()
    wait_for(lambda: finished_trials(run) >= 1 and min(queue(run)) >= 1)
    with ending(run, TRIALS):
        status = run.wait()
    assert status.state is RunState.DONE, status
    (region,) = status.regions
    assert states(run) == {"complete", "pruned"}
    assert region.failed == 0
    pruned = sum(record.state == "pruned" for record in run.trials())
    assert region.done + pruned == len(run.trials()) < 16
    assert max(removed(run)) == 1
    assert (Path(region.published or "") / "weights").exists()
    errors = {record.error for record in run.trials() if record.state == "pruned"}
    assert errors == {TRIALS.reason}
    assert "Trials ended early: no money is left" in run.report.read_text()


@pytest.mark.thorough
def test_a_run_without_a_result_ends_at_the_cap_with_a_reason(
    make_run: MakeRun, wait_for: WaitFor
) -> None:
    run = make_run({"mood": "hangs"}, regions=["A", "B"], parallel_regions=1, budget=BUDGET)
    run.submit()
    wait_for(lambda: min(queue(run)) >= 1)
    with ending(run, ALL):
        status = run.wait()
    assert status.state is RunState.FAILED
    none = f"no trial completed, so there are no best settings: {ALL.reason}"
    assert [region.reason for region in status.regions] == [none, none]
    assert states(run) == {"pruned"}
    asked = [run.trials(name) for name in ("A", "B")]
    assert [] in asked  # the turn of one came when the money was spent
    assert queue(run) == (0, 0)


@pytest.mark.thorough
def test_a_full_training_ends_at_the_cap(make_run: MakeRun, wait_for: WaitFor) -> None:
    run = make_run({"final_mood": "hangs"}, budget={"trials": 2, "lanes": 1})
    run.submit()
    wait_for(lambda: run.status().regions[0].stage is Stage.TRAINING and queue(run)[0] == 1)
    with ending(run, ALL):
        status = run.wait()
    assert status.state is RunState.FAILED
    reason = f"the best settings are not trained in full: {ALL.reason}"
    assert status.regions[0].reason == reason
    assert states(run) == {"complete"}
    assert read_json(RunFolder(run.folder).out_of_money).keys() == {"final"}


@pytest.mark.thorough
def test_only_the_given_one_of_two_runs_with_one_id_is_ended(
    make_run: MakeRun, work: Path, wait_for: WaitFor
) -> None:
    runs = [
        make_run({"mood": "hangs"}, name=name, out=work / name, budget={"trials": 1, "lanes": 1})
        for name in ("one", "other")
    ]
    for run in runs:
        run.submit()
    wait_for(lambda: all(queue(run)[0] == 1 for run in runs))
    with pytest.raises(PoolError, match=r"several runs called 'r1' .*/one, .*/other"):
        price_cap_stop.end("r1", ALL)
    assert price_cap_stop.end("r1", ALL, str(runs[0].folder)) == 1
    assert price_cap_stop.end("another", ALL) == 0
    runs[0].wait()
    assert queue(runs[1]) == (1, 0)
    assert price_cap_stop.end("r1", ALL) == 1
    runs[1].wait()
