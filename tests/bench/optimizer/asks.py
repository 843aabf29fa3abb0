"""The cost of a proposal after many trials: `make bench-asks`.

A region has the results of random trials, and eight pending trials.
The time of an ask is the median of several, in one thread; the memory is that of the process.
"""

from __future__ import annotations

import resource
import statistics
import sys
import time

import numpy as np
import optuna

from tests.bench.optimizer.families import task
from tests.bench.optimizer.rivals import OfOptuna, Ours
from tests.bench.optimizer.runs import single_threaded
from trialfleet.optimizer.space import SearchSpace

FAMILIES = ("hartmann6", "network")
TRIALS = (50, 200, 1_000, 10_000)
PENDING, ASKS = 8, 7


def cost(family: str, trials: int) -> tuple[float, float, float]:
    """Return an ask's seconds and processor seconds, and the process's greatest memory in MB."""
    given = task(family, 1, noisy=True)
    space = SearchSpace.model_validate(given.space)
    ours, others = Ours(space, 1, trials), OfOptuna(optuna.samplers.RandomSampler(seed=1), space)
    noise = np.random.default_rng(1).normal(scale=given.noise, size=trials)
    for added in noise:
        _, point = others.ask()
        ours.learn(point, given.loss(point) + added)
    seconds, used = [], []
    for _ in range(PENDING + ASKS):
        began, cpu = time.perf_counter(), time.process_time()
        ours.ask()
        seconds.append(time.perf_counter() - began)
        used.append(time.process_time() - cpu)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return statistics.median(seconds[PENDING:]), statistics.median(used[PENDING:]), memory


def main() -> int:
    """Print a line for each family and number of trials."""
    print(f"{'':10} {'trials':>7} {'s an ask':>9} {'processor':>10} {'memory':>9}")
    for family in FAMILIES:
        for trials in TRIALS:
            with single_threaded(1) as fresh:  # a process of its own: its memory is the ask's
                seconds, used, memory = fresh.submit(cost, family, trials).result()
            print(f"{family:10} {trials:7,} {seconds:9.2f} {used:8.2f} s {memory:6.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
