"""Tests of conditions between parameters, derived from the trials of a study."""

from __future__ import annotations

from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import FrozenTrial, TrialState

from trialfleet.optimizer.sampling.conditions import infer_conditions

SPACE: dict[str, BaseDistribution] = {
    "kind": CategoricalDistribution(["a", "b", "c"]),
    "layers": IntDistribution(1, 4),
    "wide": IntDistribution(-(2**62), 2**62),
    "x": FloatDistribution(0, 1),
    "y": FloatDistribution(0, 1),
}


def trial(state: TrialState = TrialState.COMPLETE, **params: Any) -> FrozenTrial:
    return optuna.create_trial(
        state=state,
        value=1.0 if state == TrialState.COMPLETE else None,
        params=params,
        distributions={name: SPACE[name] for name in params},
    )


def test_a_condition_allows_values_of_trials_with_the_parameter_and_untried_values() -> None:
    trials = [trial(kind="a", x=0.5, wide=1), trial(kind="b", wide=1)] * 2
    assert infer_conditions(SPACE, trials) == {"x": {"kind": ["a", "c"]}}


def test_a_parameter_may_depend_on_an_integer_or_a_conditional_parameter() -> None:
    trials = [
        trial(kind="a", layers=1),
        trial(kind="a", layers=2, y=0.5),
        trial(kind="b"),
    ] * 3
    assert infer_conditions(SPACE, trials) == {
        "layers": {"kind": ["a", "c"]},
        "y": {"layers": [2, 3, 4]},
    }


def test_a_trial_that_contradicts_a_condition_ends_it() -> None:
    trials = [trial(kind="a", x=0.5), trial(kind="b")] * 3
    assert infer_conditions(SPACE, trials)
    assert not infer_conditions(SPACE, [*trials, trial(kind="a")])
    assert not infer_conditions(SPACE, [*trials, trial(TrialState.RUNNING, kind="b", x=0.1)])


def test_few_or_unfinished_trials_give_no_condition() -> None:
    assert not infer_conditions(SPACE, [trial(kind="a", x=0.5), trial(kind="b")])
    unfinished = [trial(TrialState.RUNNING, kind="b"), trial(TrialState.FAIL, kind="b")]
    assert not infer_conditions(SPACE, [*[trial(kind="a", x=0.5)] * 4, *unfinished])


def test_parameters_of_the_same_trials_do_not_depend_on_each_other() -> None:
    trials = [trial(kind="a", layers=1, x=0.5)] * 3 + [trial(x=0.2)] * 3
    assert not infer_conditions(SPACE, trials)
