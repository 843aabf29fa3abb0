"""`trialfleet models` where the order of days and that of planning differ."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.unit.terminal import printed
from trialfleet.workflows.control.models.latest import promote
from trialfleet.workflows.facts.models.listing import list_published_models
from trialfleet.workflows.facts.models.verdict import ComparedModel, Verdict
from trialfleet.workflows.views.terminal.model_tables import champions_table, history_table

MIDNIGHT = datetime(2026, 11, 23, tzinfo=UTC)


LONG = (
    "test_rmse 1595, champion 383.1: worse by 1212, and that is more than chance (95% confidence); "
    "a few rows, a single one perhaps, may be why: correct the data, or choose another metric"
)
HINT = "full reasons: trialfleet models REGION --card RUN, or --json"


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
        verdict="kept",
        why="too bad",
        metric="loss",
        champion=ComparedModel(run="by-hand"),
        challenger=ComparedModel(run="2026-11-22"),
        baseline=None,
        interval=None,
    )
    card = {**origin, "gate": verdict.to_json()}
    (models_folder / "2026-11-22" / "card.json").write_text(json.dumps(card))
    promote(models_folder / "by-hand")
    return models_folder


def test_the_table_names_a_model_that_was_rejected_since_the_current_one(
    models_folder: Path,
) -> None:
    view = printed(champions_table({models_folder: list_published_models(models_folder)}))
    assert "current; of an earlier day: 2026-11-22: rejected (kept by-hand): too bad" in view


@pytest.mark.parametrize("width", [80, 100, 120])
def test_a_long_reason_is_cut_to_one_line_with_a_hint_at_the_complete_text(
    models_folder: Path, width: int
) -> None:
    card = models_folder / "2026-11-22" / "card.json"
    card.write_text(card.read_text().replace("too bad", LONG))
    models = list_published_models(models_folder)
    for view in (champions_table({models_folder: models}), history_table(models)):
        lines = printed(view, width).splitlines()
        assert all(len(line.rstrip()) <= width for line in lines)
        first, *rows = lines[: lines.index(HINT)]
        assert first.split()[0] in {"study", "run"}
        assert [row.split()[0] for row in rows] in (["demo"], ["2026-11-22", "by-hand"])
        assert rows[0].rstrip().endswith("…")
        whole = printed(view, 1000)
        assert LONG in whole
        assert HINT not in whole


def test_the_history_states_its_order_if_it_is_not_the_order_of_planning(
    models_folder: Path,
) -> None:
    models = list_published_models(models_folder)
    assert [model.run for model in models] == ["2026-11-22", "by-hand"]
    assert "ordered by age" in printed(history_table(models))
    assert "ordered by age" not in printed(history_table(models[:1]))
