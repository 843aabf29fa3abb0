"""Early stopping while an optimiser chooses: `python -m tests.bench.optimizer.stopped_tuning`.

`stopping.py` replays settings in an order by chance. Here our optimiser chooses them, and learns of
those that were stopped what they are told as. Regions are those of the replay table of flights:
lanes train an epoch at a time, and the rule looks after each. What is compared is what a stopped
trial is told as:

never        nobody is stopped
predicted    the result that was predicted
reached      the same, or the best that it has reported where that is better
reported     the best that it has reported
worst        the worst result so far, as a failure is
1-Epoch      each setting is trained for an epoch and told as what that came to; the three best are
             trained to their ends

What counts is the regret of the best complete trial, in units of the distance between the table's
best and median settings, and the epochs that were trained, as part of all.

curves:

flights      real trainings, of twelve epochs
power        power laws of 50 epochs that end where the real trainings do; how fast is by chance
crossing     the same, but those that end worse are faster
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from concurrent.futures import as_completed
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tests.bench.optimizer import flights_table
from tests.bench.optimizer.pool import Pool, Results
from tests.bench.optimizer.pool_rivals import Ours as Chooser
from tests.bench.optimizer.runs import single_threaded
from tests.bench.optimizer.stopping import EPOCHS, ONE_EPOCH, Ours, Table
from trialfleet.optimizer.space import SearchSpace
from trialfleet.optimizer.stopping.policy import Decision, Rule

NEVER = "never"
WAYS = (NEVER, "predicted", "reached", "reported", "worst", ONE_EPOCH)
KINDS = ("flights", "power", "crossing")
FINALISTS = 3
LANES = 4
BEHIND = 0.05
_RESAMPLED = 2000


@dataclass(frozen=True)
class Score:
    """What came of one region: see the module."""

    regret: float
    epochs: float


@lru_cache
def opened(kind: str, region: str) -> tuple[Pool, Table]:
    """Return the settings of the replay table that did not fail in a region, and their curves."""
    known = flights_table.read()
    curves, results = known.curves(region), known.losses(region)
    kept = np.flatnonzero(np.isfinite(curves).all(axis=1) & np.isfinite(results))
    space = SearchSpace.model_validate(flights_table.SPACE)
    pool = Pool.of(space, [known.settings[number] for number in kept])
    real = Table(curves[kept], results[kept], pool.rows)
    seed = flights_table.REGIONS.index(region)
    return pool, real if kind == "flights" else _power_laws(real, kind, seed)


def _power_laws(real: Table, kind: str, seed: int) -> Table:
    """Curves of 50 epochs that end near the real results."""
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


def tuned(kind: str, region: str, way: str, trials: int) -> Score:
    """Let our optimiser tune a region, of whose trials some are stopped."""
    warnings.simplefilter("ignore")
    pool, table = opened(kind, region)
    seed = flights_table.REGIONS.index(region)
    chooser = Chooser(pool, seed, trials)
    epochs = table.curves.shape[1]
    results, running = Results(), dict[int, int]()
    complete, trained = list[int](), 0
    rule = Ours(table, Rule(max_steps=epochs))
    length = 1 if way == ONE_EPOCH else epochs
    while len(results.asked) < trials or running:
        while len(results.asked) < trials and len(running) < LANES:
            left = sorted(set(range(len(table.results))) - set(results.asked))
            chosen = chooser.choose(results, left)
            results.asked.append(chosen)
            rule.begin(chosen)
            running[chosen] = 0
        running = {number: done + 1 for number, done in running.items()}
        trained += len(running)
        for number in [number for number, done in running.items() if done == length]:
            del running[number]
            whole = length == epochs
            value = table.results[number] if whole else table.curves[number, 0]
            results.losses[number] = float(value)
            complete.append(number)
            rule.end(number, stopped=False)
        for number, decision in rule.decisions(running).items() if way not in _UNSTOPPED else ():
            reported = float(table.curves[number, : running.pop(number)].min())
            results.losses[number] = told_as(way, decision, reported, results)
            rule.end(number, stopped=True)
    if way == ONE_EPOCH:
        complete = sorted(complete, key=results.losses.__getitem__)[:FINALISTS]
        trained += len(complete) * (epochs - 1)
    best, median = table.results.min(), float(np.median(table.results))
    regret = (table.results[complete].min() - best) / (median - best)
    return Score(float(regret), trained / (len(results.asked) * epochs))


_UNSTOPPED = {NEVER, ONE_EPOCH}


def told_as(way: str, decision: Decision, reported: float, results: Results) -> float:
    """Return the value that the optimiser learns of a stopped trial."""
    if way == "predicted":
        return decision.loss
    if way == "reached":
        return min(decision.loss, reported)
    return reported if way == "reported" else max(results.losses.values())


def report(kind: str, scores: dict[str, list[Score]]) -> str:
    """Return a line for each way; the difference is paired, with its 95% interval."""
    random = np.random.default_rng(0)
    lines = []
    for way, own in scores.items():
        regrets = np.array([score.regret for score in own])
        deltas = regrets - [score.regret for score in scores[NEVER]]
        drawn = deltas[random.integers(len(deltas), size=(_RESAMPLED, len(deltas)))].mean(axis=1)
        low, high = np.quantile(drawn, [0.025, 0.975])
        base = np.array([score.regret for score in scores[ONE_EPOCH]])
        lines.append(
            f"{kind:9} {way:10} {regrets.mean():7.3f} {deltas.mean():+8.3f} ({low:+.3f} to "
            f"{high:+.3f}) {np.mean([score.epochs for score in own]):7.2f} "
            f"{np.mean(regrets > base + BEHIND):7.0%}"
        )
    return "\n".join(lines)


def main() -> int:
    """Run what the arguments say, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=KINDS)
    parser.add_argument("--regions", type=int, default=len(flights_table.REGIONS))
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    given = parser.parse_args()
    regions = flights_table.REGIONS[: given.regions]
    print("curves    told as     regret   against never stopped     epochs  behind 1-Epoch")
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
