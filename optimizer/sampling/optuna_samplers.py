"""Suggestions by one of Optuna's own samplers, as a pure function of the trials so far.

For each suggestion, a new sampler gets a new study in memory with these trials. So samplers that
keep state in attributes of an Optuna study (CmaEsSampler, NSGAIISampler) can't be used: they would
restart at every trial.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import optuna
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState, create_trial

from trialfleet.objective import Direction, loss

if TYPE_CHECKING:
    from trialfleet.optimizer.space import Scalar, SearchSpace

Point = dict[str, "Scalar"]

HUGE = 1e100
COUNTABLE = 1000  # a parameter with more values is continuous for the model, then rounded

# Otherwise Optuna logs a study to stderr at each ask.
optuna.logging.set_verbosity(optuna.logging.WARNING)


def _gp_sampler(seed: int) -> BaseSampler:
    import torch

    # one thread: a second does not help small matrices and takes a core from trials
    torch.set_num_threads(1)
    return optuna.samplers.GPSampler(seed=seed, n_startup_trials=1, warn_independent_sampling=False)


_SAMPLERS: dict[str, Callable[[int], BaseSampler]] = {
    "GPSampler": _gp_sampler,
    "RandomSampler": lambda seed: optuna.samplers.RandomSampler(seed=seed),
    "TPESampler": lambda seed: optuna.samplers.TPESampler(
        seed=seed, n_startup_trials=1, constant_liar=True
    ),
}


def optuna_proposals(
    sampler: str,
    space: SearchSpace,
    history: Sequence[FrozenTrial],
    points: Sequence[Point],
    direction: Direction,
    seed: int,
) -> Iterator[Point]:
    """Yield a sampler's proposals. Each counts as a running trial for the next proposal.

    `points` are the canonical points (`space.py`) of the trials so far, `history`. At least one of
    the trials must have a value.
    """
    seen = _model_distributions(space)
    study = optuna.create_study(direction=direction, sampler=_SAMPLERS[sampler](seed))

    def add(state: TrialState, point: Point, value: float | None = None) -> None:
        study.add_trial(create_trial(state=state, params=point, distributions=seen, value=value))

    values = [trial.value for trial in history if trial.value is not None]
    worst = max(values, key=lambda value: loss(value, direction))
    # samplers standardize values, so any scale will do; squares of huge values overflow
    largest = max(map(abs, values))
    scale = 1.0 if largest < HUGE else largest
    for trial, point in zip(history, points, strict=True):
        if trial.state == TrialState.RUNNING:
            add(TrialState.RUNNING, point)
        elif trial.state != TrialState.PRUNED or trial.values:
            value = worst if trial.value is None else trial.value
            add(TrialState.COMPLETE, point, value / scale)
    while True:
        proposed = space.nearest(study.ask(fixed_distributions=seen).params)
        yield proposed
        add(TrialState.RUNNING, proposed)


def _model_distributions(space: SearchSpace) -> dict[str, BaseDistribution]:
    """Return the parameters' distributions for the sampler.

    A number with more than COUNTABLE values gets a continuous distribution, because a sampler might
    list all values of a discrete one.
    """
    distributions = space.distributions()
    for name, entry in space.parameters.items():
        if entry.type != "categorical" and (entry.count or 0) > COUNTABLE:
            distributions[name] = FloatDistribution(entry.low, entry.high, log=entry.log)
    return distributions
