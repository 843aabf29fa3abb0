"""Savings and costs of early stopping: `python -m tests.bench.optimizer.stopping`.

Learning curves are replayed. A table has the loss of a region's settings after each epoch, and the
result of each complete training. Settings are drawn, lanes train them one epoch at a time, and a
rule chooses the trials to stop after each epoch. The measures are

regret     distance of the best complete trial from the best drawn setting, in units of the distance
           between the best and the median; 0 without stopping
epochs     trained epochs, as a part of all
missed     share of draws with a regret above 0.05
behind     share of draws with a regret more than 0.05 above that of 1-Epoch: one epoch of all, then
           all epochs of the three best (Egele et al. 2024, arXiv 2404.04111, a baseline that other
           rules often fail to improve on)

The families are synthetic; the rule's constants were chosen on seeds below 100 (`--first`).
`--flights` replays the real trainings of flights_table.py, and `--table FILE.npz` others: arrays
`curves` [regions, settings, epochs], NaN after a failure, and `results` [regions, settings],
smaller is better; optionally `settings` [settings, parameters], scaled to about one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol
from unittest import mock

import numpy as np
import optuna
from numpy.typing import NDArray

from tests.bench.optimizer import flights_table
from tests.bench.optimizer.kronecker import KroneckerModel, SettingsCurve
from tests.bench.optimizer.pool import Pool
from trialfleet.optimizer.space import SearchSpace
from trialfleet.optimizer.stopping import rule
from trialfleet.optimizer.stopping.curves import Curve, CurveModel, Prediction
from trialfleet.optimizer.stopping.rule import (
    Complete,
    Decision,
    Rule,
    choose_stops,
)

Array = NDArray[np.float64]


class Predictor(Protocol):
    """A predictor of the ends of curves."""

    def predict(self, curve: Curve) -> Prediction:
        """Predict the end of a curve with one or more reports."""


MakeModel = Callable[[list[Curve], float], Predictor]

EPOCHS = 50
BEHIND = 0.05
ONE_EPOCH = "1-Epoch"


@dataclass(frozen=True)
class Table:
    """The learning curves of one region.

    Attributes:
        curves: the loss of each setting after each epoch, [settings, epochs].
        results: the result of each setting.
        settings: their parameters, [settings, parameters], scaled to about one; without
            parameters if the curves are random.
    """

    curves: Array
    results: Array
    settings: Array

    def drawn(self, count: int, rng: np.random.Generator) -> Table:
        """Return `count` random settings of the table, in the order of their trials."""
        chosen = rng.permutation(len(self.curves))[:count]
        return Table(self.curves[chosen], self.results[chosen], self.settings[chosen])


@dataclass(frozen=True)
class Replay:
    """The complete trials and the number of trained epochs, after a rule was applied to a draw."""

    complete: list[int]
    epochs: int


# -- families


def power_laws(rng: np.random.Generator, count: int, noise: float = 0.004) -> Table:
    """Return curves with random asymptote, amplitude and exponent; few settings are good."""
    end = 0.1 + 0.5 * rng.beta(1.5, 2.5, count)
    fall = rng.uniform(0.3, 0.9, count)
    power = rng.uniform(0.3, 1.5, count)
    t = np.arange(1, EPOCHS + 1)
    curves = end[:, None] + fall[:, None] * t ** -power[:, None]
    return _noisy(curves, noise, rng)


def noisy(rng: np.random.Generator, count: int) -> Table:
    """Return power laws with much noise in each epoch."""
    return power_laws(rng, count, noise=0.04)


def crossing(rng: np.random.Generator, count: int) -> Table:
    """Return curves that end worse the faster they fall, as with learning rates."""
    speed = rng.uniform(0, 1, count)
    end = 0.15 + 0.25 * speed**2 + 0.2 * rng.beta(1, 3, count)
    tau = 2 + 18 * (1 - speed)
    t = np.arange(EPOCHS)
    curves = end[:, None] + 0.6 * np.exp(-t / tau[:, None])
    return _noisy(curves, 0.004, rng)


def late(rng: np.random.Generator, count: int) -> Table:
    """Return curves; every fourth falls late, but further than the others."""
    table = power_laws(rng, count)
    t = np.arange(1, EPOCHS + 1)
    begin = rng.uniform(5, 35, count)[:, None]
    level = rng.uniform(0.6, 0.8, count)[:, None]
    low = rng.uniform(0.05, 0.3, count)[:, None]
    bloom = low + (level - low) / (1 + np.exp((t - begin) / 2))
    is_late = rng.random(count) < 0.25
    return _noisy(np.where(is_late[:, None], bloom, table.curves), 0.004, rng)


def overfitting(rng: np.random.Generator, count: int) -> Table:
    """Return curves that rise again; the result is that of the best epoch."""
    table = power_laws(rng, count)
    t = np.arange(1, EPOCHS + 1)
    turn = rng.uniform(5, 60, count)[:, None]
    rise = rng.uniform(0.001, 0.01, count)[:, None] * np.maximum(t - turn, 0)
    curves = _noisy(table.curves + rise, 0.002, rng).curves
    return Table(curves, curves.min(axis=1), table.settings)


def _noisy(curves: Array, noise: float, rng: np.random.Generator) -> Table:
    curves = curves + noise * rng.standard_normal(curves.shape)
    return Table(curves, curves[:, -1], np.zeros((len(curves), 0)))


FAMILIES: dict[str, Callable[[np.random.Generator, int], Table]] = {
    "power": power_laws,
    "noisy": noisy,
    "crossing": crossing,
    "late": late,
    "overfit": overfitting,
}


# -- rules


class Stopper:
    """A rule that chooses trials to stop. It reads only reported values from the table."""

    def begin(self, number: int) -> None:
        """Record the start of a trial."""

    def end(self, number: int, *, stopped: bool) -> None:
        """Record the end of a trial."""

    def stops(self, running: dict[int, int]) -> set[int]:
        """Return the trials to stop; `running` has the running trials and their trained epochs."""
        raise NotImplementedError


class Ours(Stopper):
    """trialfleet's rule, with a model of learning curves."""

    def __init__(self, table: Table, rule: Rule, model: MakeModel = CurveModel) -> None:
        self._table, self._rule, self._make = table, rule, model
        self._model: tuple[int, Predictor] | None = None
        self._begun = self._stopped = 0
        self._complete: list[Complete] = []

    def begin(self, number: int) -> None:
        del number
        self._begun += 1

    def end(self, number: int, *, stopped: bool) -> None:
        self._stopped += stopped
        if not stopped:
            curve = self._curve(number, self._table.curves.shape[1])
            self._complete.append(Complete(curve, float(self._table.results[number])))

    def stops(self, running: dict[int, int]) -> set[int]:
        return set(self.decisions(running))

    def decisions(self, running: dict[int, int]) -> dict[int, Decision]:
        """Return the decisions for the trials to stop."""
        curves = {str(number): self._curve(number, n) for number, n in running.items()}
        with mock.patch.object(rule, "CurveModel", self._made):
            found = choose_stops(
                self._rule, curves, self._complete, begun=self._begun, stopped=self._stopped
            )
        return {int(name): decision for name, decision in found.items()}

    def _made(self, complete: list[Curve], end: float) -> Predictor:
        """Return the model of the complete curves, made again only if their number has changed."""
        if self._model is None or self._model[0] != len(complete):
            self._model = len(complete), self._make(complete, end)
        return self._model[1]

    def _curve(self, number: int, epochs: int) -> Curve:
        losses, settings = self._table.curves[number, :epochs], self._table.settings[number]
        return SettingsCurve(np.arange(1.0, epochs + 1), losses, settings)


