"""A plan's estimates: trials at a time, duration and cost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeRun
from trialfleet import Run
from trialfleet.files import write_json
from trialfleet.optimizer.storage import open_storage
from trialfleet.workflows.cli.printing.plan_summary import plan_summary, plan_text
from trialfleet.workflows.control.plan.pool_check import PoolCheck
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.facts.runs.run_storage import storage_url, study_name
from trialfleet.workflows.rules.slot_matching import Prospects
from trialfleet.workflows.study.frozen import load_frozen

pytestmark = pytest.mark.slow


POOL = Prospects(slots=1, fit=1, willing=1, concurrency=2, lacking=(), has_fleet=False)
BUDGET = {"trials": 8, "lanes": 8}


def complete(run: Run, seconds: list[float], usd: float | None = None) -> None:
    """Put complete trials into a run's study, as the service does."""
    import optuna

    storage = open_storage(storage_url(RunFolder(run.folder), run.study))
    study = optuna.create_study(study_name=study_name(run.study, run.run_id, "A"), storage=storage)
    for number, each in enumerate(seconds):
        job = {"wall_seconds": each, "usd": usd}
        trial = optuna.trial.create_trial(
            value=0.5, user_attrs={"node": f"A.{number}", "params": {}, "job": job}
        )
        study.add_trial(trial)


