"""The best settings of a run's regions as CSV: one row each."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from trialfleet.workflows.run.records import BestSettings

_COLUMNS = ("region", "stage", "trial", "value", "published")


def write_best_csv(found: Sequence[BestSettings], file: TextIO) -> None:
    """Write a header and a row per region.

    Columns are those of every region, then `params.NAME`, and `final.NAME` for the metrics of the
    full training, each in the order in which regions have them first.
    """
    rows = [_row(entry) for entry in found]
    own = dict.fromkeys(name for row in rows for name in row)
    params = [name for name in own if name.startswith("params.")]
    final = [name for name in own if name.startswith("final.")]
    names = [*_COLUMNS, *params, *final]
    writer = csv.DictWriter(file, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def _row(entry: BestSettings) -> dict[str, object]:
    return {
        **{name: getattr(entry, name) for name in _COLUMNS},
        **{f"params.{name}": value for name, value in entry.params.items()},
        **{f"final.{name}": value for name, value in (entry.final or {}).items()},
    }