class OptunaPruner(Stopper):
    """One of Optuna's pruners."""

    def __init__(self, table: Table, pruner: optuna.pruners.BasePruner) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._table = table
        self._study = optuna.create_study(pruner=pruner)
        self._trials: dict[int, optuna.Trial] = {}

    def begin(self, number: int) -> None:
        self._trials[number] = self._study.ask()

    def end(self, number: int, *, stopped: bool) -> None:
        state = optuna.trial.TrialState.PRUNED if stopped else None
        value = None if stopped else float(self._table.results[number])
        self._study.tell(self._trials.pop(number), value, state=state)

    def stops(self, running: dict[int, int]) -> set[int]:
        for number, epochs in running.items():
            self._trials[number].report(float(self._table.curves[number, epochs - 1]), epochs)
        return {number for number in running if self._trials[number].should_prune()}


RULES: dict[str, Callable[[Table], Stopper]] = {
    "ours": lambda table: Ours(table, Rule(max_steps=table.curves.shape[1])),
    "kronecker": lambda table: Ours(table, Rule(max_steps=table.curves.shape[1]), KroneckerModel),
    "median": lambda table: OptunaPruner(table, optuna.pruners.MedianPruner(n_startup_trials=4)),
    "ASHA": lambda table: OptunaPruner(
        table, optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3)
    ),
}


def replayed(
    table: Table, stopper: Stopper, lanes: int, order: Iterable[int] | None = None
) -> Replay:
    """Train a table's settings under a rule.

    Args:
        table: the settings.
        stopper: the rule.
        lanes: number of parallel trainings.
        order: of the settings, read one by one when a lane is free; None: the table's order.
    """
    waiting = iter(range(len(table.curves)) if order is None else order)
    running: dict[int, int] = {}
    complete, trained = [], 0
    while True:
        for number in islice(waiting, lanes - len(running)):
            running[number] = 0
            stopper.begin(number)
        if not running:
            break
        running = {number: epochs + 1 for number, epochs in running.items()}
        trained += len(running)
        for number in [n for n, epochs in running.items() if epochs == table.curves.shape[1]]:
            del running[number]
            complete.append(number)
            stopper.end(number, stopped=False)
        for number in stopper.stops(running):
            del running[number]
            stopper.end(number, stopped=True)
    return Replay(complete, trained)


