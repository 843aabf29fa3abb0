"""What `trialfleet models` shows where the order of days and that of planning differ."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from trialfleet.workflows.models.gate_decision import Verdict
from trialfleet.workflows.models.latest import promote
from trialfleet.workflows.models.listing import models_on
from trialfleet.workflows.models.tables import champions_table, history_table

MIDNIGHT = datetime(2026, 11, 23, tzinfo=UTC)


def shown(view: RenderableType) -> str:
    screen = Console(width=200, file=io.StringIO())
    screen.print(view)
    return screen.file.getvalue()  # type: ignore[attr-defined,no-any-return]


@pytest.fixture
def models_folder(tmp_path: Path) -> Path:
    """A run by hand, and a day before it that was planned ten minutes later and kept out."""
    models_folder = tmp_path / "models" / "demo" / "A"
    planned = {"by-hand": 80, "2026-11-22": 90}
    for run, minutes in planned.items():
        created = MIDNIGHT + timedelta(minutes=minutes)
        origin = {"study": "demo", "run": run, "created": created.isoformat()}
        if run == "2026-11-22":
            origin |= {"date": run, "as_of": MIDNIGHT.isoformat()}
        (models_folder / run).mkdir(parents=True)
        (models_folder / run / "provenance.json").write_text(json.dumps(origin))
    verdict = Verdict(
        promoted=False, why="too bad", metric="loss", champion="by-hand", challenger="2026-11-22"
    )
    card = {**origin, "gate": verdict.to_json()}
    (models_folder / "2026-11-22" / "card.json").write_text(json.dumps(card))
    promote(models_folder / "by-hand")
    return models_folder


def test_a_model_that_was_kept_out_since_the_one_in_force_is_named(models_folder: Path) -> None:
    view = shown(champions_table({models_folder: models_on(models_folder)}))
    assert "in force; planned later: 2026-11-22: kept by-hand: too bad" in view


def test_the_history_says_by_what_it_is_ordered_where_that_is_not_planning(
    models_folder: Path,
) -> None:
    models = models_on(models_folder)
    assert [model.run for model in models] == ["2026-11-22", "by-hand"]
    assert "In the order of their days" in shown(history_table(models))
    assert "In the order" not in shown(history_table(models[:1]))
