"""Optimisers on real trainings, replayed: `python -m tests.bench.optimizer.replay`.

The tasks are regions of flights. A table has the results of a few hundred settings in each region
(`flights_table.py`). Every rival chooses from the same settings (`pool.py`), with the same number
of pending trials. A replicate is a region and a seed; all rivals get the same replicates. Regret is
the distance of the best setting so far from the table's best, in units of the median setting's
distance.

Previous results:

nothing     none
others      a previous run of each of the 35 other regions: the region itself is left out
yesterday   the month before of all three airports, including the region's own
unrelated   one other region's previous run with shuffled results

A previous run is 50 trials that ours chose in that region without previous results. Trials are
counted to two targets: the final regret of GPSampler, as in `transfer.py`, and the change of regret
by another seed of the training, below which differences are luck.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from tests.bench.optimizer.charts import Curve, chart
from tests.bench.optimizer.flights_table import (
    FILE,
    REGIONS,
    SPACE,
    FlightsTable,
    checksum_file,
    read,
)
from tests.bench.optimizer.pool import (
    Array,
    Pool,
    PoolRival,
    RandomDesign,
    Results,
    previous_task,
    replayed,
)
from tests.bench.optimizer.runs import (
    CHARTS,
    PAGE,
    ROOT,
    bounds,
    interval,
    known_lines,
    resampled_means,
    run_left,
    single_threaded,
    write_between,
)
from trialfleet.files import write_atomic
from trialfleet.optimizer.sampling.warm_start import PreviousTask, PreviousTasks
from trialfleet.optimizer.space import SearchSpace

BEGIN, END = "<!-- begin of the replay's tables -->", "<!-- end of the replay's tables -->"
BASE = "GPSampler"
PREVIOUS_TRIALS = 50
_UNREACHED = 1.5  # times all trials: the number for a rival that does not reach the target
ALONE = ("RandomSampler", "TPESampler", "GPSampler", "qLogNEI", "Spearmint", "ours: nothing")
TAUGHT = (
    "ours: others",
    "ours: yesterday",
    "ours: unrelated",
    "zero-shot: others",
    "quantiles: others",
)


@dataclass(frozen=True, kw_only=True)
class Replay:
    """One rival's choices in one replicate.

    Attributes:
        rival: name of the rival.
        replicate: number of the region and seed.
        region: the optimized region.
        table: beginning of the table's checksum.
        chosen: settings, in the order of their ends.
        seconds: mean duration of a choice over the second half.
    """

    rival: str
    replicate: int
    region: str
    table: str
    chosen: list[int]
    seconds: float


def main() -> int:
    """Run the bench; print the tables, and write them into docs/optimizer.md if asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    everybody = [*ALONE, *TAUGHT]
    parser.add_argument("--rivals", nargs="*", default=everybody, choices=everybody)
    parser.add_argument("--seeds", type=int, default=20, help="replicates")
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--parallel", type=int, default=8, help="number of pending trials")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--table", type=Path, default=FILE)
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "bench-replay.jsonl")
    parser.add_argument("--write", action="store_true", help=f"write everything into {PAGE.name}")
    given = parser.parse_args()
    rivals = [name for name in given.rivals if name != "qLogNEI" or _has_botorch()]
    table = read(given.table)
    wanted = {(name, number) for number in range(given.seeds) for name in rivals}
    previous_runs(given.table, given.processes)
    size = given.trials, given.parallel, given.table
    known = _known(given)
    left = [(*key, *size) for key in sorted(wanted, key=_place) if key not in known]
    run_left(replay, left, given.results, given.processes)
    found = {key: value for key, value in _known(given).items() if key in wanted}
    tables = _tables(table, found, given.trials, given.parallel)
    print(f"\n{tables}")
    if given.write:
        write_atomic(CHARTS / "replay-rivals.svg", _chart(table, found, ALONE))
        taught = ("GPSampler", "ours: nothing", *TAUGHT)
        write_atomic(CHARTS / "replay-previous.svg", _chart(table, found, taught))
        write_between(BEGIN, END, tables)
    return 0


def _has_botorch() -> bool:
    found = importlib.util.find_spec("botorch") is not None
    if not found:
        print(
            "qLogNEI is left out: BoTorch is not installed (see requirements.txt)", file=sys.stderr
        )
    return found


def _place(key: tuple[str, int]) -> tuple[int, int]:
    return key[1], [*ALONE, *TAUGHT].index(key[0])