def one_epoch(table: Table, tried: Sequence[int] | None = None, finalists: int = 3) -> Replay:
    """Train one epoch of some settings (default: all), then all epochs of the best."""
    count, epochs = table.curves.shape
    numbers = np.arange(count) if tried is None else np.asarray(tried)
    best = numbers[np.argsort(table.curves[numbers, 0], kind="stable")[:finalists]]
    return Replay([int(number) for number in best], len(numbers) + len(best) * (epochs - 1))


# -- results


@dataclass(frozen=True)
class Score:
    """The measures of a rule on one draw, which the module's docstring defines."""

    regret: float
    epochs: float


def scores(table: Table, lanes: int, rules: Iterable[str] = RULES) -> dict[str, Score]:
    """Return the score of each rule, and of 1-Epoch, on a draw."""
    found = {name: replayed(table, RULES[name](table), lanes) for name in rules}
    found[ONE_EPOCH] = one_epoch(table)
    return {name: score(table, replay, len(table.results)) for name, replay in found.items()}


def score(table: Table, replay: Replay, trials: int) -> Score:
    """Return the score of a replay of a table's settings."""
    best, median = table.results.min(), float(np.median(table.results))
    regret = (table.results[replay.complete].min() - best) / (median - best)
    return Score(float(regret), replay.epochs / (trials * table.curves.shape[1]))


def report(family: str, drawn: Sequence[dict[str, Score]]) -> str:
    """Return a line for each rule."""
    lines = []
    for name in drawn[0]:
        regrets = np.array([each[name].regret for each in drawn])
        behind = np.mean([each[name].regret > each[ONE_EPOCH].regret + BEHIND for each in drawn])
        epochs = np.mean([each[name].epochs for each in drawn])
        missed = np.mean(regrets > BEHIND)
        lines.append(
            f"{family:10} {name:9} {regrets.mean():8.3f} {np.quantile(regrets, 0.9):8.3f} "
            f"{missed:8.0%} {epochs:8.2f} {behind:8.0%}"
        )
    return "\n".join(lines)


def main() -> int:
    """Run the bench and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--families", nargs="*", default=list(FAMILIES), choices=list(FAMILIES))
    parser.add_argument("--seeds", type=int, default=20, help="draws of each family")
    parser.add_argument(
        "--first",
        type=int,
        default=100,
        help="first seed; smaller ones were used to choose the rule",
    )
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--lanes", type=int, default=4)
    others = parser.add_mutually_exclusive_group()
    others.add_argument("--flights", action="store_true", help="use real trainings of 36 regions")
    others.add_argument("--table", type=Path, help="use your own curves")
    given = parser.parse_args()
    print(
        f"{'family':10} {'rule':9} {'regret':>8} {'its 90 %':>8} {'missed':>8} {'epochs':>8} "
        f"{'behind':>8}"
    )
    for family, tables in _tables(given):
        drawn = []
        for seed, table in enumerate(tables):
            draw = table.drawn(given.trials, np.random.default_rng(seed))
            drawn.append(scores(draw, given.lanes))
            print(f"\r{family} {seed + 1}", end="", file=sys.stderr)
        print("\r", end="", file=sys.stderr)
        print(report(family, drawn), flush=True)
    return 0


def _flights() -> list[Table]:
    """Return the regions of the replay table; a result is that of the best epoch."""
    known = flights_table.read()
    space = SearchSpace.model_validate(flights_table.SPACE)
    rows = Pool.of(space, known.settings).rows
    return [_whole(known.curves(r), known.losses(r), rows) for r in known.regions]


def came_to_their_ends(curves: Array, results: Array) -> NDArray[np.bool_]:
    """Return a mask of the complete trainings, [settings]."""
    return np.asarray(np.isfinite(curves).all(axis=1) & np.isfinite(results))


def _whole(curves: Array, results: Array, settings: Array) -> Table:
    """Return the table of the complete trainings."""
    kept = came_to_their_ends(curves, results)
    return Table(curves[kept], results[kept], settings[kept])


def _tables(given: argparse.Namespace) -> list[tuple[str, list[Table]]]:
    if given.flights:
        return [("flights", _flights())]
    if given.table:
        arrays = np.load(given.table)
        points = arrays.get("settings", np.zeros((arrays["curves"].shape[1], 0)))
        pairs = zip(arrays["curves"], arrays["results"], strict=True)
        return [(given.table.stem, [_whole(*pair, points) for pair in pairs])]
    return [
        (
            name,
            [
                FAMILIES[name](np.random.default_rng([seed, 1]), given.trials)
                for seed in range(given.first, given.first + given.seeds)
            ],
        )
        for name in given.families
    ]


if __name__ == "__main__":
    sys.exit(main())
