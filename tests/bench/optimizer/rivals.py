"""Optimisers with one interface: trialfleet's as a study uses it, and Optuna's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import optuna
from optuna.trial import FrozenTrial, TrialState, create_trial

from trialfleet.optimizer.sampling.next_parameters import suggest
from trialfleet.optimizer.sampling.seeds import stable_seed
from trialfleet.optimizer.sampling.startup_count import default_startup
from trialfleet.optimizer.sampling.warm_start import PreviousTasks
from trialfleet.optimizer.space import SearchSpace


class Rival(Protocol):
    """An optimiser that proposes points, several of which may be pending."""

    def ask(self) -> tuple[Any, dict[str, Any]]:
        """Return the parameters to try, and a handle for `tell`."""

    def tell(self, handle: Any, loss: float) -> None:
        """Record the result."""


class Ours:
    """trialfleet's `suggest`, called as the optimiser's service calls it for each trial."""

    def __init__(
        self, space: SearchSpace, seed: int, trials: int, previous: PreviousTasks | None = None
    ) -> None:
        self._space = space
        self._previous = previous
        self._seed = stable_seed(seed, "bench")
        self._startup = default_startup(trials, len(space.parameters))
        self._history: list[FrozenTrial] = []

    def learn(self, point: dict[str, Any], loss: float) -> None:
        """Add the result of a point for which it was not asked."""
        self._history.append(self._trial(point, TrialState.COMPLETE, loss))

    def ask(self) -> tuple[int, dict[str, Any]]:
        point = suggest(
            self._space,
            self._history,
            direction="minimize",
            seed=self._seed,
            startup_trials=self._startup,
            previous=self._previous,
        ).point
        self._history.append(self._trial(point, TrialState.RUNNING, None))
        return len(self._history) - 1, point

    def tell(self, handle: int, loss: float) -> None:
        params = self._history[handle].params
        self._history[handle] = self._trial(params, TrialState.COMPLETE, loss)

    def _trial(self, point: dict[str, Any], state: TrialState, loss: float | None) -> FrozenTrial:
        active = self._space.active(point)
        distributions = self._space.distributions()
        own = {name: distributions[name] for name in active}
        return create_trial(state=state, params=active, distributions=own, value=loss)


class OfOptuna:
    """One of Optuna's samplers with its own defaults."""

    def __init__(self, sampler: optuna.samplers.BaseSampler, space: SearchSpace) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._space = space
        self._study = optuna.create_study(sampler=sampler)

    def ask(self) -> tuple[optuna.Trial, dict[str, Any]]:
        trial = self._study.ask(fixed_distributions=self._space.distributions())
        entries = self._space.parameters.items()
        point = {name: entry.nearest(trial.params[name]) for name, entry in entries}
        return trial, self._space.canonical(point)

    def tell(self, handle: optuna.Trial, loss: float) -> None:
        self._study.tell(handle, loss)


RIVALS: dict[str, Callable[[SearchSpace, int, int], Rival]] = {
    "GPSampler": lambda space, seed, _: OfOptuna(optuna.samplers.GPSampler(seed=seed), space),
    "RegionSampler": Ours,
    "TPESampler": lambda space, seed, _: OfOptuna(
        optuna.samplers.TPESampler(seed=seed, constant_liar=True), space
    ),
    "RandomSampler": lambda space, seed, _: OfOptuna(
        optuna.samplers.RandomSampler(seed=seed), space
    ),
}
