"""Optimisers on COCO's suites and on what is tuned: `python -m tests.bench.optimizer.suites`.

All rivals meet the same functions and instances, so many trials pending at a time, each of which
ends in the order in which it was asked. Regret is how far the best point so far is from the
optimum, without noise, in units of the median random point's distance. Our optimiser, as a study
uses it, is compared with each rival after the last trial:

wins      the share of problems where its regret is less; a tie counts half
ratio     the geometric mean of its regret by the rival's
targets   of regrets from 1 down to 0.0001, evenly in the logarithm, the share that is reached

A problem is a function and an instance. Intervals hold 95% of bootstrap samples of the problems.

Without --held-out those functions are run that are for development. The others are for what is
finished: one who changes the optimiser by what they say has none left.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.bench.optimizer.runs import (
    CHARTS,
    PAGE,
    ROOT,
    known_lines,
    run_left,
    write_between,
)
from tests.bench.optimizer.suites.measures import Found, by_rival, drawn, table
from tests.bench.optimizer.suites.one_run import Run, run
from tests.bench.optimizer.suites.problems import SUITES
from tests.bench.optimizer.suites.rivals import ENTRANTS, OURS, SLOW
from trialfleet.files import write_atomic

BEGIN, END = "<!-- begin of the suites' tables -->", "<!-- end of the suites' tables -->"
Job = tuple[str, str, str, int, bool, int, int]


def main() -> int:
    """Run what the arguments say; print tables, and write them where docs/optimizer.md has them."""
    given = _arguments()
    rivals = [name for name in given.rivals if _is_there(name, ENTRANTS[name].missing())]
    suites = [name for name in given.suites if _is_there(name, SUITES[name].missing)]
    known = _known(given)
    left = [job for job in _jobs(given, suites, rivals) if job[:4] not in known]
    if not given.show:
        run_left(run, left, given.results, given.processes)
    known = _known(given)
    wanted = [job[:4] for job in _jobs(given, suites, given.rivals)]
    runs = [known[each] for each in wanted if each in known]
    found = {suite: by_rival(runs, suite, given.rivals) for suite in suites}  # earlier runs count
    found = {suite: each for suite, each in found.items() if OURS in each}
    tables = "\n".join(_titled(suite, each, given) for suite, each in found.items())
    print(f"\n{tables}")
    if given.write:
        pictures = {suite: f"suites-{suite}.svg" for suite in found}
        for suite, name in pictures.items():
            write_atomic(CHARTS / name, drawn(found[suite]))
        links = [
            f"![{suite}: targets reached by trials](assets/{x})" for suite, x in pictures.items()
        ]
        write_between(BEGIN, END, "\n\n".join([tables.rstrip(), *links]) + "\n")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--suites", nargs="*", default=list(SUITES), choices=list(SUITES))
    parser.add_argument("--functions", nargs="*", help="those of the chosen half with these names")
    parser.add_argument("--instances", type=int, default=5, help="of each function")
    parser.add_argument(
        "--rivals",
        nargs="*",
        default=[name for name in ENTRANTS if name not in SLOW],
        choices=list(ENTRANTS),
        help=f"all but {', '.join(SLOW)} if left out: more than ten seconds for an ask",
    )
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--parallel", type=int, default=8, help="trials that are pending at a time")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--held-out", action="store_true", help="the functions of the other half")
    parser.add_argument("--noise", action="store_true", help="rivals are told results with noise")
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "bench-suites.jsonl")
    parser.add_argument("--show", action="store_true", help="run nothing: show what is known")
    parser.add_argument("--write", action="store_true", help=f"put it all into {PAGE.name}")
    given = parser.parse_args()
    for name in ("instances", "trials", "parallel", "processes"):
        if getattr(given, name) < 1:
            parser.error(f"--{name}: must be at least 1 (got {getattr(given, name)})")
    return given


def _is_there(name: str, missing: str) -> bool:
    if missing:
        print(f"{name} is left out: {missing}", file=sys.stderr)
    return not missing


def _jobs(given: argparse.Namespace, suites: Sequence[str], rivals: Sequence[str]) -> Iterator[Job]:
    """All rivals of a problem come one after the other: what is known at any time is paired."""
    for instance in range(1, 1 + given.instances):
        for suite in suites:
            half = SUITES[suite].held_out if given.held_out else SUITES[suite].development
            for function in half:
                if given.functions and function not in given.functions:
                    continue
                for rival in rivals:
                    size = given.trials, given.parallel
                    yield rival, suite, function, instance, given.noise, *size


def _known(given: argparse.Namespace) -> dict[tuple[str, str, str, int], Run]:
    found = [Run(**line) for line in known_lines(given.results)]
    size = given.noise, given.trials, given.parallel
    return {
        (x.rival, x.suite, *x.place): x
        for x in found
        if (x.noisy, len(x.regrets), x.parallel) == size
    }


def _titled(suite: str, found: Found, given: argparse.Namespace) -> str:
    half = "held out" if given.held_out else "for development"
    places = found[OURS]
    functions = len({function for function, _ in places})
    noise = "with" if given.noise else "without"
    title = f"*{suite}*: {functions} functions {half}, {len(places)} problems, {noise} noise,"
    title += f"\n{given.trials} trials, {given.parallel} pending at a time.\n"
    return f"{title}\n{table(found, OURS)}"


if __name__ == "__main__":
    sys.exit(main())
