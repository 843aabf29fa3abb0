"""`trialfleet best --csv`."""

from __future__ import annotations

import csv
import io

from trialfleet.workflows.cli.printing.results_csv import write_best_csv
from trialfleet.workflows.rules.states import Stage
from trialfleet.workflows.status.status_types import BestSettings


def test_each_region_is_a_row_with_its_settings() -> None:
    made = BestSettings(
        region="Zürich, main",
        stage=Stage.PUBLISHED,
        trial=3,
        value=0.25,
        params={"x": 0.5, "kind": "a"},
        final={"loss": 0.2},
        published="/models/Z",
    )
    tuned = BestSettings(
        region="B",
        stage=Stage.TUNED,
        trial=1,
        value=1.0,
        params={"y": 2},
        final=None,
        published=None,
    )
    file = io.StringIO()
    write_best_csv([made, tuned], file)
    first, second = csv.DictReader(io.StringIO(file.getvalue()))
    assert [*first][:5] == ["region", "stage", "trial", "value", "published"]
    assert (first["region"], first["params.x"], first["final.loss"]) == (
        "Zürich, main",
        "0.5",
        "0.2",
    )
    assert (second["params.y"], second["params.x"], second["published"]) == ("2", "", "")
