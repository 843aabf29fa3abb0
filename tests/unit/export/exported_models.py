"""Models folders for tests of exports: real ones, as a publication leaves them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

from trialfleet.workflows.control.models.latest import switch_to_newest

MONDAY = datetime(2026, 11, 23, 6, tzinfo=UTC)


def add_model(models_folder: Path, run: str, day: int, weights: str = "") -> Path:
    """Publish a model by hand; `latest` stays."""
    model = models_folder / run
    (model / "deep").mkdir(parents=True)
    (model / "deep" / "weights").write_text(weights or f"weights of {run}")
    (model / "empty").touch()
    study, region = models_folder.parent.name, models_folder.name
    created = (MONDAY + timedelta(days=day)).isoformat()
    provenance = {
        "study": study,
        "region": region,
        "run": run,
        "created": created,
        "params": {"learning_rate": 0.1, "optimizer": "sgd"},
        "trial": 3,
        "seed": 7,
        "data": [{"path": "/data/A.csv", "sha256": "5e884898", "bytes": 4}],
        "versions": {"trialfleet": "0.1.0"},
    }
    (model / "provenance.json").write_text(json.dumps(provenance))
    (model / "metrics.json").write_text(json.dumps({"loss": 0.25}))
    (model / "card.json").write_text(
        json.dumps(provenance | {"metrics": {"loss": 0.25}, "gate": None})
    )
    return model


def publish_models(root: Path, *runs: str, region: str = "A") -> Path:
    """Publish a model of each run, a day after the other; the last is in force."""
    models_folder = root / "models" / "demo" / region
    for day, run in enumerate(runs):
        publish_model(models_folder, run, day)
    return models_folder


def publish_model(models_folder: Path, run: str, day: int, weights: str = "") -> None:
    """Publish a model; it is in force if none is newer."""
    switch_to_newest(add_model(models_folder, run, day, weights), MONDAY + timedelta(days=day))
