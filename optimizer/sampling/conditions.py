"""Conditions between parameters, derived from trials, because an Optuna study declares none.

A model without the conditions would propose a choice with a parameter that the choice does not
have. The trial would teach the model nothing, so the model would propose the same again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

_MOST_VALUES = 50  # of a parameter that another one may depend on
_SEEN = 2  # average number of trials per value; with fewer, chance looks like a condition

Conditions = dict[str, dict[str, list[Any]]]


def conditions_of(
    space: Mapping[str, BaseDistribution], trials: Sequence[FrozenTrial]
) -> Conditions:
    """Return, for each parameter that some trials lack, the values of another one that it needs.

    Parameter a depends on b, a choice or a whole number, under two conditions. Each trial with a
    also has b. No value of b is both in trials with a and in complete trials without a. A value of
    b that no trial had is allowed. A wrong condition ends with the first trial that contradicts it.
    No parameter depends on itself, because a is in fewer trials than b.
    """
    values = {name: found for name in space if (found := _values(space[name]))}
    having = {name: [each for each in trials if name in each.params] for name in space}
    nearest_first = sorted(values, key=lambda name: (len(having[name]), len(values[name]), name))
    conditions: Conditions = {}
    for name in (name for name in space if having[name]):
        lacking = [
            each for each in trials if each.state == TrialState.COMPLETE and name not in each.params
        ]
        for other in nearest_first if lacking else ():
            without = _without(other, space[other], having[name], lacking)
            if without:
                encoded = space[other].to_internal_repr
                allowed = [value for value in values[other] if encoded(value) not in without]
                conditions[name] = {other: allowed}
                break
    return conditions


def _values(distribution: BaseDistribution) -> Sequence[Any]:
    """Return the values that a condition may name; none if a number has too many."""
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices
    if isinstance(distribution, IntDistribution):
        low, high, step = distribution.low, distribution.high, distribution.step
        return range(low, high + 1, step) if (high - low) // step < _MOST_VALUES else ()
    return ()


def _without(
    other: str,
    distribution: BaseDistribution,
    having: Sequence[FrozenTrial],
    lacking: Sequence[FrozenTrial],
) -> set[float]:
    """Return the encoded values of `other` that exclude a parameter; none without a condition."""
    if any(other not in each.params for each in having):
        return set()
    encoded = distribution.to_internal_repr
    present = {encoded(each.params[other]) for each in having}
    absent = {encoded(each.params[other]) for each in lacking if other in each.params}
    is_chance = _SEEN * len(present | absent) > len(having) + len(lacking)
    return set() if is_chance or present & absent else absent
