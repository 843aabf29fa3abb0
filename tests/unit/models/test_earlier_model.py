"""The comparison of a new model with the previous one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trialfleet import Study
from trialfleet.files import write_json
from trialfleet.workflows.facts.models.verdict import CHALLENGER, CHAMPION
from trialfleet.workflows.rules.gate_decision import Measurement, decide, gate_rule
from trialfleet.workflows.status.earlier_model import with_previous

STUDY: dict[str, Any] = {
    "name": "s",
    "regions": ["A"],
    "objective": {"metric": "auc", "direction": "maximize"},
    "search_space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
    "budget": {"trials": 2},
    "trainer": {"command": ["true"]},
}


def model(folder: Path, run: str, day: int, metrics: dict[str, float], gate: Any = None) -> Path:
    place = folder / run
    place.mkdir(parents=True)
    origin = {"run": run, "study": "s", "created": f"2026-11-{day:02}T02:00:00+00:00"}
    write_json(place / "provenance.json", origin)
    write_json(place / "card.json", {**origin, "metrics": metrics, "gate": gate})
    return place


def test_without_a_gate_the_full_trainings_are_compared_by_the_report_metric(
    tmp_path: Path,
) -> None:
    study = Study.model_validate(STUDY | {"report_metric": "test"})
    old = model(tmp_path, "r1", 20, {"auc": 0.9, "test": 0.7})
    new = model(tmp_path, "r2", 21, {"auc": 0.8, "test": 0.6})
    assert with_previous(new, study) == ("test", "maximize", 0.6, old, 0.7)
    assert with_previous(old, study) == ("test", "maximize", 0.7, None, None)


def test_the_gates_measurements_count_more_than_the_models_own_metrics(tmp_path: Path) -> None:
    study = Study.model_validate(STUDY | {"gate": {}})
    old = model(tmp_path, "r1", 19, {"auc": 0.9})
    model(tmp_path, "kept", 20, {"auc": 0.99})
    values = {
        CHAMPION: Measurement(metrics={"auc": 0.6}),
        CHALLENGER: Measurement(metrics={"auc": 0.8}),
    }
    gate = decide(gate_rule(study), values, champion="r1", challenger="r2").to_json()
    new = model(tmp_path, "r2", 21, {"auc": 0.7}, gate)
    assert with_previous(new, study) == ("auc", "maximize", 0.8, old, 0.6)