@pytest.fixture
def here(work: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(work)
    return work


def planned(make_run: MakeRun, run: str, place: Path, **changes: Any) -> Run:
    return make_run(run=run, out=place / "runs/demo" / run, **{"budget": BUDGET, **changes})


def test_a_plan_shows_the_run_folder_and_what_it_is_relative_to(
    here: Path, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = planned(make_run, "r1", here)
    text = plan_text(run)
    assert f" in runs/demo/r1, relative to {here}\n" in text
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    assert "relative to" not in plan_text(run)


def test_a_plan_says_how_many_trials_the_pool_runs_at_a_time(here: Path, make_run: MakeRun) -> None:
    run = planned(make_run, "r1", here, regions=["A", "B", "C"], parallel_regions=2)
    size = "each on 1 cpu(s), 100MB"
    assert f"at once  up to 16 trial(s), {size}\n" in plan_text(run)
    assert f"{size}; this pool runs 2 in parallel\n" in plan_text(run, PoolCheck(prospects=POOL))
    large = PoolCheck(prospects=replace(POOL, concurrency=16))
    assert f"{size}; this pool has slots for all of them\n" in plan_text(run, large)
    none = PoolCheck(prospects=replace(POOL, concurrency=0, fit=0))
    assert f"{size}; this pool runs none in parallel\n" in plan_text(run, none)
    assert plan_summary(run)["at_once"] == 16


def test_the_estimated_time_includes_full_trainings_and_gates(
    here: Path, make_run: MakeRun
) -> None:
    pool = PoolCheck(prospects=POOL)
    kinds: dict[str, Any] = {"publish": "models", "gate": {}}
    first = planned(make_run, "r1", here, **kinds)
    complete(first, [10.0] * 4)
    region = RunFolder(first.folder).region("A")
    write_json(region.best.job, {"wall_seconds": 20.0})
    write_json(region.gate.job, {"wall_seconds": 5.0})
    second = planned(make_run, "r2", here, budget={"trials": 8, "lanes": 4}, **kinds)
    assert plan_summary(second, pool)["expected"]["seconds"] == 4 * 10 + 20 + 5
    text = (
        "time     about 1 min, without waits for slots: 8 trials of 10 s, 1 full training of 20 s, "
        "1 gate of 5.0 s, 2 in parallel; based on 4 trials of 1 previous run\n"
    )
    assert text in plan_text(second, pool)
    tuning = planned(make_run, "r3", here, publish="none")
    assert plan_summary(tuning, pool)["expected"]["full_seconds"] is None
    never = planned(make_run, "r4", here, publish="models")
    assert plan_summary(never, pool)["expected"]["gate_seconds"] is None


def test_the_time_is_estimated_from_trials_of_previous_runs(here: Path, make_run: MakeRun) -> None:
    pool = PoolCheck(prospects=POOL)
    first = planned(make_run, "r1", here)
    assert plan_summary(first, pool)["expected"] is None
    assert "time  " not in plan_text(first, pool)
    complete(first, [60.0, 60.0, 90.0])
    second = planned(make_run, "r2", here)
    expected = {
        "seconds": 300.0, "trial_seconds": 60.0, "full_seconds": 60.0,
        "gate_seconds": None, "concurrency": 2, "based_on": 3, "runs": 1,
    }  # fmt: skip
    assert plan_summary(second, pool)["expected"] == expected
    text = (
        "about 5 min, without waits for slots: 8 trials of 1 min 00 s, 1 full training of "
        "1 min 00 s, 2 in parallel; based on 3 trials of 1 previous run\n"
    )
    assert text in plan_text(second, pool)
    assert plan_summary(second)["expected"] is None  # the number of trials at once is unknown
    own = make_run(run="r3", out=here / "runs/r3", budget=BUDGET)  # in a folder of its own
    complete(own, [60.0] * 2)
    assert plan_summary(second, pool)["expected"] == {**expected, "based_on": 5, "runs": 2}
    other = make_run(run="r4", out=here / "runs/r4", budget=BUDGET, name="other")
    complete(other, [900.0] * 9)
    assert plan_summary(second, pool)["expected"] == {**expected, "based_on": 5, "runs": 2}
    (here / "runs/r3/study.json").write_text("no run")
    (here / "runs/demo/r1/study.json").write_text("no run")
    assert plan_summary(second, pool)["expected"] is None


def test_the_cost_is_estimated_from_jobs_of_previous_runs(here: Path, make_run: MakeRun) -> None:
    first = planned(make_run, "r1", here)
    assert plan_summary(first)["cost"] is None
    assert "cost  " not in plan_text(first)
    complete(first, [60.0, 90.0], usd=0.5)
    write_json(RunFolder(first.folder).region("A").best.job, {"usd": 2.0})
    second = planned(make_run, "r2", here, regions=["A", "B"])
    assert plan_summary(second)["cost"] == {
        "usd": 2 * 8 * 0.5 + 2 * 2.0, "trial": 0.5, "full": 2.0, "gate": None, "overhead": None,
        "based_on": 2,
        "at_most": None, "bounded_by": None,
    }  # fmt: skip
    text = (
        "about 12.00 USD: a trial costs 0.5000, a full training 2.00, based on 2 of previous runs\n"
    )
    assert f"  cost     {text}" in plan_text(second)
    tuned = planned(make_run, "r3", here, publish="none")
    assert "about 4.00 USD: a trial costs 0.5000, based on 2 of" in plan_text(tuned)


def test_the_estimated_cost_of_a_fleet_includes_boot_and_idle_time(
    here: Path, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = planned(make_run, "r1", here, publish="none")
    complete(first, [60.0, 90.0], usd=0.5)
    write_json(RunFolder(first.folder).fleet_state, {"step": {"spent": 1.25}})
    fleet = {"name": "f", "aws_regions": ["us-east-1"], "price_cap": {"run": 3}}
    monkeypatch.setattr("trialfleet.workflows.control.run.new_run._aws_environment", lambda _: None)
    scaled = {**fleet, "autoscale": "service"}
    second = planned(make_run, "r2", here, publish="none", fleet=scaled)
    known = "about 5.00 USD: a trial costs 0.5000, plus 25% for boot and idle time, based on 2"
    assert known in plan_text(second)
    assert "; at most 3.00 USD by fleet.price_cap.run\n" in plan_text(second)
    third = planned(make_run, "r3", here, publish="none", fleet=fleet)
    assert "3.00 USD" not in plan_text(third)
    assert "  note     no autoscaler keeps fleet.price_cap.run" in plan_text(third)
    unused = "  note     the fleet's nodes have GPUs, which trials don't use with accelerator: cpu"
    assert unused in plan_text(third)
    types = {**fleet, "instance_types": ["c7i.xlarge"]}
    assert unused not in plan_text(planned(make_run, "r4", here, publish="none", fleet=types))


def test_the_estimated_cost_includes_gates_apart_from_boot_and_idle_time(
    here: Path, make_run: MakeRun
) -> None:
    fleet = {"name": "f", "aws_regions": ["us-east-1"], "price_cap": {"run": 3}}
    kinds: dict[str, Any] = {"publish": "models", "gate": {}, "fleet": fleet}
    first = planned(make_run, "r1", here, **kinds)
    complete(first, [60.0, 90.0], usd=0.5)
    files = RunFolder(first.folder)
    write_json(files.region("A").best.job, {"usd": 0.5})
    write_json(files.region("A").gate.job, {"usd": 0.5})
    write_json(files.fleet_state, {"step": {"spent": 2.5}})
    second = planned(make_run, "r2", here, **kinds)
    assert (
        "about 6.25 USD: a trial costs 0.5000, a full training 0.5000, a gate 0.5000, plus 25% for "
        "boot and idle time, based on 2"
    ) in plan_text(second)
    without = planned(make_run, "r3", here, **kinds | {"gate": None})
    assert "about 5.62 USD: a trial costs 0.5000, a full training 0.5000, plus 25% " in plan_text(
        without
    )


def test_a_budget_in_usd_bounds_the_cost_and_knows_what_was_before(
    here: Path, make_run: MakeRun
) -> None:
    money = {**BUDGET, "usd": 5, "usd_per_run": 12, "usd_per_day": 20}
    first = planned(make_run, "r1", here, budget=money, regions=["A", "B"])
    assert load_frozen(RunFolder(first.folder).study).costs is None
    text = plan_text(first)
    cost = (
        "at most 10.00 USD by budget.usd of all regions; "
        "there is no previous run to estimate it from\n"
    )
    assert f"  cost     {cost}" in text
    assert "  note     a budget in USD counts only nodes with a price" in text
    complete(first, [60.0], usd=0.5)
    second = planned(make_run, "r2", here, budget=money, usd_per_hour=1.0)
    costs = load_frozen(RunFolder(second.folder).study).costs
    assert costs
    assert (costs.trial, costs.full) == (0.5, None)
    assert "nodes with a price" not in plan_text(second)
