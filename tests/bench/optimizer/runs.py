"""One optimiser on one task, and what comes of it."""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.bench.optimizer.families import Task, task
from tests.bench.optimizer.rivals import RIVALS, Rival
from trialfleet.files import write_atomic
from trialfleet.optimizer.space import SearchSpace

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "optimizer.md"
CHARTS = ROOT / "docs" / "assets"
LEAST = 1e-7  # a regret below that is none
_RESAMPLED = 2000


@dataclass(frozen=True)
class Outcome:
    """How one rival did on one task.

    Attributes:
        regrets: of the best point after each trial.
        seconds: for an ask, on average over those that follow the model.
    """

    rival: str
    family: str
    noisy: bool
    seed: int
    regrets: list[float]
    seconds: float


def single_threaded(processes: int) -> ProcessPoolExecutor:
    """Return a pool with a process for each core, and one thread in each of them.

    Libraries read that when they are loaded; in a fork they are already.
    """
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    return ProcessPoolExecutor(processes, mp_context=get_context("spawn"))


def known_lines(file: Path) -> list[dict[str, Any]]:
    """Return what a file of results holds; what a kill left of its last line is cut off."""
    content = file.read_bytes() if file.exists() else b""
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        os.truncate(file, len(whole))
    return [json.loads(line) for line in whole.splitlines()]


def run_left(
    work: Callable[..., Any], jobs: Iterable[tuple[Any, ...]], file: Path, processes: int
) -> None:
    """Do jobs, one in each process, and add what each returns, a dataclass, to a file as a line.

    A job that fails is named and has no line: the next start retries it.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as results, single_threaded(processes) as pool:
        waiting = {pool.submit(work, *job): job for job in jobs}
        for number, future in enumerate(as_completed(waiting), start=1):
            if (error := future.exception()) and not isinstance(error, BrokenExecutor):
                print(f"\n{waiting[future]}: {error!r}", file=sys.stderr)
                continue
            results.write(json.dumps(asdict(future.result())) + "\n")
            results.flush()
            print(f"\r{number} of {len(waiting)} runs", end="", file=sys.stderr)


def write_between(begin: str, end: str, text: str) -> None:
    """Put text between two lines of docs/optimizer.md, in place of what is there."""
    head, _, rest = PAGE.read_text().partition(begin)
    write_atomic(PAGE, f"{head}{begin}\n\n{text}\n{end}{rest.partition(end)[2]}")


def optimized(
    name: str, family: str, noisy: bool, seed: int, trials: int, parallel: int
) -> Outcome:
    """Let one rival optimize one task."""
    warnings.simplefilter("ignore")
    given = task(family, seed, noisy=noisy)
    space = SearchSpace.model_validate(given.space)
    told = followed(given, RIVALS[name](space, seed, trials), trials, parallel, seed)
    seconds = float(np.mean(told.seconds[trials // 2 :]))
    return Outcome(name, family, noisy, seed, told.regrets, seconds)


@dataclass
class Told:
    """What came of a task's trials, in the order in which they ended.

    Attributes:
        points: what was tried.
        losses: what the rival was told.
        regrets: of the best point so far.
        seconds: that each ask took.
    """

    points: list[dict[str, Any]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    regrets: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


def followed(given: Task, rival: Rival, trials: int, parallel: int, seed: int) -> Told:
    """Let a rival optimize a task, so many trials of which are pending at a time."""
    random = np.random.default_rng([seed, 1])
    pending: list[tuple[Any, dict[str, Any]]] = []
    told = Told()

    def finish() -> None:
        handle, params = pending.pop(0)
        told.points.append(params)
        told.losses.append(given.loss(params) + given.noise * random.standard_normal())
        told.regrets.append(min([*told.regrets[-1:], given.regret(params)]))
        rival.tell(handle, told.losses[-1])

    for _ in range(trials):
        if len(pending) == parallel:
            finish()
        begun = time.perf_counter()
        pending.append(rival.ask())
        told.seconds.append(time.perf_counter() - begun)
    while pending:
        finish()
    return told


def resampled_means(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the means of bootstrap samples of rows, [samples, ...]; the same ones each time."""
    drawn = np.random.default_rng(0).integers(len(values), size=(_RESAMPLED, len(values)))
    means: NDArray[np.float64] = values[drawn].mean(axis=1)
    return means


def bounds(means: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the ends of the interval that holds 95% of the samples, [2, ...]."""
    found: NDArray[np.float64] = np.nanquantile(means, [0.025, 0.975], axis=0)
    return found


def interval(logs: NDArray[np.float64]) -> str:
    """Return the geometric mean of ratios, and the interval of its bootstrap samples."""
    low, high = np.exp(bounds(resampled_means(logs)))
    return f"**{np.exp(logs.mean()):.2g}** ({low:.2g} to {high:.2g})"
