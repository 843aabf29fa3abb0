"""Compare optimisers on families of functions: `python -m tests.bench.optimizer`.

All optimisers (rivals) get the same tasks, seeds and number of parallel trials. Trials end in the
order in which they began. The measure is the regret of the best point after the last trial: its
distance from the optimum, without noise. It is divided by GPSampler's regret in the same run. The
table has the geometric mean over the tasks, with the interval that contains 95% of bootstrap
samples of the tasks.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.bench.optimizer.families import FAMILIES
from tests.bench.optimizer.rivals import RIVALS
from tests.bench.optimizer.runs import (
    LEAST,
    PAGE,
    ROOT,
    Outcome,
    interval,
    known_lines,
    optimized,
    run_left,
    write_between,
)

BEGIN, END = "<!-- begin of the bench's tables -->", "<!-- end of the bench's tables -->"
BASE = "GPSampler"


def main() -> int:
    """Run the bench; print a table, and write it into docs/optimizer.md if asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--families", nargs="*", default=list(FAMILIES), choices=list(FAMILIES))
    parser.add_argument("--rivals", nargs="*", default=list(RIVALS), choices=list(RIVALS))
    parser.add_argument("--seeds", type=int, default=20, help="tasks of each family")
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--parallel", type=int, default=8, help="number of pending trials")
    parser.add_argument("--noise", choices=["no", "yes", "both"], default="both")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "bench-optimizer.jsonl")
    parser.add_argument("--write", action="store_true", help=f"write the tables into {PAGE.name}")
    given = parser.parse_args()
    noise = {"no": [False], "yes": [True], "both": [False, True]}[given.noise]
    jobs = [
        (rival, family, noisy, seed, given.trials, given.parallel)
        for seed in range(given.seeds)
        for family in given.families
        for noisy in noise
        for rival in given.rivals
    ]
    known = _known(given.results, given.trials)
    left = [job for job in jobs if job[:4] not in known]
    run_left(optimized, left, given.results, given.processes)
    wanted = {job[:4] for job in jobs}
    outcomes = [o for key, o in _known(given.results, given.trials).items() if key in wanted]
    tables = "\n".join(_table(outcomes, noisy, given.rivals) for noisy in noise)
    print(f"\n{tables}")
    if given.write:
        write_between(BEGIN, END, tables)
    return 0


def _known(file: Path, trials: int) -> dict[tuple[str, str, bool, int], Outcome]:
    outcomes = [Outcome(**line) for line in known_lines(file)]
    return {(o.rival, o.family, o.noisy, o.seed): o for o in outcomes if len(o.regrets) == trials}


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
        name: np.array([np.log(max(found[name, family, s].regrets[-1], LEAST)) for s in seeds])
        for name in {rival, BASE}
    }
    if rival == BASE:
        return f"1 ({np.exp(logs[BASE].mean()):.1e})"
    return interval(logs[rival] - logs[BASE])


if __name__ == "__main__":
    sys.exit(main())
