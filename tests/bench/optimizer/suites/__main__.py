"""Optimisers on COCO's suites and on tuning tasks: `python -m tests.bench.optimizer.suites`.

All rivals get the same functions and instances, with the same number of pending trials, which end
in the order of their asks. Regret is the distance of the best point so far from the optimum,
without noise, in units of the median random point's distance. Our optimiser, as a study uses it, is
compared with each rival after the last trial:

wins      share of problems with a smaller regret; a tie counts half
ratio     geometric mean of its regret divided by the rival's
targets   share of targets reached: regrets from 1 down to 0.0001, evenly in the logarithm

A problem is a function and an instance. Intervals contain 95% of bootstrap samples of the problems.

By default only the development functions are run. The held-out functions (--held-out) are for
finished changes only: after a change based on their results, they are no longer independent.
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

# The tables of each half, without and with noise, are between these lines of docs/optimizer.md.
BEGIN, END = "<!-- begin of the {}suites' tables -->", "<!-- end of the {}suites' tables -->"
Job = tuple[str, str, str, int, bool, int, int]


def main() -> int:
    """Run the bench; print tables, and write them into docs/optimizer.md if asked to."""
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
    found = {suite: by_rival(runs, suite, given.rivals) for suite in suites}  # previous runs count
    found = {suite: each for suite, each in found.items() if OURS in each}
    tables = "\n".join(_titled(suite, each, given) for suite, each in found.items())
    print(f"\n{tables}")
    if given.write:
        half = ("held-out " if given.held_out else "") + ("noisy " if given.noise else "")
        pictures = {suite: f"suites-{half.replace(' ', '-')}{suite}.svg" for suite in found}
        for suite, name in pictures.items():
            write_atomic(CHARTS / name, drawn(found[suite]))
        links = [
            f"![{half}{suite}: targets reached by trials](assets/{name})"
            for suite, name in pictures.items()
        ]
        text = "\n\n".join([tables.rstrip(), *links]) + "\n"
        write_between(BEGIN.format(half), END.format(half), text)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--suites", nargs="*", default=list(SUITES), choices=list(SUITES))
    parser.add_argument("--functions", nargs="*", help="only these functions of the chosen half")
    parser.add_argument("--instances", type=int, default=5, help="instances of each function")
    parser.add_argument(
        "--rivals",
        nargs="*",
        default=[name for name in ENTRANTS if name not in SLOW],
        choices=list(ENTRANTS),
        help=f"default: all but {', '.join(SLOW)}, which takes more than ten seconds for an ask",
    )
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--parallel", type=int, default=8, help="number of pending trials")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--held-out", action="store_true", help="use the held-out functions")
    parser.add_argument("--noise", action="store_true", help="add noise to the results")
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "bench-suites.jsonl")
    parser.add_argument("--show", action="store_true", help="run nothing; show the results so far")
    parser.add_argument("--write", action="store_true", help=f"write everything into {PAGE.name}")
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
    """Yield the jobs, all rivals of a problem together: results are always paired."""
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
