"""Ray Tune with its Optuna search, a Tuner per region, as Ray's user guide shows.

https://docs.ray.io/en/latest/tune/tutorials/tune-fault-tolerance.html says how a run is restored.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.search import ConcurrencyLimiter
from ray.tune.search.optuna import OptunaSearch

from tests.bench.peers.systems.arguments import read_arguments, write_results
from tests.bench.peers.workload import LANES, METRIC, REGIONS, SPACE, train


def main() -> None:
    """Tune one region after the other."""
    given = read_arguments()
    ray.init(num_cpus=LANES, include_dashboard=False)
    values = {region: tuned(given.folder, region, given.trials) for region in REGIONS}
    write_results(given.folder, values)
    ray.shutdown()


def tuned(folder: Path, region: str, trials: int) -> list[float]:
    """Run a region's missing trials, and return the objectives of all."""

    def trainable(config: dict[str, Any]) -> dict[str, float]:
        name = tune.get_context().get_trial_id()
        # Ray calls this from a thread, where the trainer can't ask for SIGTERM.
        signal.signal = lambda *_: None
        return {METRIC: train(folder, region, name, config)}

    storage = folder / "ray"
    if tune.Tuner.can_restore(str(storage / region)):
        tuner = tune.Tuner.restore(
            str(storage / region), trainable=trainable, resume_errored=True, param_space=space()
        )
    else:
        search = ConcurrencyLimiter(OptunaSearch(metric=METRIC, mode="max"), max_concurrent=LANES)
        tuner = tune.Tuner(
            trainable,
            param_space=space(),
            tune_config=tune.TuneConfig(
                metric=METRIC,
                mode="max",
                search_alg=search,
                num_samples=trials,
                reuse_actors=True,  # or each trial begins with a new process, and its imports
            ),
            run_config=tune.RunConfig(
                name=region,
                storage_path=str(storage),
                failure_config=tune.FailureConfig(max_failures=2),
                verbose=0,
            ),
        )
    results = tuner.fit()
    return [one.metrics[METRIC] for one in results if one.metrics and METRIC in one.metrics]


def space() -> dict[str, Any]:
    """Return the search space in Ray's form."""
    kinds = {
        ("float", False): lambda e: tune.uniform(e["low"], e["high"]),
        ("float", True): lambda e: tune.loguniform(e["low"], e["high"]),
        ("int", True): lambda e: tune.lograndint(e["low"], e["high"] + 1),
        ("int", False): lambda e: tune.qrandint(e["low"], e["high"], e.get("step", 1)),
    }
    return {name: kinds[e["type"], e.get("log", False)](e) for name, e in SPACE.items()}


if __name__ == "__main__":
    main()
