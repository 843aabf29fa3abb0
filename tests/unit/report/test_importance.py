"""The importance of each kind of parameter, by Optuna's PED-ANOVA."""

from __future__ import annotations

import random

import pytest

from tests.search_spaces import value_at
from tests.unit.report.report_studies import trial
from trialfleet.optimizer.space import SearchSpace
from trialfleet.workflows.status.run_trials import Trial, build_trial
from trialfleet.workflows.views.report.importance import parameter_importances

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


def drawn(rng: random.Random, trials: int, decides: str) -> list[Trial]:
    """Return random settings with many equal values; a single parameter decides the loss."""
    found = []
    for at in range(trials):
        place = {name: rng.random() ** rng.choice([1, 6]) for name in SPACE.parameters}
        values = {name: value_at(each, place[name]) for name, each in SPACE.parameters.items()}
        loss = round(abs(place[decides] - 0.3), 2)
        found.append(build_trial("A", trial(SPACE.active(values), loss, at=at), {}))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("decides", ["rate", "width", "hidden", "solver", "flag"])
def test_a_parameter_of_any_kind_that_decides_is_the_most_important(decides: str) -> None:
    trials = drawn(random.Random(3), 200, decides)  # noqa: S311
    found, note = parameter_importances(trials, SPACE.parameters, "minimize")
    assert found[0].parameter == decides
    assert {item.parameter for item in found} == set(SPACE.parameters)
    assert sum(item.share for item in found) == pytest.approx(1.0)
    assert note is None
