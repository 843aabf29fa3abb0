"""Which parameters depend on which, as trials show it: a study of Optuna's declares no conditions.

A model that doesn't know them proposes a choice together with a value that the choice doesn't have,
learns nothing from the trial, and proposes it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

_MOST_VALUES = 50  # of a parameter that others depend on
_SEEN = 2  # trials for each of its values, on average: with fewer, chance would look like a rule

Conditions = dict[str, dict[str, list[Any]]]


def conditions_of(
    space: Mapping[str, BaseDistribution], trials: Sequence[FrozenTrial]
) -> Conditions:
    """Return for parameters that some trials lack which values of another one go with them.

    One depends on a choice or a whole number that each trial with it has, and whose values differ
    between the trials with it and the complete ones without it; values that no trial had may go
    with it. A wrong guess ends with the first trial that contradicts it. None depends on itself:
    each is in fewer trials than what it depends on.
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
    """The values that a condition may name; none of a number that has too many."""
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
    """The values of another parameter that never go with one, encoded; none unless that is a rule.

    Args:
        other: the other's name.
        distribution: of the other.
        having: the trials that have the one.
        lacking: the complete trials that lack it.
    """
    if any(other not in each.params for each in having):
        return set()
    encoded = distribution.to_internal_repr
    present = {encoded(each.params[other]) for each in having}
    absent = {encoded(each.params[other]) for each in lacking if other in each.params}
    is_chance = _SEEN * len(present | absent) > len(having) + len(lacking)
    return set() if is_chance or present & absent else absent
