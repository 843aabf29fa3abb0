"""Celery with Redis, and a sampler like Spearmint's in the program that hands out the tasks.

This is how teams did it in 2014: workers train, and a driver asks the sampler and waits. The driver
keeps its state in a file, as Spearmint did, so that it can be started again.
"""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scipy.stats import qmc

from tests.bench.optimizer.pool import Pool, Results
from tests.bench.optimizer.spearmint import Spearmint
from tests.bench.peers.systems.arguments import read_arguments, write_results
from tests.bench.peers.workload import LANES, REGIONS, SPACE, plain
from trialfleet.optimizer.sampling.warm_start import build_domain
from trialfleet.optimizer.space import SearchSpace

GRID = 9  # its grid has two to this power of points


def main() -> None:
    """Start Redis and the workers if they don't run, and tune one region after the other."""
    given = read_arguments()
    os.environ["PEERS_REDIS"] = str(given.folder / "redis.sock")
    server = started_redis(given.folder)
    worker = started_worker(given.folder)
    try:
        values = {region: tuned(given.folder, region, given.trials) for region in REGIONS}
        write_results(given.folder, values)
    finally:
        for process in (worker, server):
            if process:
                process.terminate()
                process.wait()


def started_redis(folder: Path) -> subprocess.Popen[bytes] | None:
    """Start Redis with an append-only file; None if it runs already."""
    import redis

    client = redis.Redis(unix_socket_path=str(folder / "redis.sock"))
    program = shutil.which("redis-server")
    if program is None:
        sys.exit("There is no redis-server: apt-get install redis-server")
    server = None
    if not answers(client):
        options = ["--port", "0", "--unixsocket", str(folder / "redis.sock"), "--dir", str(folder)]
        options += ["--appendonly", "yes", "--logfile", str(folder / "redis.log")]
        server = subprocess.Popen([program, *options])
        while not answers(client):
            time.sleep(0.1)
    return server


def answers(client: Any) -> bool:
    """Return whether Redis answers and has read its file."""
    import redis

    try:
        return bool(client.ping())
    except redis.exceptions.ConnectionError:  # also BusyLoadingError
        return False


def started_worker(folder: Path) -> subprocess.Popen[bytes] | None:
    """Start a worker with a process per lane (parallel trial); None if one runs already."""
    from tests.bench.peers.systems.celery_app import app

    if app.control.ping(timeout=2):
        return None
    command = [sys.executable, "-m", "celery", "--app", "tests.bench.peers.systems.celery_app"]
    command += ["worker", "--concurrency", str(LANES), "--loglevel", "warning"]
    command += ["--logfile", str(folder / "celery.log")]
    environment = {**os.environ, "C_FORCE_ROOT": "1"}
    return subprocess.Popen(command, env=environment)


@dataclass
class Experiment:
    """The driver's state of a region; pickled after each step, as Spearmint's was.

    Attributes:
        pool: the grid that Spearmint chooses from.
        results: sent and finished trials, by the setting's number in the grid.
    """

    pool: Pool
    sampler: Spearmint
    results: Results = field(default_factory=Results)

    @classmethod
    def new(cls, seed: int) -> Experiment:
        """Return the state of a region without trials."""
        space = SearchSpace.model_validate(SPACE)
        grid = qmc.Sobol(len(SPACE), seed=seed).random_base2(GRID)
        pool = Pool.of(space, [build_domain(space).decode(row) for row in grid])
        return cls(pool, Spearmint(pool, seed))

    def save(self, path: Path) -> None:
        """Write the state to a temporary file, and rename it."""
        draft = path.with_suffix(".new")
        draft.write_bytes(pickle.dumps(self))
        draft.replace(path)


def tuned(folder: Path, region: str, trials: int) -> list[float]:
    """Run a region's missing trials, and return the objectives of all."""
    saved = folder / f"experiment-{region}.pickle"
    experiment = Experiment.new(1)
    if saved.exists():
        experiment = pickle.loads(saved.read_bytes())  # noqa: S301 # our own
    results = experiment.results
    while len(results.losses) < trials:
        if len(results.pending) < LANES and len(results.asked) < trials:
            send_next(folder, region, experiment)
            experiment.save(saved)
        if collect(region, results):
            experiment.save(saved)
        time.sleep(0.1)
    return [-loss for loss in results.losses.values()]


def send_next(folder: Path, region: str, experiment: Experiment) -> None:
    """Ask the sampler for a setting, and send it to a worker."""
    from tests.bench.peers.systems.celery_app import train_task

    results, settings = experiment.results, experiment.pool.settings
    left = sorted(set(range(len(settings))) - set(results.asked))
    chosen = experiment.sampler.choose(results, left)
    params = {name: plain(value) for name, value in settings[chosen].items()}
    arguments = (str(folder), region, str(chosen), params)
    train_task.apply_async(arguments, task_id=f"{region}-{chosen}")
    results.asked.append(chosen)


def collect(region: str, results: Results) -> bool:
    """Record new results; return False if there are none."""
    from celery.result import AsyncResult

    from tests.bench.peers.systems.celery_app import app

    tasks = {number: AsyncResult(f"{region}-{number}", app=app) for number in results.pending}
    ready = {number: task for number, task in tasks.items() if task.ready()}
    results.losses.update({number: -float(task.get()) for number, task in ready.items()})
    return bool(ready)


if __name__ == "__main__":
    main()
