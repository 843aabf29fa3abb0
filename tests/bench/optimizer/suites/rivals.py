"""The optimisers of the suites: ours, Optuna's, BoTorch's, SMAC, HEBO."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.samplers import GPSampler, RandomSampler, TPESampler

from tests.bench.optimizer.pool import one_hot
from tests.bench.optimizer.pool_rivals import STARTUP, noisy_improvement
from tests.bench.optimizer.rivals import OfOptuna, Ours, Rival
from tests.bench.optimizer.suites import hebo_client
from tests.bench.optimizer.suites.problems import INSTALL
from trialfleet.optimizer.sampling.gp.domain import Array
from trialfleet.optimizer.sampling.seeds import stable_seed
from trialfleet.optimizer.sampling.warm_start import build_domain
from trialfleet.optimizer.space import SearchSpace


class Believer(GPSampler):
    """The reference: Optuna's Gaussian process, fantasized pending trials, analytic LogEI.

    It is a kriging believer (Ginsbourger et al. 2010): the model's prediction is used as the result
    of each pending trial. GPSampler itself averages qLogEI over random results of pending trials.
    """

    def _optimize_acqf(self, acqf: Any, best_params: Any) -> Any:
        from optuna._gp.acqf import LogEI, qLogEI

        if isinstance(acqf, qLogEI):
            model, pending = acqf._cond_gpr._gpr, acqf._cond_gpr._X_running
            believed = model.posterior(pending)[0]
            model.append_running_data(pending, believed)
            best = max(acqf._threshold, float(believed.max()))
            acqf = LogEI(model, acqf.search_space, best)
        return super()._optimize_acqf(acqf, best_params)


class RelaxedNoisyEI:
    """BoTorch's qLogNEI with SingleTaskGP over a continuous relaxation; the best point is rounded.

    A choice has a dimension for each value; the largest one is chosen. The first ten points are
    random. qLogNEI handles pending trials.
    """

    def __init__(self, space: SearchSpace, seed: int) -> None:
        self._space, self._domain, self._seed = space, build_domain(space), seed
        self._random = np.random.default_rng([seed, 2])
        self._rows: list[Array] = []
        self._losses: dict[int, float] = {}

    def ask(self) -> tuple[int, dict[str, Any]]:
        if len(self._losses) < STARTUP:
            unit = self._random.uniform(size=(1, self._domain.size))
            row = self._domain.spread(unit)[0]
        else:
            row = self._best_row()
        self._rows.append(self._domain.canonical(row[None])[0])
        return len(self._rows) - 1, self._space.canonical(self._domain.decode(row))

    def tell(self, handle: int, loss: float) -> None:
        self._losses[handle] = loss

    def _best_row(self) -> Array:
        import torch
        from botorch.optim import optimize_acqf

        relaxed = torch.from_numpy(one_hot(self._domain, np.array(self._rows)))
        known = sorted(self._losses)
        pending = [number for number in range(len(self._rows)) if number not in self._losses]
        losses = np.array([self._losses[number] for number in known])
        random = stable_seed(self._seed, len(self._rows)) % 2**31
        improvement = noisy_improvement(
            relaxed[known], losses, relaxed[pending], random, self._seed
        )
        bounds = torch.tensor([[0.0], [1.0]], dtype=torch.double).expand(2, relaxed.shape[1])
        found, _ = optimize_acqf(improvement, bounds, q=1, num_restarts=10, raw_samples=512)
        return self._from_relaxed(found[0].numpy())

    def _from_relaxed(self, point: Array) -> Array:
        row, place = [], 0
        for column in self._domain.columns.values():
            width = (column.count or 1) if column.is_categorical else 1
            values = point[place : place + width]
            row.append(float(values.argmax()) if column.is_categorical else float(values[0]))
            place += width
        return np.array(row)


class Smac:
    """SMAC3's HyperparameterOptimizationFacade with its own defaults, by ask and tell.

    Its random forest is retrained after every eight proposals. It does not impute pending trials:
    its model learns only from finished trials, and no setting is proposed twice.
    """

    def __init__(self, space: SearchSpace, seed: int, trials: int) -> None:
        from ConfigSpace import Categorical, ConfigurationSpace, Float, Integer
        from smac import HyperparameterOptimizationFacade, Scenario

        def parameter(name: str, entry: Any) -> Any:
            if entry.type == "categorical":
                return Categorical(name, entry.choices)
            kind = Integer if entry.type == "int" else Float
            return kind(name, (entry.low, entry.high), log=entry.log)

        self._space = space
        given = ConfigurationSpace(seed=seed)
        given.add([parameter(name, entry) for name, entry in space.parameters.items()])
        self._folder = tempfile.TemporaryDirectory()
        scenario = Scenario(
            given,
            deterministic=True,
            n_trials=trials,
            seed=seed,
            output_directory=Path(self._folder.name),
        )
        self._smac = HyperparameterOptimizationFacade(
            scenario, _never_called, logging_level=False, overwrite=True
        )

    def ask(self) -> tuple[Any, dict[str, Any]]:
        info = self._smac.ask()
        entries = self._space.parameters.items()
        return info, {name: entry.nearest(info.config[name]) for name, entry in entries}

    def tell(self, handle: Any, loss: float) -> None:
        from smac.runhistory.dataclasses import TrialValue

        self._smac.tell(handle, TrialValue(cost=loss))


def _never_called(config: Any, seed: int = 0) -> float:
    raise NotImplementedError


@dataclass(frozen=True)
class Entrant:
    """An optimiser that may be part of a run.

    Attributes:
        made: makes it for a search space, a seed, and a number of trials.
        missing: returns why it can't be used, and how to install it; empty if it can.
    """

    made: Callable[[SearchSpace, int, int], Rival]
    missing: Callable[[], str] = lambda: ""


def _needs(module: str) -> Callable[[], str]:
    def missing() -> str:
        if importlib.util.find_spec(module):
            return ""
        return f"there is no {module}: {INSTALL}"

    return missing


def _of_optuna(made: Callable[[int], optuna.samplers.BaseSampler]) -> Entrant:
    return Entrant(lambda space, seed, _: OfOptuna(made(seed), space))


OURS = "RegionSampler"
SLOW = ("HEBO",)  # part of a run only if named
ENTRANTS: Mapping[str, Entrant] = {
    OURS: Entrant(Ours),
    "GPSampler": _of_optuna(lambda seed: GPSampler(seed=seed)),
    "believer": _of_optuna(lambda seed: Believer(seed=seed)),
    "qLogNEI": Entrant(lambda space, seed, _: RelaxedNoisyEI(space, seed), _needs("botorch")),
    "SMAC3": Entrant(Smac, _needs("smac")),
    "HEBO": Entrant(lambda space, seed, _: hebo_client.Hebo(space, seed), hebo_client.missing),
    "TPESampler": _of_optuna(
        lambda seed: TPESampler(seed=seed, multivariate=True, constant_liar=True)
    ),
    "RandomSampler": _of_optuna(lambda seed: RandomSampler(seed=seed)),
}
