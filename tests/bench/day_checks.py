"""`python -m tests.bench.day_checks`: the errors and the time of the checks of a day's table.

The tables are generated; their columns predict the target more or less well. A false alarm is a
finding on a healthy day. A miss is a day with shuffled labels that isn't found.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from trialfleet.nodes.tabular.table import Columns, Table
from trialfleet.workflows.rules.unusual_tables import MOST_DAYS, findings
from trialfleet.workflows.tables.day_profile import DayProfile, build_profile
from trialfleet.workflows.tables.table_from_rows import describe

SEEDS = 50
KINDS = ("binary", "multiclass", "regression")
_NUMERIC, _CATEGORICAL = 13, 2
_WORDS = list("abcde")


def made_table(kind: str, rows: int, strength: float, seed: int, numeric: int = _NUMERIC) -> Table:
    """Return a day's table in which three columns predict the target.

    Args:
        kind: "binary", "multiclass" or "regression".
        rows: number of rows.
        strength: of the columns' effect, in standard deviations of the noise.
        seed: a different one for each day.
        numeric: number of numeric columns.
    """
    dealt = np.random.default_rng(seed)
    numbers = dealt.normal(size=(rows, numeric)).astype(np.float32)
    codes = dealt.integers(1, len(_WORDS) + 1, (rows, _CATEGORICAL)).astype(np.int32)
    signal = numbers[:, 0] + np.abs(numbers[:, 1]) / 2 + (codes[:, 0] == 2) / 2
    values = strength * signal + dealt.normal(size=rows)
    target: npt.NDArray[np.float64] = values
    if kind != "regression":
        cuts = [0.7] if kind == "binary" else [-0.8, 0.3, 1.0]
        target = np.digitize(values, cuts).astype(np.float32)
    classes = {"binary": ["no", "yes"], "multiclass": list("wxyz")}.get(kind, [])
    columns = Columns(
        numeric=[f"x{number}" for number in range(numeric)],
        categorical=dict.fromkeys(["c", "d"], _WORDS),
        target="y",
        task="classification" if classes else "regression",
        classes=classes,
    )
    split = dealt.choice([0, 0, 0, 1, 2], rows).astype(np.int8)
    return Table(columns=columns, numeric=numbers, categorical=codes, target=target, split=split)


def shuffled(table: Table, seed: int) -> Table:
    """Return a table with the labels in random order."""
    return replace(table, target=np.random.default_rng(seed).permutation(table.target))


def profile(table: Table) -> DayProfile:
    """Return the profile of a day's table, as `trialfleet plan` makes it."""
    return build_profile(table, describe(table), seed=0, labels=True)


def count(kind: str, rows: int, strength: float, days: int) -> tuple[Counter[str], int]:
    """Return each check's false alarms on `SEEDS` healthy days, and the missed shuffled days.

    Each day is compared with `days` earlier ones.
    """
    seeds = range(SEEDS + days)
    profiles = [profile(made_table(kind, rows, strength, seed)) for seed in seeds]
    alarms: Counter[str] = Counter()
    missed = 0
    for number in range(days, SEEDS + days):
        past = profiles[number - days : number]
        alarms.update(one.check for one in findings(profiles[number], past))
        wrong = profile(shuffled(made_table(kind, rows, strength, number), number))
        missed += all(one.check != "labels" for one in findings(wrong, past))
    return alarms, missed


def main() -> None:
    """Print both tables."""
    print("rows  strength  past days  false alarms of 150 days, by check; shuffled labels missed")
    for rows in (100, 300, 1_000, 5_000):
        for strength in (1.0, 0.3, 0.1):
            for days in (0, 3, MOST_DAYS):
                found = [count(kind, rows, strength, days) for kind in KINDS]
                alarms = sum((each for each, _ in found), Counter[str]())
                counts = ", ".join(f"{check} {times}" for check, times in alarms.items()) or "none"
                missed = sum(each for _, each in found)
                print(f"{rows:5}  {strength:8}  {days:9}  {counts}; {missed}", flush=True)
    print("rows x columns: seconds of a profile with labels, and without")
    for rows, numeric in ((1_000, 13), (100_000, 13), (100_000, 200), (1_000_000, 50)):
        table = made_table("binary", rows, 1.0, 0, numeric)
        found_in_it = describe(table)
        taken = []
        for labels in (True, False):
            begun = time.perf_counter()
            build_profile(table, found_in_it, seed=0, labels=labels)
            taken.append(f"{time.perf_counter() - begun:.3f}")
        print(f"{rows} x {numeric + _CATEGORICAL}: {', '.join(taken)}", flush=True)


if __name__ == "__main__":
    main()
