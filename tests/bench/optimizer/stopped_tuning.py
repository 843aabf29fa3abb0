"""Early stopping while an optimiser chooses: `python -m tests.bench.optimizer.stopped_tuning`.

`stopping.py` replays settings in random order. Here our optimiser chooses them, and learns a value
of each stopped trial. Regions are those of the replay table of flights: lanes train one epoch at a
time, and the rule decides after each. The ways differ in the recorded value of a stopped trial:

never        no trial is stopped
predicted    the predicted result
reached      the predicted result, or the best report if that is better
reported     the best report
worst        the worst result so far, as for a failure
1-Epoch      each setting is trained for one epoch, and its result is recorded; the three best are
             then trained completely

The measures are the regret of the best complete trial, in units of the distance between the table's
best and median settings, and the trained epochs as a part of all.

curves:

flights      real trainings of twelve epochs
power        power laws of 50 epochs with the results of the real trainings and random exponents
crossing     the same, but settings with worse results are faster
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import as_completed
from functools import lru_cache

import numpy as np

from tests.bench.optimizer import flights_table
from tests.bench.optimizer.pool import Pool, Results
from tests.bench.optimizer.pool_rivals import Ours as Chooser
from tests.bench.optimizer.runs import bounds, resampled_means, single_threaded
from tests.bench.optimizer.stopping import (
    BEHIND,
    EPOCHS,
    ONE_EPOCH,
    Ours,
    Score,
    Stopper,
    Table,
    came_to_their_ends,
    one_epoch,
    replayed,
    score,
)
from trialfleet.optimizer.space import SearchSpace
from trialfleet.optimizer.stopping.rule import Decision, Rule

NEVER = "never"
WAYS = (NEVER, "predicted", "reached", "reported", "worst", ONE_EPOCH)
KINDS = ("flights", "power", "crossing")
LANES = 4


@lru_cache
def opened(kind: str, region: str) -> tuple[Pool, Table]:
    """Return the settings of the replay table without a failure in a region, and their curves."""
    known = flights_table.read()
    curves, results = known.curves(region), known.losses(region)
    kept = np.flatnonzero(came_to_their_ends(curves, results))
    space = SearchSpace.model_validate(flights_table.SPACE)
    pool = Pool.of(space, [known.settings[number] for number in kept])
    real = Table(curves[kept], results[kept], pool.rows)
    seed = flights_table.REGIONS.index(region)
    return pool, real if kind == "flights" else _power_laws(real, kind, seed)


def _power_laws(real: Table, kind: str, seed: int) -> Table:
    """Return curves of 50 epochs that end near the real results."""
    random = np.random.default_rng([seed, 7])
    count = len(real.results)
    unit = float(np.median(real.results) - real.results.min())
    fall = unit * random.uniform(3, 9, count)
    power = random.uniform(0.3, 1.5, count)
    if kind == "crossing":  # the k-th best has the k-th smallest exponent
        power = np.sort(power)[np.argsort(np.argsort(real.results))]
    t = np.arange(1, EPOCHS + 1)
    falling = fall[:, None] * (t ** -power[:, None] - EPOCHS ** -power[:, None])
    noise = 0.04 * unit * random.standard_normal(falling.shape)
    curves = real.results[:, None] + falling + noise
    return Table(curves, curves[:, -1], real.settings)


class Tuning(Stopper):
    """trialfleet's stopping rule with an optimiser that learns from each trial.

    Attributes:
        results: the optimiser's results.
    """

    def __init__(self, table: Table, way: str) -> None:
        self.results = Results()
        self._table, self._way = table, way
        self._rule = Ours(table, Rule(max_steps=table.curves.shape[1]))

    def begin(self, number: int) -> None:
        self._rule.begin(number)

    def end(self, number: int, *, stopped: bool) -> None:
        self._rule.end(number, stopped=stopped)
        if not stopped:
            self.results.losses[number] = float(self._table.results[number])

    def stops(self, running: dict[int, int]) -> set[int]:
        decisions = {} if self._way in _UNSTOPPED else self._rule.decisions(running)
        for number, decision in decisions.items():
            reported = float(self._table.curves[number, : running[number]].min())
            self.results.losses[number] = recorded_as(self._way, decision, reported, self.results)
        return set(decisions)


def tuned(kind: str, region: str, way: str, trials: int) -> Score:
    """Let our optimiser tune a region in which the rule stops trials."""
    warnings.simplefilter("ignore")
    pool, table = opened(kind, region)
    chooser = Chooser(pool, flights_table.REGIONS.index(region), trials)
    trained = table
    if way == ONE_EPOCH:
        trained = Table(table.curves[:, :1], table.curves[:, 0], table.settings)
    tuning = Tuning(trained, way)
    replay = replayed(trained, tuning, LANES, _chosen(chooser, tuning.results, table, trials))
    if way == ONE_EPOCH:
        replay = one_epoch(table, replay.complete)
    return score(table, replay, trials)


def _chosen(chooser: Chooser, results: Results, table: Table, trials: int) -> Iterator[int]:
    """Yield the next setting, which the optimiser chooses only when a lane is free."""
    for _ in range(trials):
        left = sorted(set(range(len(table.results))) - set(results.asked))
        results.asked.append(chooser.choose(results, left))
        yield results.asked[-1]


_UNSTOPPED = {NEVER, ONE_EPOCH}


def recorded_as(way: str, decision: Decision, reported: float, results: Results) -> float:
    """Return the recorded value of a stopped trial."""
    if way == "predicted":
        return decision.loss
    if way == "reached":
        return min(decision.loss, reported)
    return reported if way == "reported" else max(results.losses.values())


def report(kind: str, scores: dict[str, list[Score]]) -> str:
    """Return a line for each way; the difference is paired, with its 95% interval."""
    lines = []
    for way, own in scores.items():
        regrets = np.array([score.regret for score in own])
        deltas = regrets - [score.regret for score in scores[NEVER]]
        low, high = bounds(resampled_means(deltas))
        base = np.array([score.regret for score in scores[ONE_EPOCH]])
        lines.append(
            f"{kind:9} {way:10} {regrets.mean():7.3f} {deltas.mean():+8.3f} ({low:+.3f} to "
            f"{high:+.3f}) {np.mean([score.epochs for score in own]):7.2f} "
            f"{np.mean(regrets > base + BEHIND):7.0%}"
        )
    return "\n".join(lines)


def main() -> int:
    """Run the bench and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=KINDS)
    count = len(flights_table.REGIONS)
    parser.add_argument(
        "--regions", type=int, default=count, choices=range(1, count + 1), metavar=f"1..{count}"
    )
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    given = parser.parse_args()
    regions = flights_table.REGIONS[: given.regions]
    print("curves    recorded    regret   against never stopped     epochs  behind 1-Epoch")
    with single_threaded(given.processes) as workers:
        for kind in given.kinds:
            waiting = {
                workers.submit(tuned, kind, region, way, given.trials): (way, region)
                for region in regions
                for way in WAYS
            }
            for number, _ in enumerate(as_completed(waiting), start=1):
                print(f"\r{kind}: {number} of {len(waiting)}", end="", file=sys.stderr)
            scores: dict[str, list[Score]] = {way: [] for way in WAYS}
            for future, (way, _) in waiting.items():
                scores[way].append(future.result())
            print("\r" + report(kind, scores), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
