"""The sampler in Optuna studies of any kind."""

from __future__ import annotations

import itertools
import math
from typing import Any

import optuna
import pytest

from trialfleet.objective import Direction
from trialfleet.optimizer import RegionSampler

pytestmark = pytest.mark.slow


def objective(trial: optuna.Trial) -> float:
    kind = trial.suggest_categorical("kind", ["a", "b"])
    rate = trial.suggest_float("rate", 1e-4, 1, log=True)
    depth = trial.suggest_int("depth", 1, 9) if kind == "a" else 0
    return float((rate - 0.01) ** 2 * 100 + (depth - 4) ** 2 * 0.1 + (kind == "b"))


def optimized(count: int = 22, **arguments: Any) -> optuna.Study:
    study = optuna.create_study(sampler=RegionSampler(seed=1, **arguments))
    study.optimize(objective, n_trials=count)
    return study


def test_a_study_with_a_conditional_parameter_is_optimized() -> None:
    study = optimized(30)
    assert study.best_params["kind"] == "a"
    assert study.best_params["depth"] == 4
    assert study.best_value < 0.01


def test_the_same_seed_gives_the_same_trials_and_another_other_ones() -> None:
    params = [[trial.params for trial in optimized(14).trials] for _ in range(2)]
    assert params[0] == params[1]
    other = optuna.create_study(sampler=RegionSampler(seed=2))
    other.optimize(objective, n_trials=3)
    assert [trial.params for trial in other.trials] != params[0][:3]
    unseeded = [optuna.create_study(sampler=RegionSampler()) for _ in range(2)]
    assert unseeded[0].ask().suggest_float("x", 0, 1) != unseeded[1].ask().suggest_float("x", 0, 1)


def test_maximizing_goes_the_other_way() -> None:
    study = optuna.create_study(direction="maximize", sampler=RegionSampler(seed=0))
    study.optimize(lambda trial: -((trial.suggest_float("x", -5, 5) - 2) ** 2), n_trials=16)
    assert study.best_params["x"] == pytest.approx(2, abs=0.1)


def test_running_trials_are_known_and_failed_ones_avoided() -> None:
    study = optuna.create_study(sampler=RegionSampler(seed=0, n_startup_trials=5))
    study.optimize(lambda trial: (trial.suggest_float("x", 0, 1) - 0.5) ** 2, n_trials=8)
    asked = [study.ask() for _ in range(4)]
    values = sorted(trial.suggest_float("x", 0, 1) for trial in asked)
    assert all(b > a for a, b in itertools.pairwise(values))
    for trial in asked:
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
    another = study.ask().suggest_float("x", 0, 1)
    assert min(abs(another - value) for value in values) > 0.01


def test_a_range_that_changes_counts_from_then_on() -> None:
    study = optuna.create_study(sampler=RegionSampler(seed=0, n_startup_trials=3))
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=5)
    study.optimize(lambda trial: (trial.suggest_float("x", 2, 3) - 2.5) ** 2, n_trials=6)
    assert all(2 <= trial.params["x"] <= 3 for trial in study.trials[5:])


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
@pytest.mark.parametrize(
    "extremes", [[math.inf], [-math.inf], [math.inf, -math.inf], [1e308, -1e308], [1e-320]]
)
@pytest.mark.parametrize("others", [[], [1.0, 2.0]])
def test_infinite_and_huge_values_are_taken(
    extremes: list[float], others: list[float], direction: Direction
) -> None:
    values = itertools.cycle([*others, *extremes])
    study = optuna.create_study(
        direction=direction, sampler=RegionSampler(seed=0, n_startup_trials=3)
    )
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1) * 0 + next(values), n_trials=7)
    assert len({trial.params["x"] for trial in study.trials}) == 7


def test_an_infinite_loss_counts_as_the_worst_finite_one() -> None:
    study = optuna.create_study(sampler=RegionSampler(seed=0))

    def objective(trial: optuna.Trial) -> float:
        x = trial.suggest_float("x", 0, 1)
        return math.inf if x > 0.5 else (x - 0.2) ** 2

    study.optimize(objective, n_trials=20)
    assert study.best_params["x"] == pytest.approx(0.2, abs=0.02)


def test_several_objectives_are_refused() -> None:
    study = optuna.create_study(directions=["minimize", "minimize"], sampler=RegionSampler())
    with pytest.raises(ValueError, match="multi-objective"):
        study.optimize(lambda trial: (trial.suggest_float("x", 0, 1), 0.0), n_trials=12)
