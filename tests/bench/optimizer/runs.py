"""Runs of one optimiser on one task, and their outcomes."""

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
LEAST = 1e-7  # a smaller regret counts as zero
_RESAMPLED = 2000


@dataclass(frozen=True)
class Outcome:
    """The outcome of one optimiser on one task.

    Attributes:
        regrets: of the best point after each trial.
        seconds: mean duration of a proposal by the model.
    """

    rival: str
    family: str
    noisy: bool
    seed: int
    regrets: list[float]
    seconds: float


def single_threaded(processes: int) -> ProcessPoolExecutor:
    """Return a pool of processes with one thread each, which are not forked.

    Libraries read the number of threads when they are loaded, and a forked process has loaded them.
    """
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    return ProcessPoolExecutor(processes, mp_context=get_context("spawn"))


def known_lines(file: Path) -> list[dict[str, Any]]:
    """Return the lines of a file of results; cut off a last line torn by a kill."""
    content = file.read_bytes() if file.exists() else b""
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        os.truncate(file, len(whole))
    return [json.loads(line) for line in whole.splitlines()]


def run_left(
    work: Callable[..., Any], jobs: Iterable[tuple[Any, ...]], file: Path, processes: int
) -> None:
    """Do jobs, one per process, and append each result, a dataclass, to a file as a line.

    A failed job is printed and gets no line, so the next start of the bench repeats it.
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
    """Replace the text between two lines of docs/optimizer.md; exit if the first is not there."""
    head, found, rest = PAGE.read_text().partition(begin)
    if not found:
        sys.exit(f"{PAGE} has no line {begin!r}: add this line and {end!r} where the text belongs")
    write_atomic(PAGE, f"{head}{begin}\n\n{text}\n{end}{rest.partition(end)[2]}")


def optimized(
    name: str, family: str, noisy: bool, seed: int, trials: int, parallel: int
) -> Outcome:
    """Let one rival optimize one task."""
    warnings.simplefilter("ignore")
    given = task(family, seed, noisy=noisy)
    space = SearchSpace.model_validate(given.space)
    result = followed(given, RIVALS[name](space, seed, trials), trials, parallel, seed)
    seconds = float(np.mean(result.seconds[trials // 2 :]))
    return Outcome(name, family, noisy, seed, result.regrets, seconds)


@dataclass
class TaskResult:
    """The trials of a task, in the order of their ends.

    Attributes:
        points: the tried points.
        losses: the results for the rival.
        regrets: of the best point so far.
        seconds: duration of each ask.
    """

    points: list[dict[str, Any]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    regrets: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


def followed(given: Task, rival: Rival, trials: int, parallel: int, seed: int) -> TaskResult:
    """Let a rival optimize a task, with several trials pending at a time."""
    random = np.random.default_rng([seed, 1])
    pending: list[tuple[Any, dict[str, Any]]] = []
    result = TaskResult()

    def finish() -> None:
        handle, params = pending.pop(0)
        result.points.append(params)
        result.losses.append(given.loss(params) + given.noise * random.standard_normal())
        result.regrets.append(min([*result.regrets[-1:], given.regret(params)]))
        rival.tell(handle, result.losses[-1])

    for _ in range(trials):
        if len(pending) == parallel:
            finish()
        begun = time.perf_counter()
        pending.append(rival.ask())
        result.seconds.append(time.perf_counter() - begun)
    while pending:
        finish()
    return result


def resampled_means(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the means of bootstrap samples of rows, [samples, ...], with a fixed seed."""
    drawn = np.random.default_rng(0).integers(len(values), size=(_RESAMPLED, len(values)))
    means: NDArray[np.float64] = values[drawn].mean(axis=1)
    return means


def bounds(means: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the ends of the interval that contains 95% of the samples, [2, ...]."""
    found: NDArray[np.float64] = np.nanquantile(means, [0.025, 0.975], axis=0)
    return found


def interval(logs: NDArray[np.float64]) -> str:
    """Return the geometric mean of ratios, and the interval of its bootstrap samples."""
    low, high = np.exp(bounds(resampled_means(logs)))
    return f"**{np.exp(logs.mean()):.2g}** ({low:.2g} to {high:.2g})"
