"""A Gaussian process as a sampler that any Optuna study may use.

    study = optuna.create_study(sampler=RegionSampler(seed=0))

The sampler reads all trials from the study and keeps none, so several processes can share a study.
The random numbers of a proposal depend only on the sampler's seed and the trial's number.
"""

from __future__ import annotations

from collections import Counter
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
from scipy.stats.qmc import Sobol

from trialfleet.objective import Direction, losses
from trialfleet.optimizer.sampling.conditions import infer_conditions
from trialfleet.optimizer.sampling.gp.domain import Array, Domain
from trialfleet.optimizer.sampling.gp.proposal import proposals
from trialfleet.optimizer.sampling.seeds import stable_seed


class RegionSampler(BaseSampler):
    """A Gaussian process that handles pending trials, failed trials and conditional parameters.

    A conditional parameter exists only if a categorical or integer parameter has certain values.
    The sampler finds these conditions in the trials. If a trial lacks a parameter, the model uses
    the middle of the parameter's range, or its first choice.

    Three kinds of trials count as the worst result: failed ones, ones pruned before their first
    report, and ones that violate a constraint. As long as no trial satisfies all constraints, the
    sampler minimizes the sum of a trial's violations instead.

    Three kinds of trials are ignored:

    - trials that a pruner ended after a report, because reports are not results
    - trials with a value outside the latest range of its parameter
    - trials without any parameter of the search space

    Methods raise ValueError if the study has several objectives.
    """

    def __init__(self, *, seed: int | None = None, n_startup_trials: int = 10) -> None:
        """Create a sampler. Without a `seed`, each sampler has a different seed.

        The first two trials are random, because the sampler only proposes parameters that two
        earlier trials have. The next trials follow a Sobol sequence. Once `n_startup_trials` trials
        are complete, the Gaussian process proposes.
        """
        self._seed = _any_seed() if seed is None else int(seed)
        self._startup = n_startup_trials

    def reseed_rng(self) -> None:
        """Choose another seed. Optuna calls this before it starts trials in several threads."""
        self._seed = _any_seed()

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return the parameters that occur in two or more trials, with their latest ranges.

        A parameter of only one trial is left out, because its name may be unique to that trial. A
        parameter whose latest range has a single value is left out, too.
        """
        found: dict[str, BaseDistribution] = {}
        counts: Counter[str] = Counter()
        for other in study.get_trials(deepcopy=False):
            if other.number != trial.number:
                found.update(other.distributions)
                counts.update(other.distributions.keys())
        names = (name for name in sorted(found) if counts[name] > 1)
        return {name: found[name] for name in names if not found[name].single()}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the next values of the active parameters, or {} if `search_space` is empty."""
        self._raise_error_if_multi_objective(study)
        trials = [
            each
            for each in study.get_trials(deepcopy=False)
            if each.number != trial.number and _is_inside(search_space, each.params)
        ]
        if not search_space:
            return {}
        known = [each for each in trials if _is_known(each)]
        domain = Domain(search_space, infer_conditions(search_space, trials))
        complete = sum(each.state == TrialState.COMPLETE for each in known)
        if complete < max(1, self._startup):
            return _active(domain, self._startup_row(domain, trial.number))
        pending = [each for each in trials if each.state == TrialState.RUNNING]
        seed = stable_seed(self._seed, trial.number)
        is_maximized = study.direction == StudyDirection.MAXIMIZE
        values = _losses(known, "maximize" if is_maximized else "minimize")
        rows, awaited = (_rows(domain, each) for each in (known, pending))
        return _active(domain, proposals(domain, rows, values, awaited, seed)[0][0])

    def _startup_row(self, domain: Domain, number: int) -> Array:
        sequence = Sobol(domain.size, scramble=True, rng=stable_seed(self._seed, "design"))
        return np.asarray(domain.spread(sequence.fast_forward(number).random())[0])

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Return a random value for a parameter that `sample_relative` did not choose."""
        self._raise_error_if_multi_objective(study)
        seed = stable_seed(self._seed, trial.number, param_name)
        return RandomSampler(seed=seed).sample_independent(
            study, trial, param_name, param_distribution
        )


def _any_seed() -> int:
    return int(np.random.SeedSequence().generate_state(1)[0])


def _losses(trials: Sequence[FrozenTrial], direction: Direction) -> Array:
    """Return a finite loss for each of `trials`.

    The trials are complete, failed or pruned, and at least one is complete.
    """
    violations = [
        _constraint_violation(each) if each.state == TrialState.COMPLETE else None
        for each in trials
    ]
    if 0 not in violations:
        return np.array(losses(violations, "minimize"))
    kept = (each.value if x == 0 else None for each, x in zip(trials, violations, strict=True))
    return np.array(losses(kept, direction))


def _is_known(trial: FrozenTrial) -> bool:
    """Return whether the model uses the result of `trial`, or counts `trial` as the worst."""
    never_reported = trial.state == TrialState.PRUNED and not trial.intermediate_values
    return never_reported or trial.state in (TrialState.COMPLETE, TrialState.FAIL)


def _constraint_violation(trial: FrozenTrial) -> float:
    return sum(max(value, 0.0) for value in trial.constraints.values())


def _active(domain: Domain, row: Array) -> dict[str, Any]:
    active = domain.active(row[None])[0].tolist()
    point = domain.decode(row)
    return {name: point[name] for name, each in zip(domain.names, active, strict=True) if each}


def _rows(domain: Domain, trials: Sequence[FrozenTrial]) -> Array:
    return domain.canonical(domain.encode([each.params for each in trials]))


def _is_inside(space: Mapping[str, BaseDistribution], params: Mapping[str, Any]) -> bool:
    common = space.keys() & params.keys()
    return bool(common) and all(_fits(space[name], params[name]) for name in common)


def _fits(distribution: BaseDistribution, value: Any) -> bool:
    if isinstance(distribution, CategoricalDistribution):
        try:
            distribution.to_internal_repr(value)
        except ValueError:
            return False
        return True
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    is_number = isinstance(value, int | float)
    return is_number and distribution.low <= value <= distribution.high
