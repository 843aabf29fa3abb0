"""Comparison of our PED-ANOVA with Optuna's."""

from __future__ import annotations

import random
import warnings
from typing import Any

import optuna
import pytest
from optuna.importance import PedAnovaImportanceEvaluator
from optuna.trial import create_trial

from tests.search_spaces import value_at
from trialfleet.optimizer.space import SearchSpace
from trialfleet.workflows.views.report.importance import divergence

SPACE = SearchSpace.model_validate(
    {
        "rate": {"type": "float", "low": 1e-4, "high": 1e-1, "log": True},
        "dropout": {"type": "float", "low": -0.5, "high": 0.5},
        "width": {"type": "float", "low": 0.0, "high": 1.0, "step": 0.125},
        "batch": {"type": "int", "low": 3, "high": 700, "log": True},
        "layers": {"type": "int", "low": 1, "high": 4},
        "hidden": {"type": "int", "low": 32, "high": 512, "step": 32},
        "seed": {"type": "int", "low": 0, "high": 100_000},
        "solver": {"type": "categorical", "choices": ["adam", "sgd", 3, 0.5]},
        "flag": {"type": "categorical", "choices": [True, False]},
        "momentum": {"type": "float", "low": 0.0, "high": 0.9, "when": {"flag": True}},
    }
)


def drawn(rng: random.Random, trials: int) -> list[tuple[dict[str, Any], float]]:
    """Return random settings with many equal values, and losses of which some are equal."""
    found = []
    for _ in range(trials):
        place = {name: rng.random() ** rng.choice([1, 6]) for name in SPACE.parameters}
        values = {name: value_at(each, place[name]) for name, each in SPACE.parameters.items()}
        loss = abs(place["rate"] - 0.3) + place["solver"] + 0.2 * round(5 * rng.random())
        found.append((SPACE.active(values), loss))
    return found


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("trials", "best"), [(12, 5), (60, 20), (200, 67)])
def test_a_parameters_importance_equals_optunas(seed: int, trials: int, best: int) -> None:
    found = drawn(random.Random(100 * seed + trials), trials)  # noqa: S311
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study()
    distributions = SPACE.distributions()
    for params, loss in found:
        own = {name: distributions[name] for name in params}
        study.add_trial(create_trial(params=params, distributions=own, value=loss))
    evaluator = PedAnovaImportanceEvaluator(target_quantile=(best - 0.5) / trials)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on few trials of a regime
        expected = evaluator.evaluate(study)
    limit = sorted(loss for _, loss in found)[best - 1]
    target = [params for params, loss in found if loss <= limit]
    for name, parameter in SPACE.parameters.items():
        every = [params[name] for params, _ in found if name in params]
        ours = [params[name] for params in target if name in params]
        part = len(ours) ** 2 / (len(every) * trials)
        assert part * divergence(parameter, ours, every) == pytest.approx(expected[name], rel=1e-6)
