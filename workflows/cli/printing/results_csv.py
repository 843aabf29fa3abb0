"""The results of a run as CSV. All rows have the same columns."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

from trialfleet.workflows.status.run_trials import COLUMNS, Trial
from trialfleet.workflows.status.status_types import BestSettings

if TYPE_CHECKING:
    from trialfleet.workflows.study.spec import Study

_OF_BEST = ("region", "stage", "trial", "value", "published")


def write_csv(trials: Sequence[Trial], study: Study, file: TextIO) -> None:
    """Write a header and a row per trial. Times are Unix seconds.

    The columns are `COLUMNS`, then `params.NAME`, then `metrics.NAME`. The first parameters are
    those that the study tunes in any region, in the study's order. The first metric is the
    objective. The other metrics are sorted by name.
    """
    rows = [{**one.row(), "started": one.started, "ended": one.ended} for one in trials]
    spaces = [study.region_space(region) for region in study.region_table]
    tuned = [name for space in spaces for name in space.parameters]
    given = [name for trial in trials for name in trial.params]  # perhaps from another version
    params = [f"params.{name}" for name in dict.fromkeys([*tuned, *given])]
    objective = f"metrics.{study.objective.metric}"
    found = {f"metrics.{name}" for trial in trials for name in trial.metrics}
    _write([*COLUMNS, *params, objective, *sorted(found - {objective})], rows, file)


def write_best_csv(found: Sequence[BestSettings], file: TextIO) -> None:
    """Write a header and a row per region.

    The columns are the region, its stage, the best trial and its value, the published model, then
    `params.NAME` for each best setting, and `final.NAME` for each metric of the full training.
    """
    rows = [
        {
            **{name: getattr(entry, name) for name in _OF_BEST},
            **{f"params.{name}": value for name, value in entry.params.items()},
            **{f"final.{name}": value for name, value in (entry.final or {}).items()},
        }
        for entry in found
    ]
    own = dict.fromkeys(name for row in rows for name in row)
    names = [name for start in ("params.", "final.") for name in own if name.startswith(start)]
    _write([*_OF_BEST, *names], rows, file)


def _write(names: list[str], rows: Iterable[Mapping[str, object]], file: TextIO) -> None:
    writer = csv.DictWriter(file, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
