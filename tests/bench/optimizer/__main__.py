"""Compare optimisers on families of functions: `python -m tests.bench.optimizer`.

Every rival meets the same tasks with the same seeds, so many trials in parallel, each of which ends
in the order in which it was asked. What counts is the regret of the best point after the last
trial, without noise, as a ratio to GPSampler's in the same run: the geometric mean over the tasks,
with the interval that holds 95% of bootstrap samples of the tasks.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import as_completed
from dataclasses import asdict
from pathlib import Path

import numpy as np

from tests.bench.optimizer.families import FAMILIES
from tests.bench.optimizer.rivals import RIVALS
from tests.bench.optimizer.runs import Outcome, interval, optimized, single_threaded

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "optimizer.md"
BEGIN, END = "<!-- begin of the bench's tables -->", "<!-- end of the bench's tables -->"
BASE = "GPSampler"
_LEAST = 1e-7  # a regret below that is none


def main() -> int:
    """Run what the arguments say; print a table, and write it where docs/optimizer.md has it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--families", nargs="*", default=list(FAMILIES), choices=list(FAMILIES))
    parser.add_argument("--rivals", nargs="*", default=list(RIVALS), choices=list(RIVALS))
    parser.add_argument("--seeds", type=int, default=20, help="tasks of each family")
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--parallel", type=int, default=8, help="trials that are pending at a time")
    parser.add_argument("--noise", choices=["no", "yes", "both"], default="both")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "bench-optimizer.jsonl")
    parser.add_argument("--write", action="store_true", help=f"put the tables into {PAGE.name}")
    given = parser.parse_args()
    noise = {"no": [False], "yes": [True], "both": [False, True]}[given.noise]
    jobs = [
        (rival, family, noisy, seed, given.trials, given.parallel)
        for seed in range(given.seeds)
        for family in given.families
        for noisy in noise
        for rival in given.rivals
    ]
    given.results.parent.mkdir(parents=True, exist_ok=True)
    known = _known(given.results, given.trials)
    left = [job for job in jobs if job[:4] not in known]
    with given.results.open("a") as file:
        for number, outcome in enumerate(_outcomes(left, given.processes), start=1):
            file.write(json.dumps(asdict(outcome)) + "\n")
            file.flush()
            print(f"\r{number} of {len(left)} runs", end="", file=sys.stderr)
    wanted = {job[:4] for job in jobs}
    outcomes = [o for key, o in _known(given.results, given.trials).items() if key in wanted]
    tables = "\n".join(_table(outcomes, noisy, given.rivals) for noisy in noise)
    print(f"\n{tables}")
    if given.write:
        text = PAGE.read_text()
        head, _, rest = text.partition(BEGIN)
        tail = rest.partition(END)[2]
        PAGE.write_text(f"{head}{BEGIN}\n\n{tables}\n{END}{tail}")
    return 0


def _known(file: Path, trials: int) -> dict[tuple[str, str, bool, int], Outcome]:
    lines = file.read_text().splitlines() if file.exists() else []
    outcomes = [Outcome(**json.loads(line)) for line in lines]
    return {(o.rival, o.family, o.noisy, o.seed): o for o in outcomes if len(o.regrets) == trials}


def _outcomes(
    jobs: Sequence[tuple[str, str, bool, int, int, int]], processes: int
) -> Iterator[Outcome]:
    with single_threaded(processes) as pool:
        for future in as_completed([pool.submit(optimized, *job) for job in jobs]):
            yield future.result()


def _table(outcomes: Sequence[Outcome], noisy: bool, rivals: Sequence[str]) -> str:
    found = {(o.rival, o.family, o.seed): o for o in outcomes if o.noisy == noisy}
    families = [f for f in FAMILIES if any(key[1] == f for key in found)]
    lines = [
        f"{'With' if noisy else 'Without'} noise:",
        "",
        "| family | tasks | " + " | ".join(rivals) + " |",
        "| --- | ---: | " + " | ".join("---:" for _ in rivals) + " |",
    ]
    for family in families:
        seeds = sorted({seed for _, f, seed in found if f == family})
        cells = [_ratio(found, family, rival, seeds) for rival in rivals]
        lines.append(f"| {family} | {len(seeds)} | " + " | ".join(cells) + " |")
    seconds = [np.mean([o.seconds for key, o in found.items() if key[0] == r]) for r in rivals]
    lines.append("| seconds for an ask | | " + " | ".join(f"{s:.2f}" for s in seconds) + " |")
    return "\n".join(lines) + "\n"


def _ratio(
    found: dict[tuple[str, str, int], Outcome], family: str, rival: str, seeds: Sequence[int]
) -> str:
    logs = {
        name: np.array([np.log(max(found[name, family, s].regrets[-1], _LEAST)) for s in seeds])
        for name in {rival, BASE}
    }
    if rival == BASE:
        return f"1 ({np.exp(logs[BASE].mean()):.1e})"
    return interval(logs[rival] - logs[BASE])


if __name__ == "__main__":
    sys.exit(main())
