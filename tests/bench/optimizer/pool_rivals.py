"""Optimisers that choose from a pool of settings: trialfleet's, Optuna's, BoTorch's, baselines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.trial import FrozenTrial, TrialState, create_trial
from scipy.stats import norm, rankdata

from tests.bench.optimizer.pool import Array, Pool, RandomDesign, Results, one_hot
from trialfleet.optimizer.sampling.gp.proposal import build_acquisition
from trialfleet.optimizer.sampling.next_parameters import in_startup
from trialfleet.optimizer.sampling.optuna_samplers import optuna_proposals
from trialfleet.optimizer.sampling.seeds import stable_seed
from trialfleet.optimizer.sampling.startup_count import default_startup, halve_startup
from trialfleet.optimizer.sampling.warm_start import PreviousTask, PreviousTasks

STARTUP = 10  # results before the model of the other rivals, as in GPSampler


class Ours:
    """trialfleet's `suggest`, which searches only the pool's settings."""

    def __init__(self, pool: Pool, seed: int, trials: int, previous: PreviousTasks | None = None):
        self._pool, self._seed, self._previous = pool, stable_seed(seed, "bench"), previous
        startup = default_startup(trials, pool.domain.size)
        self._startup = halve_startup(startup) if previous else startup
        self._design = RandomDesign(pool, seed)
        self._good = list(previous.startup_points(pool.space, self._startup)) if previous else []

    def choose(self, results: Results, left: Sequence[int]) -> int:
        if not results.asked:
            return self._design.choose(results, left)
        if in_startup(trials_of(self._pool, results), self._startup):
            good = self._next_good(left)
            return self._design.choose(results, left) if good is None else good
        rows = self._pool.rows
        _, teachers = (self._previous and self._previous.find_teachers(self._pool.space)) or (
            [],
            None,
        )
        random = np.random.default_rng(stable_seed(self._seed, len(results.asked)))
        improvement, _ = build_acquisition(
            self._pool.domain,
            rows[results.known],
            results.values,
            rows[results.pending].reshape(-1, rows.shape[1]),
            random,
            teachers,
        )
        return left[int(improvement.log(rows[list(left)]).argmax())]

    def _next_good(self, left: Sequence[int]) -> int | None:
        """Return the next good setting of earlier runs; None if all were tried."""
        while self._good:
            row = self._pool.domain.encode([self._good.pop(0)])[0]
            nearest = int(self._pool.distances(row).argmin())
            if nearest in left:
                return nearest
        return None


class PooledGPSampler(optuna.samplers.GPSampler):
    """Optuna's GPSampler, whose acquisition function is evaluated only at the pool's settings."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed=seed, n_startup_trials=STARTUP)
        self.candidates: list[dict[str, Any]] = []

    def _optimize_acqf(self, acqf: Any, best_params: Any) -> NDArray[Any]:  # noqa: ARG002
        trials = [create_trial(value=0.0, **self._as_trial(point)) for point in self.candidates]
        candidates = self._space.get_normalized_params(trials)
        found: NDArray[Any] = candidates[int(acqf.eval_acqf_no_grad(candidates).argmax())]
        return found

    def _sample_relative_impl(self, study: Any, *arguments: Any) -> dict[str, Any]:
        from optuna._gp.search_space import SearchSpace as GPSpace

        self._distributions = arguments[-1]
        self._space = GPSpace(self._distributions)
        found: dict[str, Any] = super()._sample_relative_impl(study, *arguments)
        return found

    def _as_trial(self, point: dict[str, Any]) -> dict[str, Any]:
        params = {name: point[name] for name in self._distributions}
        return {"params": params, "distributions": self._distributions}


class GPSampler:
    """Optuna's GPSampler with its own defaults."""

    def __init__(self, pool: Pool, seed: int) -> None:
        self._pool, self._design = pool, RandomDesign(pool, seed)
        self._sampler = PooledGPSampler(seed)
        self._study = optuna.create_study(sampler=self._sampler)
        self._trials: dict[int, optuna.Trial] = {}

    def choose(self, results: Results, left: Sequence[int]) -> int:
        for number in [number for number in self._trials if number in results.losses]:
            self._study.tell(self._trials.pop(number), results.losses[number])
        if len(results.losses) < STARTUP:
            chosen = self._design.choose(results, left)
            self._study.enqueue_trial(self._pool.settings[chosen])
            trial = self._asked()
        else:
            self._sampler.candidates = [self._pool.settings[number] for number in left]
            trial = self._asked()
            distances = self._pool.distances(self._pool.domain.encode([trial.params])[0])[
                list(left)
            ]
            assert distances.min() < 1e-6
            chosen = left[int(distances.argmin())]
        self._trials[chosen] = trial
        return chosen

    def _asked(self) -> optuna.Trial:
        return self._study.ask(fixed_distributions=self._pool.space.distributions())


class NearestTPE:
    """Optuna's TPESampler; of its proposal, the nearest setting of the pool is taken."""

    def __init__(self, pool: Pool, seed: int) -> None:
        self._pool, self._seed, self._design = pool, seed, RandomDesign(pool, seed)

    def choose(self, results: Results, left: Sequence[int]) -> int:
        if len(results.losses) < STARTUP:
            return self._design.choose(results, left)
        pool = self._pool
        seed = stable_seed(self._seed, len(results.asked))
        points = [pool.settings[number] for number in results.asked]
        history = trials_of(pool, results)
        asked = optuna_proposals("TPESampler", pool.space, history, points, "minimize", seed)
        distances = pool.distances(pool.domain.encode([next(asked)])[0])[list(left)]
        return left[int(distances.argmin())]


