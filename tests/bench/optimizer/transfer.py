"""Trials saved by previous results: `python -m tests.bench.optimizer.transfer`.

A task's siblings have its constants, moved part of the way to random ones. First six siblings are
optimized with 30 trials each; then the task itself, by GPSampler, and by ours without previous
results, with the siblings' results, and with the shuffled results of one unrelated task. The
measure is the number of trials to GPSampler's final regret, as a ratio to GPSampler's own number:
the geometric mean over the tasks, with the interval that contains 95% of bootstrap samples.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections.abc import Sequence
from concurrent.futures import as_completed
from pathlib import Path

import numpy as np

from tests.bench.optimizer.families import FAMILIES, Task, sibling
from tests.bench.optimizer.rivals import RIVALS, Ours
from tests.bench.optimizer.runs import TaskResult, followed, interval, single_threaded
from trialfleet.optimizer.sampling.warm_start import PreviousTask, PreviousTasks
from trialfleet.optimizer.space import SearchSpace

ROOT = Path(__file__).parents[3]
SIBLINGS = 6
PREVIOUS_TRIALS = 30
APART = 0.3  # of the way from one task's constants to random ones
_UNREACHED = 1.5  # times all trials: the number for a rival that does not reach the target
COLUMNS = ("GPSampler", "nothing", "related", "unrelated")


def main() -> int:
    """Run the bench and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--families", nargs="*", default=list(FAMILIES), choices=list(FAMILIES))
    parser.add_argument("--seeds", type=int, default=20, help="tasks of each family")
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "bench-transfer.jsonl")
    given = parser.parse_args()
    jobs = [(family, seed) for seed in range(given.seeds) for family in given.families]
    given.results.parent.mkdir(parents=True, exist_ok=True)
    known = _known(given.results, given.trials)
    left = [job for job in jobs if job not in known]
    with given.results.open("a") as file, single_threaded(given.processes) as pool:
        waiting = {pool.submit(compared, *job, given.trials): job for job in left}
        for number, future in enumerate(as_completed(waiting), start=1):
            family, seed = waiting[future]
            line = {"family": family, "seed": seed, "regrets": future.result()}
            file.write(json.dumps(line) + "\n")
            file.flush()
            print(f"\r{number} of {len(left)} tasks", end="", file=sys.stderr)
    known = _known(given.results, given.trials)
    print(f"\n{_table({job: known[job] for job in jobs})}")
    return 0


def _known(file: Path, trials: int) -> dict[tuple[str, int], dict[str, list[float]]]:
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    found = {(line["family"], line["seed"]): line["regrets"] for line in lines}
    return {key: value for key, value in found.items() if len(value["GPSampler"]) == trials}


def compared(family: str, seed: int, trials: int) -> dict[str, list[float]]:
    """Return the regrets of a task's best point after each trial, by kind of knowledge."""
    warnings.simplefilter("ignore")
    target = sibling(family, seed, 0, apart=APART)
    space = SearchSpace.model_validate(target.space)
    siblings = [
        _previous(f"sibling-{number}", sibling(family, seed, number, apart=APART), seed)
        for number in range(1, 1 + SIBLINGS)
    ]
    other = _previous("unrelated", sibling(family, seed + 1000, 1, apart=1.0), seed)
    order = np.random.default_rng(seed).permutation(len(other.losses))
    shuffled = tuple(other.losses[place] for place in order)
    unrelated = PreviousTask("unrelated", "unrelated", other.points, shuffled)
    rivals = {
        "GPSampler": RIVALS["GPSampler"](space, seed, trials),
        "nothing": Ours(space, seed, trials),
        "related": Ours(space, seed, trials, PreviousTasks(tuple(siblings), "target")),
        "unrelated": Ours(space, seed, trials, PreviousTasks((unrelated,), "target")),
    }
    return {
        name: followed(target, rival, trials, 8, seed).regrets for name, rival in rivals.items()
    }


def _previous(name: str, task: Task, seed: int) -> PreviousTask:
    space = SearchSpace.model_validate(task.space)
    result: TaskResult = followed(
        task, Ours(space, seed, PREVIOUS_TRIALS), PREVIOUS_TRIALS, 8, seed
    )
    return PreviousTask(name, name, tuple(result.points), tuple(result.losses))


def _table(found: dict[tuple[str, int], dict[str, list[float]]]) -> str:
    lines = [
        "| family | tasks | " + " | ".join(COLUMNS) + " |",
        "| --- | ---: | " + " | ".join("---:" for _ in COLUMNS) + " |",
    ]
    for family in dict.fromkeys(family for family, _ in found):
        tasks = [regrets for (of, _), regrets in found.items() if of == family]
        base = [_needed(each["GPSampler"], each["GPSampler"][-1]) for each in tasks]
        cells = [f"1 ({np.exp(np.mean(np.log(base))):.0f} trials)"]
        for name in COLUMNS[1:]:
            needed = [_needed(each[name], each["GPSampler"][-1]) for each in tasks]
            cells.append(interval(np.log(needed) - np.log(base)))
        lines.append(f"| {family} | {len(tasks)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _needed(regrets: Sequence[float], target: float) -> float:
    """Return the number of trials to a regret; below a ten-thousandth it counts as zero."""
    enough = max(target, 1e-4)
    reached = (number for number, regret in enumerate(regrets, start=1) if regret <= enough)
    return float(next(reached, _UNREACHED * len(regrets)))


if __name__ == "__main__":
    sys.exit(main())
