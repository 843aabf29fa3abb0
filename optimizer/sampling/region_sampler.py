"""Our Gaussian process as a sampler that any Optuna study may use.

    study = optuna.create_study(sampler=RegionSampler(seed=0))

It reads what the study's storage holds and keeps nothing: processes that share a storage need no
more than the storage. The number of the trial decides what is left to chance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from trialfleet.objective import losses
from trialfleet.optimizer.sampling.gp.domain import Array, Domain
from trialfleet.optimizer.sampling.gp.proposal import proposals
from trialfleet.optimizer.sampling.seeds import stable_seed

_FINISHED = (TrialState.COMPLETE, TrialState.FAIL)


class RegionSampler(BaseSampler):
    """A Gaussian process that knows pending trials, failed ones, and conditional parameters.

    Parameters that a trial doesn't have (a conditional one that isn't active) count as being at
    their middle. Failed trials count as bad as the worst result. Pruned trials count for nothing.
    ValueError: the study has several objectives.
    """

    def __init__(self, *, seed: int | None = None, n_startup_trials: int = 10) -> None:
        """Make a sampler.

        Args:
            seed: decides what is left to chance; None for another choice each time.
            n_startup_trials: trials that are random before the model proposes.
        """
        any_seed = int(np.random.SeedSequence().generate_state(1)[0])
        self._seed = any_seed if seed is None else seed
        self._startup = n_startup_trials

    def reseed_rng(self) -> None:
        """Do nothing: a trial's number decides, so that processes beside each other differ."""

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return every parameter that a finished or running trial had, by its latest range."""
        found: dict[str, BaseDistribution] = {}
        for other in study.get_trials(deepcopy=False):
            if other.number != trial.number:
                found.update(other.distributions)
        return {name: found[name] for name in sorted(found) if not found[name].single()}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the point to try next; nothing while there are too few results."""
        self._raise_error_if_multi_objective(study)
        trials = study.get_trials(deepcopy=False)
        known = [each for each in trials if each.state in _FINISHED]
        if sum(each.state == TrialState.COMPLETE for each in known) < max(1, self._startup):
            return {}
        if not search_space:
            return {}
        domain = Domain(search_space)
        pending = [
            each
            for each in trials
            if each.state == TrialState.RUNNING and each.number != trial.number and each.params
        ]
        seed = stable_seed(self._seed, trial.number)
        is_maximized = study.direction == StudyDirection.MAXIMIZE
        values = np.array(
            losses([trial.value for trial in known], "maximize" if is_maximized else "minimize")
        )
        rows, awaited = (_rows(domain, search_space, each) for each in (known, pending))
        found = proposals(domain, rows, values, awaited, seed)
        return domain.decode(found.rows[0])

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Return a random value."""
        self._raise_error_if_multi_objective(study)
        seed = stable_seed(self._seed, trial.number, param_name)
        return RandomSampler(seed=seed).sample_independent(
            study, trial, param_name, param_distribution
        )


def _rows(
    domain: Domain, space: Mapping[str, BaseDistribution], trials: Sequence[FrozenTrial]
) -> Array:
    """The trials' rows; a value outside of the parameter's latest range counts as missing."""
    points = [
        {
            name: value
            for name, value in each.params.items()
            if name in space and _fits(space[name], value)
        }
        for each in trials
    ]
    return domain.canonical(domain.encode(points))


def _fits(distribution: BaseDistribution, value: Any) -> bool:
    if isinstance(distribution, CategoricalDistribution):
        return value in distribution.choices
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    is_number = isinstance(value, int | float)
    return is_number and distribution.low <= value <= distribution.high
