"""The published models of a region, and whether each is current, was current or may become so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from trialfleet.workflows.facts.models.approval import read_awaiting
from trialfleet.workflows.facts.models.card import read_card, read_model_verdict
from trialfleet.workflows.facts.models.drift import drift
from trialfleet.workflows.facts.models.folders import (
    LATEST,
    list_models,
    model_time,
    planning_time,
    read_provenance,
)
from trialfleet.workflows.facts.models.history import changes, current_run
from trialfleet.workflows.facts.models.verdict import Verdict


class ModelState(StrEnum):
    """The standing of a model: it is current, was current or may become current."""

    CURRENT = "current"
    BEFORE = "before"  # a rollback can make it current
    ROLLED_BACK = "rolled back"  # by a person
    AWAITS = "waits for approval"  # a person may promote it
    NEVER = "never"  # never current, as far as is known


@dataclass(frozen=True, kw_only=True)
class PublishedModel:
    """A model in a region's folder of models.

    Attributes:
        created: when the run was planned.
        as_of: the time from which the model's age counts.
        awaits_since: the time since which the model waits for approval; None if it doesn't wait.
        card: the content of the model's card.json or, if there is none, provenance.json.
        evaluations: measurements of the model, oldest first: the run of the gate that measured it,
            and the value of `metric`.
        metric: the metric of the region's last gate; empty if no gate measured anything.
        is_readable: whether the model's provenance.json could be read.
        drift: a text if the last measurement is unusual (see drift.py); otherwise None.
    """

    path: Path
    run: str
    created: datetime | None
    as_of: datetime | None
    is_current: bool
    standing: ModelState
    awaits_since: datetime | None
    card: dict[str, Any]
    verdict: Verdict | None
    evaluations: tuple[tuple[str, float], ...]
    metric: str
    drift: str | None
    is_readable: bool = True

    def to_json(self) -> dict[str, Any]:
        """Return the model as plain data."""
        return {
            "path": str(self.path),
            "run": self.run,
            "as_of": self.as_of,
            "current": self.is_current,
            "standing": self.standing.value,
            "awaits_since": self.awaits_since,
            "metric": self.metric,
            "evaluations": [{"run": run, "value": value} for run, value in self.evaluations],
            "drift": self.drift,
            "card": self.card,
        }


def list_published_models(models_folder: Path) -> list[PublishedModel]:
    """Return all models in a region's folder, oldest first."""
    models = list_models(models_folder, with_unreadable=True)
    runs = sorted(models, key=lambda path: (_time(path), path.name))
    verdicts = [found for path in runs if (found := read_model_verdict(path))]
    standings, waits = _read_standings(models_folder / LATEST), read_awaiting(models_folder)
    if waits:
        standings[waits.run] = ModelState.AWAITS
    since = waits.since if waits else None
    return [
        _model(path, verdicts, standings.get(path.name, ModelState.NEVER), since) for path in runs
    ]


def runs_with_models(models_folder: Path) -> list[str]:
    """Return the ids of the runs with a published model in a region's folder, newest first.

    The id of the current model's run is followed by `(current)`.
    """
    models = list_published_models(models_folder)[::-1]
    return [f"{one.run} (current)" if one.is_current else one.run for one in models]


def _read_standings(link: Path) -> dict[str, ModelState]:
    latest = current_run(link)
    found = {change.run: ModelState.BEFORE for change in changes(link)}
    found |= {
        change.previous: ModelState.ROLLED_BACK if change.by == "rollback" else ModelState.BEFORE
        for change in changes(link)
        if change.previous
    }
    return found | ({latest: ModelState.CURRENT} if latest else {})


def drift_text(models_folder: Path, run: str | None) -> str | None:
    """Return a text on how the last measurement of a run's model differs from the earlier ones.

    Return None if it doesn't differ much, or if `run` is None or has no model here.
    """
    models = list_published_models(models_folder)
    return next((model.drift for model in models if model.run == run), None)


def _model(
    path: Path, verdicts: Sequence[Verdict], standing: ModelState, waits_since: datetime | None
) -> PublishedModel:
    metric = verdicts[-1].metric if verdicts else ""  # the last gate's
    evaluations = _evaluations(path.name, verdicts, metric)
    drifted = drift([value for _, value in evaluations])
    provenance = read_provenance(path)
    return PublishedModel(
        path=path,
        run=path.name,
        created=planning_time(path),
        as_of=model_time(path),
        is_current=standing is ModelState.CURRENT,
        standing=standing,
        awaits_since=waits_since if standing is ModelState.AWAITS else None,
        card=read_card(path) or provenance,
        verdict=read_model_verdict(path),
        evaluations=tuple(evaluations),
        metric=metric,
        drift=f"{path.name} has drifted: {metric} {drifted}" if drifted else None,
        is_readable=bool(provenance),
    )


def _evaluations(run: str, verdicts: Sequence[Verdict], metric: str) -> list[tuple[str, float]]:
    found = []
    for verdict in verdicts:
        sides = (side for side in (verdict.champion, verdict.challenger) if side)
        value = next((side.metrics.get(metric) for side in sides if side.run == run), None)
        if value is not None:
            found.append((verdict.challenger.run, value))
    return found


def _time(model: Path) -> float:
    created = model_time(model)
    return created.timestamp() if created else 0.0