def _known(given: argparse.Namespace) -> dict[tuple[str, int], Replay]:
    found = [Replay(**line) for line in known_lines(given.results)]
    return {
        (x.rival, x.replicate): x
        for x in found
        if x.table == name_of(given.table) and len(x.chosen) == given.trials
    }


# Replicates


def region_of(replicate: int) -> str:
    """Return the region of a replicate, for which the table has the month before."""
    regions = [region for region in REGIONS if FlightsTable.yesterday(region)]
    return regions[int(np.random.default_rng(33).permutation(len(regions))[replicate % 33])]


def replay(rival: str, replicate: int, trials: int, parallel: int, file: Path) -> Replay:
    """Let one optimiser tune the region of a replicate."""
    warnings.simplefilter("ignore")
    table, pool = _opened(file)
    region = region_of(replicate)
    chooser = _rival(rival, pool, replicate, trials, region, file)
    result = replayed(table.losses(region), chooser, trials, parallel)
    seconds = float(np.mean(result.seconds[trials // 2 :]))
    return Replay(
        rival=rival,
        replicate=replicate,
        region=region,
        table=name_of(file),
        chosen=result.chosen,
        seconds=round(seconds, 4),
    )


def _rival(name: str, pool: Pool, seed: int, trials: int, region: str, file: Path) -> PoolRival:
    from tests.bench.optimizer import pool_rivals, spearmint

    if name in ALONE:
        makers: dict[str, Callable[[], PoolRival]] = {
            "RandomSampler": lambda: RandomDesign(pool, seed),
            "TPESampler": lambda: pool_rivals.NearestTPE(pool, seed),
            "GPSampler": lambda: pool_rivals.GPSampler(pool, seed),
            "qLogNEI": lambda: pool_rivals.NoisyEI(pool, seed),
            "Spearmint": lambda: spearmint.Spearmint(pool, seed),
            "ours: nothing": lambda: pool_rivals.Ours(pool, seed, trials),
        }
        return makers[name]()
    kind, knowledge = name.split(": ")
    tasks = known_before(knowledge, region, seed, file)
    if kind == "zero-shot":
        return pool_rivals.ZeroShot(pool, tasks)
    if kind == "quantiles":
        return pool_rivals.QuantileTransfer(pool, seed, tasks)
    return pool_rivals.Ours(pool, seed, trials, PreviousTasks(tuple(tasks), region))


def known_before(knowledge: str, region: str, seed: int, file: Path) -> list[PreviousTask]:
    """Return the results of earlier runs of the kind `knowledge`, such as `others`."""
    runs = previous_runs(file)
    others = [task for name, task in runs.items() if name != region]
    if knowledge == "others":
        return others
    if knowledge == "yesterday":
        month = FlightsTable.yesterday(region)
        assert month is not None
        tasks = [task for name, task in runs.items() if name[-2:] == month[-2:]]
        # today's name, so that a region's own best settings of yesterday are run again
        return [replace(task, region=f"{task.region[:3]}-{region[-2:]}") for task in tasks]
    random = np.random.default_rng([seed, 5])
    other = others[int(random.integers(len(others)))]
    shuffled = tuple(float(x) for x in random.permutation(other.losses))
    return [replace(other, name="unrelated", region="unrelated", losses=shuffled)]


def name_of(file: Path) -> str:
    """Return a name for a table, which changes when the table gets more settings."""
    return checksum_file(file).read_text()[:12]


@lru_cache
def _opened(file: Path) -> tuple[FlightsTable, Pool]:
    table = read(file)
    return table, Pool.of(SearchSpace.model_validate(SPACE), table.settings)


@lru_cache
def previous_runs(file: Path, processes: int = 1) -> dict[str, PreviousTask]:
    """Return a previous run of every region, made once per table."""
    table, pool = _opened(file)
    cache = ROOT / "build" / f"bench-replay-previous-{name_of(file)}.json"
    if not cache.exists():
        cache.parent.mkdir(exist_ok=True)
        with single_threaded(processes) as workers:
            chosen = list(workers.map(_previous_run, [file] * 36, table.regions))
        write_atomic(cache, json.dumps(dict(zip(table.regions, chosen, strict=True))))
    tasks = {}
    for region, numbers in json.loads(cache.read_text()).items():
        results = Results()
        replayed(table.losses(region), _InOrder(numbers), len(numbers), 1, results)
        tasks[region] = previous_task(region, region, pool, results)
    return tasks


class _InOrder:
    """Repeats known choices, in the interface of an optimiser."""

    def __init__(self, order: Sequence[int]) -> None:
        self._order = order

    def choose(self, results: Results, left: Sequence[int]) -> int:  # noqa: ARG002
        return self._order[len(results.asked)]


def _previous_run(file: Path, region: str) -> list[int]:
    from tests.bench.optimizer.pool_rivals import Ours

    warnings.simplefilter("ignore")
    table, pool = _opened(file)
    seed = 1000 + table.regions.index(region)
    rival = Ours(pool, seed, PREVIOUS_TRIALS)
    return replayed(table.losses(region), rival, PREVIOUS_TRIALS, 8).chosen


# Results


def regrets(table: FlightsTable, found: Replay) -> Array:
    """Return the regret after each trial."""
    losses = table.losses(found.region)
    best, unit = unit_of(losses)
    chosen = np.nan_to_num(losses[found.chosen], nan=np.inf)
    return np.asarray((np.minimum.accumulate(chosen) - best) / unit)


def unit_of(losses: Array) -> tuple[float, float]:
    """Return the best loss, and the distance of the median loss from the best."""
    best = float(np.nanmin(losses))
    return best, float(np.nanmedian(losses)) - best


def _tables(
    table: FlightsTable, found: dict[tuple[str, int], Replay], trials: int, parallel: int
) -> str:
    curves = {key: regrets(table, replay) for key, replay in found.items()}
    numbers = sorted({number for _, number in found})
    chance = {n: _seed_regret(table, region_of(n)) for n in numbers}
    marks = sorted({trials * 2 // 5, trials * 7 // 10, trials})
    heads = ["rival", "replicates", *(f"regret after {mark}" for mark in marks)]
    heads += ["its ratio", "trials to the same regret", "trials to a seed's change", "s per ask"]
    size = f"{len(table.settings)} settings in each of {len(table.regions)} regions"
    lines = [
        f"{size}, {parallel} trials",
        f"pending at a time; ratios to {BASE}'s. Another seed of a training changes its regret by",
        f"{np.mean(list(chance.values())):.2f} (standard deviation).",
        "",
        f"| {' | '.join(heads)} |",
        f"| --- |{' ---: |' * (len(heads) - 1)}",
    ]
    for name in [*ALONE, *TAUGHT]:
        own = [n for n in numbers if (name, n) in found and (BASE, n) in found]
        if not own:
            continue
        mine = np.array([curves[name, n] for n in own])
        base = np.array([curves[BASE, n] for n in own])
        cells = [name, str(len(own)), *(f"{mine[:, mark - 1].mean():.3f}" for mark in marks)]
        cells.append("1" if name == BASE else ratio_of_means(mine[:, -1], base[:, -1]))
        for targets in (base[:, -1], np.array([chance[n] for n in own])):
            needed, needs = (
                np.log([trials_to(*each) for each in zip(curve, targets, strict=True)])
                for curve in (mine, base)
            )
            same = f"1 ({np.exp(needs.mean()):.0f} trials)"
            cells.append(same if name == BASE else interval(needed - needs))
        cells.append(f"{np.mean([found[name, n].seconds for n in own]):.2f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _seed_regret(table: FlightsTable, region: str) -> float:
    return table.seed_deviation(region) / unit_of(table.losses(region))[1]


def trials_to(curve: Array, target: float) -> float:
    """Return the number of trials until a regret is reached."""
    reached = np.flatnonzero(curve <= target + 1e-12)
    return float(reached[0] + 1) if len(reached) else _UNREACHED * len(curve)


def ratio_of_means(mine: Array, base: Array) -> str:
    """Return the ratio of two means of paired values, and the interval of its bootstrap samples.

    The mean of ratios would fail, because a regret may be 0.
    """
    if not base.mean():
        return "-"
    means = resampled_means(np.stack([mine, base], axis=1))
    with np.errstate(divide="ignore", invalid="ignore"):
        low, high = bounds(means[:, 0] / means[:, 1])
    return f"**{mine.mean() / base.mean():.2g}** ({low:.2g} to {high:.2g})"


def _chart(table: FlightsTable, found: dict[tuple[str, int], Replay], names: Sequence[str]) -> str:
    curves = []
    for name in names:
        own = [regrets(table, replay) for (rival, _), replay in found.items() if rival == name]
        if own:
            values = np.array(own)
            low, high = bounds(resampled_means(values))
            curves.append(Curve(name, values.mean(axis=0), low, high))
    return chart(curves, x="trials that have ended", y="regret")


if __name__ == "__main__":
    sys.exit(main())
