"""A report's advice on a published model that is worse than the default one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.report.report_studies import (
    DEFAULTS,
    only,
    region_facts,
    report_of,
    trial,
)
from trialfleet import Study
from trialfleet.files import write_json
from trialfleet.workflows.facts.models.verdict import CHALLENGER, CHAMPION
from trialfleet.workflows.rules.gate_decision import Measurement, decide, gate_rule
from trialfleet.workflows.status.earlier_model import find_better_previous

PUBLISHED = "/models/s/A/r2"
CURRENT = Path(PUBLISHED)
STUDY: dict[str, Any] = {
    "name": "s",
    "regions": ["A"],
    "objective": {"metric": "auc", "direction": "maximize"},
    "search_space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
    "budget": {"trials": 2},
    "trainer": {"command": ["true"]},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("facts", "step", "command"),
    [
        ({}, None, None),
        ({"published": PUBLISHED}, None, None),  # moved away since
        (
            {"published": PUBLISHED, "current": CURRENT, "previous": Path("/models/s/A/r1")},
            (
                "This model is the current one. To go back to the model of the run r1, which has a "
                "better metric:"
            ),
            "trialfleet promote /models/s/A/r1",
        ),
        (
            {"published": PUBLISHED, "current": CURRENT},
            'run a copy of the study with regions: ["A"] and budget: {trials: 1}: the first',
            None,
        ),
        (  # any name of the study's regions, perhaps a glob
            {"published": PUBLISHED, "current": CURRENT, "data": ["/d/Île.csv"]},
            'a copy of the study with regions: {"A": {"data": ["/d/Île.csv"]}} and budget',
            None,
        ),
        (
            {"published": PUBLISHED, "current": Path("/models/s/A/r3")},
            "The current model is that of the run r3, not this one.",
            None,
        ),
    ],
)
def test_the_next_step_for_a_worse_model_depends_on_the_other_models(
    facts: dict[str, Any], step: str | None, command: str | None
) -> None:
    metrics = [{"test": 0.71}, {"test": 0.7}]
    trials = [
        trial(DEFAULTS, value, at=at, baseline=at == 0, metrics=metrics[at])
        for at, value in enumerate([0.5, 0.6])
    ]
    region = only(report_of(region_facts("A", trials, **facts)))
    assert (step or "") in (region.next_step or "")
    assert (region.next_step is None, region.next_command) == (step is None, command)
    better = only(report_of(region_facts("A", trials[:1], **facts)))
    assert (better.next_step, better.next_command) == (None, None)


def model(folder: Path, run: str, day: int, metrics: dict[str, float], gate: Any = None) -> Path:
    place = folder / run
    place.mkdir(parents=True)
    origin = {"run": run, "study": "s", "created": f"2026-11-{day:02}T02:00:00+00:00"}
    write_json(place / "provenance.json", origin)
    write_json(place / "card.json", {**origin, "metrics": metrics, "gate": gate})
    return place


@pytest.mark.parametrize(("before", "now"), [(0.5, 0.6), (0.6, 0.6), (0.7, 0.6)])
def test_an_earlier_model_is_offered_only_if_it_measured_better(
    tmp_path: Path, before: float, now: float
) -> None:
    study = Study.model_validate(STUDY | {"report_metric": "test"})
    old = model(tmp_path, "r1", 20, {"auc": 0.9, "test": before})
    new = model(tmp_path, "r2", 21, {"auc": 0.8, "test": now})
    assert find_better_previous(new, study) == (old if before > now else None)
    assert find_better_previous(old, study) is None
    lower = study.model_copy(update={"report_direction": "minimize"})
    assert find_better_previous(new, lower) == (old if before < now else None)


def test_the_gates_measurements_count_more_than_the_models_own_metrics(tmp_path: Path) -> None:
    study = Study.model_validate(STUDY | {"gate": {}})
    old = model(tmp_path, "r1", 19, {"auc": 0.9})
    model(tmp_path, "kept", 20, {"auc": 0.99})

    def gate(old: float, new: float) -> Any:
        values = {
            CHAMPION: Measurement(metrics={"auc": old}),
            CHALLENGER: Measurement(metrics={"auc": new}),
        }
        return decide(gate_rule(study), values, champion="r1", challenger="r").to_json()

    better = model(tmp_path, "r2", 21, {"auc": 0.7}, gate(0.6, 0.8))
    assert find_better_previous(better, study) is None, "by its own rows r1 had 0.9"
    worse = model(tmp_path, "r3", 22, {"auc": 0.95}, gate(0.8, 0.6))
    assert find_better_previous(worse, study) == old
