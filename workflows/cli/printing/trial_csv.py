"""The trials of a run as CSV: one row each, the columns in one order whatever the trials had."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from trialfleet.workflows.run.records import COLUMNS, TrialRecord

if TYPE_CHECKING:
    from trialfleet.workflows.study.spec import Study


def write_csv(records: Sequence[TrialRecord], study: Study, file: TextIO) -> None:
    """Write a header and a row per trial.

    Columns are `COLUMNS`, then `params.NAME` of every parameter that the study tunes in any of its
    regions, in its order, then `metrics.NAME`: the objective, the others by name.
    """
    rows = [_row(record) for record in records]
    given = [name for record in records for name in record.params]  # by another version, perhaps
    params = [f"params.{name}" for name in dict.fromkeys([*_tuned(study), *given])]
    objective = f"metrics.{study.objective.metric}"
    found = {f"metrics.{name}" for record in records for name in record.metrics}
    names = [*COLUMNS, *params, objective, *sorted(found - {objective})]
    writer = csv.DictWriter(file, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def _tuned(study: Study) -> list[str]:
    """The parameters of all regions: the order is that of the region that has them first."""
    spaces = [study.space_of(region) for region in study.region_table]
    return list(dict.fromkeys(name for space in spaces for name in space.parameters))


def _row(record: TrialRecord) -> dict[str, object]:
    """A row whose moments are Unix seconds, as `trialfleet trials --json` has them."""
    return {**record.row(), "started": record.started, "ended": record.ended}
