"""Models folders for tests of exports: real ones, as a publication leaves them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.unit.scripts import Scripts, write_result
from trialfleet import Run
from trialfleet.workflows.control.models.latest import switch_to_newest
from trialfleet.workflows.control.scripts.publish_program import publish_region
from trialfleet.workflows.facts.run_folder.dag_structure import EXITS

_VALUES = {1: 3.0, 2: 1.0}  # of the trials; the third fails
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
    """Publish a model of each run, a day after the other; the last is current."""
    models_folder = root / "models" / "demo" / region
    for day, run in enumerate(runs):
        publish_model(models_folder, run, day)
    return models_folder


def publish_model(models_folder: Path, run: str, day: int, weights: str = "") -> None:
    """Publish a model; it is current if none is newer."""
    switch_to_newest(add_model(models_folder, run, day, weights), MONDAY + timedelta(days=day))


def publish_run(run: Run) -> Path:
    """Play the jobs of a run of region A, with three trials, one of which fails; publish its model.

    Returns:
        The folder of the region's models.
    """
    scripts = Scripts(run)
    for number in (1, 2, 3):
        node = f"A.l1.t0{number}"
        assert scripts.ask(node) == EXITS["done"]
        trial = scripts.trial(node)
        if value := _VALUES.get(number):
            metrics = {"loss": value, "seconds": 0.5}
            reports = [{"step": step, "metrics": {"loss": value + 1 / step}} for step in (1, 2)]
            trial.progress.write_text("".join(f"{json.dumps(each)}\n" for each in reports))
            write_result(trial, metrics=metrics)
        assert scripts.tell(node, 0 if value else 64) == EXITS["done"]
    scripts.train_best(1.0)
    (scripts.best.model / "weights").touch()
    assert scripts.tell_best(0).exit_code == EXITS["done"]
    assert publish_region(scripts.folder, "A") == EXITS["done"]
    return Path(json.loads(scripts.files.published.read_text())["path"]).parent
