"""Our trainer against LightGBM and scikit-learn's network: `python -m tests.bench.tables`.

Flights and three generated files (sets.py) are read as `trialfleet plan` reads them. All ways learn
from the resulting columns, rows and split. The measure is the error on the test rows of the setting
that is best on the validation rows: cross-entropy for classes, RMSE for numbers. The exit code is 1
if our error is more than a tenth above that of scikit-learn's network.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from tests.bench.tables.sets import SETS, File
from tests.bench.tables.ways import WAYS, best_of, settings
from trialfleet.nodes.tabular.table import Table
from trialfleet.workflows.study.table_options import TableOptions
from trialfleet.workflows.tables.reading import read_rows
from trialfleet.workflows.tables.table_from_rows import build_table

ALLOWED = 1.1  # of the error of scikit-learn's network


def main() -> int:
    """Measure each way to learn on each file, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--settings", type=int, default=6, help="that each way may try [6]")
    parser.add_argument("--seeds", type=int, default=2, help="times that all is done [2]")
    parser.add_argument("--only", choices=[*SETS], action="append", help="this file [all]")
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    print(f"mean test error of {given.seeds} times {given.settings} settings")
    print(
        f"{'':<10}{'rows':>7}{'columns':>9}"
        + "".join(f"{way:>11}" for way in WAYS)
        + "  ours/scikit"
    )
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for name in given.only or SETS:
            begun = time.monotonic()
            source = table_of(SETS[name](), Path(folder))
            errors = {
                way: mean_error(way, source, given.settings, given.seeds, Path(folder))
                for way in WAYS
            }
            ratio = errors["ours"] / errors["scikit"]
            worst = max(worst, ratio)
            count = source.numeric.shape[1] + source.categorical.shape[1]
            print(
                f"{name:<10}{len(source.target):>7}{count:>9}"
                + "".join(f"{error:>11.4g}" for error in errors.values())
                + f"{ratio:>13.3f}   ({time.monotonic() - begun:.0f} s)",
                flush=True,
            )
    verdict = "met" if worst <= ALLOWED else "not met"
    print(f"ours at most {ALLOWED:g} times the error of scikit-learn's network: {verdict}")
    return 0 if worst <= ALLOWED else 1


def table_of(file: File, folder: Path) -> Table:
    """Return the table that `plan` makes of a file, written as CSV."""
    path = folder / "rows.csv"
    file.rows.write_csv(path)
    options = TableOptions.model_validate({"split": {"column": "part"}, "columns": file.columns})
    made, _ = build_table(read_rows(path, "csv"), file.target, options, 0)
    return made.used()


def mean_error(way: str, source: Table, count: int, seeds: int, folder: Path) -> float:
    """Return the mean test error of a way to learn; each seed has different settings."""
    found = [best_of(way, source, settings(count, seed), folder) for seed in range(seeds)]
    return float(np.mean([errors.test for errors in found]))


if __name__ == "__main__":
    sys.exit(main())
