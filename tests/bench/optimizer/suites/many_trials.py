"""Compare the model of a subset of the results with the model of all results.

    python -m tests.bench.optimizer.suites.many_trials

With more than a few hundred results, the model uses only the best ones and some that cover the
space (`gp/subset.py`). Here each task is tuned so for a number of trials. Then it is continued in
two ways from the same results: as before, and with a model of all results. Regret is defined as in
the other benches; the ratio is that of the subset to that of all results.
"""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures import as_completed
from copy import deepcopy
from unittest.mock import patch

import numpy as np

from tests.bench.optimizer.families import task
from tests.bench.optimizer.rivals import Ours
from tests.bench.optimizer.runs import followed, interval, single_threaded
from tests.bench.optimizer.suites.problems import problem
from trialfleet.optimizer.sampling.gp import subset
from trialfleet.optimizer.space import SearchSpace

_LEAST = 1e-9  # a smaller regret counts as zero
PARALLEL = 8


def main() -> int:
    """Print a line for each task, and the ratio over all tasks."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=400, help="trials before the two ways differ")
    parser.add_argument("--more", type=int, default=80, help="trials of each way")
    parser.add_argument("--seeds", type=int, default=2, help="tasks of each kind")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    given = parser.parse_args()
    names = ("hartmann6", "network", "learner", "f9", "f15", "f17")
    jobs = [(name, seed) for seed in range(1, 1 + given.seeds) for name in names]
    logs = []
    with single_threaded(given.processes) as pool:
        asked = [pool.submit(both_ways, *job, given.trials, given.more) for job in jobs]
        for future in as_completed(asked):
            name, before, (some, some_s), (every, every_s) = future.result()
            print(
                f"{name}: regret {before:.1e} after {given.trials} trials, then "
                f"{some:.1e} with some results ({some_s:.2f} s an ask), "
                f"{every:.1e} with all ({every_s:.2f} s)",
                flush=True,
            )
            logs.append(np.log(max(some, _LEAST)) - np.log(max(every, _LEAST)))
    print(
        f"regret with some results by that with all, {len(logs)} tasks: {interval(np.array(logs))}"
    )
    return 0


def both_ways(
    name: str, seed: int, trials: int, more: int
) -> tuple[str, float, tuple[float, float], tuple[float, float]]:
    """Return a task's regret at the fork, then the regret and seconds per ask of each way."""
    given = (
        problem("bbob-mixint-5", name[1:], seed, noisy=False)
        if name[0] == "f"
        else problem("tuned", name, seed, noisy=False)
        if name == "learner"
        else task(name, seed, noisy=False)
    )
    rival = Ours(SearchSpace.model_validate(given.space), seed, trials)
    before = followed(given, rival, trials, PARALLEL, seed).regrets[-1]
    there = deepcopy(rival)
    some = followed(given, rival, more, PARALLEL, seed)
    with patch.object(subset, "MOST", sys.maxsize):
        every = followed(given, there, more, PARALLEL, seed)
    ways = (
        (min(before, result.regrets[-1]), float(np.median(result.seconds)))
        for result in (some, every)
    )
    return (f"{name} {seed}", before, next(ways), next(ways))


if __name__ == "__main__":
    sys.exit(main())
