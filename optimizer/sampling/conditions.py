"""The conditional parameters of an Optuna study, inferred from its trials.

A conditional parameter, such as SGD's momentum, exists only for some values of another parameter.
Optuna does not record these values. Without conditions, the model would propose a momentum for
Adam. Such a trial would teach the model nothing, so the model would propose the same parameters
again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

_MOST_VALUES = 50  # of a parameter that another one may depend on
_SEEN = 2  # average number of trials per value; with fewer, chance looks like a condition

Conditions = dict[str, dict[str, list[Any]]]


def infer_conditions(
    space: Mapping[str, BaseDistribution], trials: Sequence[FrozenTrial]
) -> Conditions:
    """Return each conditional parameter, with its parent parameter and the activating values.

    A parent is a categorical parameter, or a whole number with at most 50 values. Parameter A
    depends on its parent B if all of this is true:

    - Each trial with A also has B.
    - No value of B is both in a trial with A and in a complete trial without A.
    - For each value of B, there are on average two or more of these trials. With fewer trials, the
      pattern may be chance.

    A value of B that is in no trial also activates A. A wrong condition is dropped after the first
    trial that contradicts it. Conditions have no cycles, because A is in fewer trials than B.
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
            without = _deactivating_values(other, space[other], having[name], lacking)
            if without:
                encoded = space[other].to_internal_repr
                allowed = [value for value in values[other] if encoded(value) not in without]
                conditions[name] = {other: allowed}
                break
    return conditions


def _values(distribution: BaseDistribution) -> Sequence[Any]:
    """Return the parameter's values, or () if it can't be a parent of a conditional parameter."""
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices
    if isinstance(distribution, IntDistribution):
        low, high, step = distribution.low, distribution.high, distribution.step
        return range(low, high + 1, step) if (high - low) // step < _MOST_VALUES else ()
    return ()


def _deactivating_values(
    other: str,
    distribution: BaseDistribution,
    having: Sequence[FrozenTrial],
    lacking: Sequence[FrozenTrial],
) -> set[float]:
    """Return the values of the parameter `other` for which another parameter A does not exist.

    `having` are the trials with A, `lacking` are the complete trials without A. The values have
    Optuna's internal representation. The result is empty if A does not depend on `other`.
    """
    if any(other not in each.params for each in having):
        return set()
    encoded = distribution.to_internal_repr
    present = {encoded(each.params[other]) for each in having}
    absent = {encoded(each.params[other]) for each in lacking if other in each.params}
    is_chance = _SEEN * len(present | absent) > len(having) + len(lacking)
    return set() if is_chance or present & absent else absent
