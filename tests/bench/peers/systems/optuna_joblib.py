"""Optuna with joblib: workers share a study in SQLite, as Optuna's documentation shows.

Trials of dead workers are enqueued again by Optuna's heartbeat and RetryFailedTrialCallback.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import optuna
from joblib import Parallel, delayed
from optuna.storages import RDBStorage, RetryFailedTrialCallback
from optuna.study import MaxTrialsCallback
from optuna.trial import TrialState

from tests.bench.peers.systems.arguments import read_arguments, write_results
from tests.bench.peers.workload import LANES, REGIONS, SPACE, train


def main() -> None:
    """Tune one region after the other."""
    given = read_arguments()
    values = {region: tuned(given.folder, region, given.trials) for region in REGIONS}
    write_results(given.folder, values)


def tuned(folder: Path, region: str, trials: int) -> list[float]:
    """Run a region's missing trials, and return the objectives of all."""
    optuna.create_study(
        storage=storage(folder), study_name=region, direction="maximize", load_if_exists=True
    )
    Parallel(n_jobs=LANES)(delayed(work)(folder, region, trials) for _ in range(LANES))
    study = optuna.load_study(storage=storage(folder), study_name=region)
    done = study.get_trials(states=(TrialState.COMPLETE,))
    return [trial.value for trial in done if trial.value is not None]


def work(folder: Path, region: str, trials: int) -> None:
    """As one worker, run trials until enough of the region's trials are complete."""
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.load_study(
        storage=storage(folder), study_name=region, sampler=optuna.samplers.GPSampler()
    )
    enough = MaxTrialsCallback(trials, states=(TrialState.COMPLETE,))
    if len(study.get_trials(states=(TrialState.COMPLETE,))) < trials:
        study.optimize(lambda trial: objective(folder, region, trial), callbacks=[enough])


def objective(folder: Path, region: str, trial: optuna.Trial) -> float:
    """Train once; a retried trial has the number of its first try."""
    params = {name: suggested(trial, name, entry) for name, entry in SPACE.items()}
    frozen = trial.study.get_trials(deepcopy=False)[trial.number]
    first = RetryFailedTrialCallback.retried_trial_number(frozen)
    return train(folder, region, str(trial.number if first is None else first), params)


def suggested(trial: optuna.Trial, name: str, entry: dict[str, Any]) -> float | int:
    """Return a parameter's value."""
    low, high, log = entry["low"], entry["high"], entry.get("log", False)
    if entry["type"] == "float":
        return trial.suggest_float(name, low, high, log=log)
    return trial.suggest_int(name, low, high, log=log, step=entry.get("step", 1))


def storage(folder: Path) -> RDBStorage:
    """Return the study's database, with a heartbeat."""
    return RDBStorage(
        f"sqlite:///{folder}/study.db",
        heartbeat_interval=10,
        grace_period=30,
        failed_trial_callback=RetryFailedTrialCallback(max_retry=2),
    )


if __name__ == "__main__":
    main()
