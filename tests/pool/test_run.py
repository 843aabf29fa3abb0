"""Whole runs on a real pool, when nothing goes wrong."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import MakeRun
from tests.pool.watching import assert_exactly_once
from trialfleet import RunState

pytestmark = pytest.mark.usefixtures("pool")


def test_three_regions_end_to_end(make_run: MakeRun) -> None:
    run = make_run(regions=["A", "São Paulo", 'it\'s "C"'], budget={"trials": 5, "lanes": 2})
    run.submit()
    status = run.wait()
    assert status.state is RunState.DONE, status
    assert_exactly_once(run, 5)
    for region in status.regions:
        assert (region.done, region.failed, region.running, region.queued) == (5, 0, 0, 0)
        published = Path(region.published or "")
        assert (published / "weights").exists()
        assert (published.parent / "latest").resolve() == published
    assert "São Paulo" in run.report.read_text()
    assert {b.region for b in run.best()} == set(run.study.region_table)


def test_by_hand_condor_submit_dag_is_enough(make_run: MakeRun) -> None:
    run = make_run(budget={"trials": 2, "lanes": 1})
    subprocess.run(["condor_submit_dag", run.folder / "study.dag"], cwd="/", check=True)
    assert run.wait().state is RunState.DONE
    assert_exactly_once(run, 2)


def test_one_regions_dag_alone_is_enough(make_run: MakeRun, wait_for: Callable[..., None]) -> None:
    run = make_run(regions=["A", "B"], budget={"trials": 2, "lanes": 1})
    subprocess.run(["condor_submit_dag", run.folder / "regions/A/region.dag"], cwd="/", check=True)
    wait_for((run.folder / "regions/A/published.json").exists)
    assert [r.state for r in run.trials("A")] == ["complete", "complete"]
    assert run.trials("B") == []


def test_a_run_in_a_folder_with_a_space_and_a_quote(make_run: MakeRun, work: Path) -> None:
    run = make_run(out=work / "it's a run é", budget={"trials": 2, "lanes": 1})
    run.submit()
    assert run.wait().state is RunState.DONE


def test_a_trainer_in_another_language_keeps_the_contract_alone(make_run: MakeRun) -> None:
    trainer = Path(__file__).parent / "trainers" / "quadratic.sh"
    run = make_run(
        {"steps": 3},
        trainer={"command": ["sh", trainer.name], "files": [str(trainer)]},
        budget={"trials": 2, "lanes": 1},
    )
    run.submit()
    assert run.wait().state is RunState.DONE
    assert [r.state for r in run.trials()] == ["complete", "complete"]


def test_two_runs_at_once_do_not_meet(make_run: MakeRun) -> None:
    runs = [make_run(run=f"r{i}", budget={"trials": 3, "lanes": 2}) for i in range(2)]
    for run in runs:
        run.submit()
    for run in runs:
        assert run.wait().state is RunState.DONE
        assert_exactly_once(run, 3)
