"""Tests of the sampler in various Optuna studies."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.trial import TrialState

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


def test_the_same_seed_gives_the_same_trials_and_another_seed_others() -> None:
    params = [[trial.params for trial in optimized(14).trials] for _ in range(2)]
    assert params[0] == params[1]
    other = optuna.create_study(sampler=RegionSampler(seed=2))
    other.optimize(objective, n_trials=3)
    assert [trial.params for trial in other.trials] != params[0][:3]
    unseeded = [optuna.create_study(sampler=RegionSampler()) for _ in range(2)]
    assert unseeded[0].ask().suggest_float("x", 0, 1) != unseeded[1].ask().suggest_float("x", 0, 1)


def test_maximizing_finds_the_maximum() -> None:
    study = optuna.create_study(direction="maximize", sampler=RegionSampler(seed=0))
    study.optimize(lambda trial: -((trial.suggest_float("x", -5, 5) - 2) ** 2), n_trials=16)
    assert study.best_params["x"] == pytest.approx(2, abs=0.1)


def test_running_and_failed_trials_are_avoided() -> None:
    study = optuna.create_study(sampler=RegionSampler(seed=0, n_startup_trials=5))
    study.optimize(lambda trial: (trial.suggest_float("x", 0, 1) - 0.5) ** 2, n_trials=8)
    asked = [study.ask() for _ in range(4)]
    values = sorted(trial.suggest_float("x", 0, 1) for trial in asked)
    assert all(b > a for a, b in itertools.pairwise(values))
    for trial in asked:
        study.tell(trial, state=TrialState.FAIL)
    another = study.ask().suggest_float("x", 0, 1)
    assert min(abs(another - value) for value in values) > 0.01


def test_startup_trials_cover_the_space_evenly() -> None:
    study = optuna.create_study(sampler=RegionSampler(seed=0, n_startup_trials=18))
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=18)
    places = sorted(int(16 * trial.params["x"]) for trial in study.trials[2:])
    assert len(set(places)) >= 13, "random points would leave a third of the places out"


def test_a_changed_range_applies_to_later_trials() -> None:
    study = optuna.create_study(sampler=RegionSampler(seed=0, n_startup_trials=3))
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=5)
    study.optimize(lambda trial: (trial.suggest_float("x", 2, 3) - 2.5) ** 2, n_trials=6)
    assert all(2 <= trial.params["x"] <= 3 for trial in study.trials[5:])


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
@pytest.mark.parametrize(
    "extremes", [[math.inf], [-math.inf], [math.inf, -math.inf], [1e308, -1e308], [1e-320]]
)
@pytest.mark.parametrize("others", [[], [1.0, 2.0]])
def test_infinite_and_huge_values_are_accepted(
    extremes: list[float], others: list[float], direction: Direction
) -> None:
    values = itertools.cycle([*others, *extremes])
    study = optuna.create_study(
        direction=direction, sampler=RegionSampler(seed=0, n_startup_trials=3)
    )
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1) * 0 + next(values), n_trials=7)
    assert len({trial.params["x"] for trial in study.trials}) == 7


def fitted() -> optuna.Study:
    """Return a study of (x - 0.5)² whose start-up trials are done."""
    study = optuna.create_study(sampler=RegionSampler(seed=0, n_startup_trials=5))
    study.optimize(lambda trial: (trial.suggest_float("x", 0, 1) - 0.5) ** 2, n_trials=7)
    return study


def proposed(study: optuna.Study) -> dict[str, Any]:
    """Return the proposal for the hundredth trial."""
    trial = optuna.create_trial(state=TrialState.RUNNING)
    trial.number = 99
    return study.sampler.sample_relative(study, trial, {"x": FloatDistribution(0, 1)})


def test_trials_without_parameters_do_not_change_the_proposals() -> None:
    study = fitted()
    study.add_trials([optuna.create_trial(state=TrialState.FAIL) for _ in range(20)])
    study.add_trial(optuna.create_trial(value=-1.0))
    assert proposed(study) == proposed(fitted()) != {}


def test_a_trial_that_a_pruner_ended_is_ignored() -> None:
    study = fitted()
    study.add_trial(
        optuna.create_trial(
            state=TrialState.PRUNED,
            params={"x": 0.5},
            distributions={"x": FloatDistribution(0, 1)},
            intermediate_values={0: 5.0},
        )
    )
    assert proposed(study) == proposed(fitted()) != {}


def test_trials_with_values_outside_the_latest_range_are_ignored() -> None:
    study = fitted()
    previous: dict[str, BaseDistribution] = {"x": FloatDistribution(0, 10)}
    study.add_trials(
        [
            optuna.create_trial(params={"x": float(x)}, distributions=previous, value=float(x) ** 2)
            for x in np.linspace(5, 10, 12)
        ]
    )
    assert proposed(study) == proposed(fitted()) != {}


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_points_that_the_objective_prunes_are_not_proposed_again_and_again(
    direction: Direction,
) -> None:
    study = optuna.create_study(
        direction=direction, sampler=RegionSampler(seed=0, n_startup_trials=5)
    )
    sign = 1 if direction == "minimize" else -1

    def objective(trial: optuna.Trial) -> float:
        x = trial.suggest_float("x", 0, 1)
        if x < 0.3:
            raise optuna.TrialPruned
        return sign * x

    study.optimize(objective, n_trials=30)
    assert study.best_params["x"] == pytest.approx(0.3, abs=0.02)
    assert sum(trial.state == TrialState.PRUNED for trial in study.trials) < 20


@pytest.mark.parametrize("low", [0.0, 0.9])
def test_settings_that_satisfy_the_constraints_are_found(low: float) -> None:
    study = optuna.create_study(sampler=RegionSampler(seed=0, n_startup_trials=5))

    def objective(trial: optuna.Trial) -> float:
        x, y = (trial.suggest_float(name, 0, 1) for name in "xy")
        trial.set_constraint("x", 0.97 - x if low else 0.6 - x)
        trial.set_constraint("y", low - y)
        return x + (y - 0.95) ** 2

    study.optimize(objective, n_trials=30)
    kept = [trial for trial in study.trials if max(trial.constraints.values()) <= 0]
    assert study.best_trial in kept
    assert study.best_params["x"] == pytest.approx(0.97 if low else 0.6, abs=0.1)
    assert len(kept) >= 6, "of random points one in 300 would keep the tight ones"


def test_the_choice_with_a_useful_conditional_parameter_is_preferred() -> None:
    study = optuna.create_study(sampler=RegionSampler(seed=0))

    def objective(trial: optuna.Trial) -> float:
        layers = trial.suggest_int("layers", 1, 8)
        kind = trial.suggest_categorical("kind", ["adam", "sgd"])
        momentum = trial.suggest_float("momentum", 0, 1) if kind == "sgd" else 0.5
        return float(0.1 * (layers - 3) ** 2 + (momentum - 0.9) ** 2)

    study.optimize(objective, n_trials=30)
    led = study.trials[10:]
    assert sum(trial.params["kind"] == "sgd" for trial in led) > len(led) / 2
    assert study.best_value < 0.001


def test_a_parameter_of_a_single_trial_is_not_in_the_model() -> None:
    study = optuna.create_study(sampler=RegionSampler(seed=0, n_startup_trials=3))

    def objective(trial: optuna.Trial) -> float:
        return trial.suggest_float("x", 0, 1) + trial.suggest_float(f"y{trial.number}", 0, 1)

    study.optimize(objective, n_trials=6)
    space = study.sampler.infer_relative_search_space(study, study.trials[-1])
    assert space.keys() == {"x"}


def test_a_choice_of_nan_is_recognized_when_read_from_a_database(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    study = optuna.create_study(storage=storage, sampler=RegionSampler(seed=0, n_startup_trials=6))

    def objective(trial: optuna.Trial) -> float:
        return float(not math.isnan(trial.suggest_categorical("x", [1.0, math.nan, 2.0])))

    study.optimize(objective, n_trials=12)
    assert sum(trial.value == 0 for trial in study.trials[6:]) >= 4


def test_numpy_seeds_are_accepted() -> None:
    seeds: list[Any] = [3, np.int64(3)]
    values = [
        optuna.create_study(sampler=RegionSampler(seed=seed)).ask().suggest_float("x", 0, 1)
        for seed in seeds
    ]
    assert values[0] == values[1]


def test_reseeding_gives_other_trials() -> None:
    sampler = RegionSampler(seed=1)
    sampler.reseed_rng()
    study = optuna.create_study(sampler=sampler)
    study.optimize(objective, n_trials=2)
    assert [trial.params for trial in study.trials] != [
        trial.params for trial in optimized(2).trials
    ]


def test_a_study_with_infinite_losses_finds_the_optimum() -> None:
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