class NoisyEI:
    """BoTorch's qLogNEI with SingleTaskGP, both with defaults; a choice has a dimension per value.

    MixedSingleTaskGP, BoTorch's other model for choices, took four to six times as long.
    """

    def __init__(self, pool: Pool, seed: int) -> None:
        self._rows = one_hot(pool.domain, pool.rows)
        self._seed, self._design = seed, RandomDesign(pool, seed)

    def choose(self, results: Results, left: Sequence[int]) -> int:
        if len(results.losses) < STARTUP:
            return self._design.choose(results, left)
        import torch

        rows = torch.from_numpy(self._rows)
        random = stable_seed(self._seed, len(results.asked)) % 2**31
        known, pending = rows[results.known], rows[results.pending]
        improvement = noisy_improvement(known, results.values, pending, random, self._seed)
        with torch.no_grad():
            found = improvement(rows[list(left)][:, None])
        return left[int(found.argmax())]


def noisy_improvement(known: Any, losses: Array, pending: Any, random: int, seed: int) -> Any:
    """Return BoTorch's qLogNEI with SingleTaskGP, for rows with results and rows without."""
    import torch
    from botorch import acquisition, fit_gpytorch_mll
    from botorch.models import SingleTaskGP
    from botorch.sampling import SobolQMCNormalSampler
    from gpytorch.mlls import ExactMarginalLogLikelihood

    torch.set_num_threads(1)
    torch.manual_seed(random)
    model = SingleTaskGP(known, -torch.from_numpy(losses)[:, None])
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return acquisition.qLogNoisyExpectedImprovement(
        model,
        X_baseline=known,
        X_pending=pending if len(pending) else None,
        sampler=SobolQMCNormalSampler(torch.Size([128]), seed=seed),
        prune_baseline=True,
    )


class ZeroShot:
    """A portfolio of the previous tasks' settings, independent of results: Wistuba et al. 2015.

    A setting's rank in a task is by the task's model (its Gaussian process), because tasks have
    tried different settings. The choice is greedy: the next setting improves the best ranks of all
    tasks most.
    """

    def __init__(self, pool: Pool, tasks: Sequence[PreviousTask]) -> None:
        self._order = portfolio(previous_means(pool, tasks))

    def choose(self, results: Results, left: Sequence[int]) -> int:  # noqa: ARG002
        return next(number for number in self._order if number in set(left))


class QuantileTransfer:
    """Gaussian copula with Thompson sampling: Salinas, Shen, Perrone 2020 (ICML), its CTS.

    Each earlier task's results become quantiles of the normal distribution. A regression (here
    LightGBM's trees, in place of a network) predicts them from the settings. A setting is drawn by
    its prediction and the prediction's error. Results of the new task have no effect.
    """

    def __init__(self, pool: Pool, seed: int, tasks: Sequence[PreviousTask]) -> None:
        from lightgbm import LGBMRegressor

        self._random = np.random.default_rng([seed, 3])
        self._means, self._deviation = quantile_model(pool, tasks, LGBMRegressor)

    def choose(self, results: Results, left: Sequence[int]) -> int:
        if not results.asked:
            return 0
        drawn = self._means + self._deviation * self._random.standard_normal(len(self._means))
        return left[int(drawn[list(left)].argmin())]


def quantile_model(
    pool: Pool, tasks: Sequence[PreviousTask], regressor: Any
) -> tuple[Array, float]:
    """Return the predicted normal quantile of every setting, and the prediction's deviation."""
    rows, quantiles, groups = [], [], []
    for group, task in enumerate(tasks):
        rows += list(pool.domain.encode(task.points))
        quantiles += norm.ppf((rankdata(task.losses) - 0.5) / len(task.losses)).tolist()
        groups += [group % 5] * len(task.points)
    given, target, fold = np.array(rows), np.array(quantiles), np.array(groups)

    def fitted(chosen: NDArray[np.bool_]) -> Any:
        model = regressor(n_estimators=200, learning_rate=0.05, num_leaves=15, n_jobs=1, verbose=-1)
        return model.fit(given[chosen], target[chosen])

    errors = [
        (fitted(fold != held).predict(given[fold == held]) - target[fold == held])
        for held in range(5)
        if (fold == held).any() and (fold != held).any()
    ]
    deviation = float(np.concatenate(errors).std())
    return fitted(np.ones(len(fold), bool)).predict(pool.rows), deviation


def previous_means(pool: Pool, tasks: Sequence[PreviousTask]) -> Array:
    """Return each task's prediction for each setting, [settings, tasks]."""
    known = PreviousTasks(tuple(tasks), "").find_teachers(pool.space)
    assert known
    return known[1].means(pool.rows)


def portfolio(means: Array) -> list[int]:
    """Return all settings, ordered greedily by the sum of all tasks' best ranks."""
    ranks = rankdata(means, axis=0)
    reached = np.full(means.shape[1], np.inf)
    order: list[int] = []
    while len(order) < len(means):
        sums = np.minimum(ranks, reached).sum(axis=1)
        sums = sums + 1e-6 * ranks.sum(
            axis=1
        )  # if no setting improves the sum: the best on average
        sums[order] = np.inf
        order.append(int(sums.argmin()))
        reached = np.minimum(reached, ranks[order[-1]])
    return order


def trials_of(pool: Pool, results: Results) -> list[FrozenTrial]:
    """Return the results as the trials that `suggest` gets."""
    distributions = pool.space.distributions()

    def trial(number: int) -> FrozenTrial:
        active = pool.space.active(pool.settings[number])
        value = results.losses.get(number)
        state = TrialState.RUNNING if value is None else TrialState.COMPLETE
        own = {name: distributions[name] for name in active}
        return create_trial(state=state, params=active, distributions=own, value=value)

    return [trial(number) for number in results.asked]
