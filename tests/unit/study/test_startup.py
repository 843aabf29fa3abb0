"""The number of start-up trials, and the first trial that the optimiser's model chooses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import FloatDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from tests.unit.plan.test_plan import make_study
from trialfleet.optimizer.sampling.next_parameters import in_startup
from trialfleet.optimizer.sampling.startup_count import default_startup, first_model_trial
from trialfleet.workflows.cli.printing.plan_summary import plan_summary, plan_text
from trialfleet.workflows.control.plan.run_folder_writer import write_plan
from trialfleet.workflows.control.run.run import Run


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return tmp_path


@pytest.mark.parametrize(
    ("trials", "parameters", "startup"),
    [
        (1, 1, 1),
        (2, 1, 2),
        (3, 1, 2),  # so that the third follows the model
        (5, 1, 2),
        (10, 1, 4),  # a third
        (10, 50, 4),
        (12, 3, 4),
        (20, 1, 5),  # the least
        (20, 3, 6),  # two for each
        (20, 50, 7),
        (1000, 4, 8),
        (1000, 50, 10),  # the most
    ],
)
def test_start_up_follows_budget_and_parameters(trials: int, parameters: int, startup: int) -> None:
    assert default_startup(trials, parameters) == startup


@given(trials=st.integers(3, 10_000), parameters=st.integers(1, 200))
def test_from_three_trials_on_the_model_leads_most(trials: int, parameters: int) -> None:
    startup = default_startup(trials, parameters)
    assert 2 <= startup <= 10
    first = first_model_trial(startup, trials, lanes=1)
    assert first is not None
    assert first - 1 <= max(2, trials / 3 + 1)


def trial(state: TrialState) -> FrozenTrial:
    space: dict[str, Any] = {"x": FloatDistribution(0, 1)}
    value = 0.5 if state == TrialState.COMPLETE else None
    return create_trial(state=state, params={"x": 0.5}, distributions=space, value=value)


@given(
    startup=st.integers(1, 12), trials=st.integers(1, 40), lanes=st.integers(1, 40), data=st.data()
)
def test_the_first_trial_that_the_model_leads_is_known_before(
    startup: int, trials: int, lanes: int, data: st.DataObject
) -> None:
    """Lanes as the graph has them: each asks again when its trial has ended, in any order."""
    startup = min(startup, trials)
    history: list[FrozenTrial] = []
    led = None
    while len(history) < trials and led is None:
        running = [i for i, t in enumerate(history) if t.state == TrialState.RUNNING]
        if len(running) == min(lanes, trials):
            history[data.draw(st.sampled_from(running))] = trial(TrialState.COMPLETE)
        elif in_startup(history, startup):
            history.append(trial(TrialState.RUNNING))
        else:
            led = len(history) + 1
    assert led == first_model_trial(startup, trials, lanes)


def test_a_plan_says_from_which_trial_on_the_model_leads(place: Path) -> None:
    budgets: dict[str, Any] = {"A": None, "B": {"budget": {"trials": 4}}}
    study = make_study(place, regions=budgets, budget={"trials": 10, "lanes": 4})
    run = Run(write_plan(study, run="r1", out=place / "run").root)
    assert [r["model_leads_from"] for r in plan_summary(run)["regions"]] == [6, None]
    assert "model    from trial 6 of a region on, the optimiser's model chooses" in plan_text(run)
    assert "start-up points; never in B" in plan_text(run)
    few = make_study(place, budget={"trials": 2, "lanes": 1})
    run = Run(write_plan(few, run="r2", out=place / "few").root)
    assert "model    the optimiser's model chooses no trial" in plan_text(run)
    other = make_study(place, budget={"trials": 10, "lanes": 4}, sampler="RandomSampler")
    run = Run(write_plan(other, run="r3", out=place / "other").root)
    assert "model    from trial 6 of a region on, RandomSampler chooses; before" in plan_text(run)


def test_a_planned_study_has_startup_trials_and_keeps_given_ones(place: Path) -> None:
    budgets: dict[str, Any] = {"A": None, "B": {"budget": {"startup_trials": 1}}}
    study = make_study(place, regions=budgets)
    assert [study.region_budget(name).startup_trials for name in ("A", "B")] == [4, 1]
    of_all = make_study(place, budget={"trials": 10, "startup_trials": 9})
    assert of_all.region_budget("A").startup_count == 9
    assert of_all.region("A").budget is None
