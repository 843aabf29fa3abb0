"""The tables of `trialfleet models` in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from trialfleet.workflows.facts.models.card import data_identity
from trialfleet.workflows.facts.models.folders import LATEST, read_region_name
from trialfleet.workflows.facts.models.history import changes, last_move
from trialfleet.workflows.facts.models.listing import ModelState, PublishedModel
from trialfleet.workflows.formatting import local_time, result_text, rough_duration
from trialfleet.workflows.rules.gate_decision import kept_words
from trialfleet.workflows.views.output import (
    cut_to_width,
    keep_numbers_whole,
    pairs,
    plain_table,
    with_hint_if_cut,
)

_BY_DAYS = (
    "The models are ordered by age. The age of a backfilled day's model counts from the end of "
    "that day, the age of any other model from the planning of its run."
)
_WHOLE = "full reasons: trialfleet models REGION --card RUN, or --json"
_CHECKSUM = 12  # digits of a SHA-256 that are shown


def champions_table(models_folders: Mapping[Path, Sequence[PublishedModel]]) -> RenderableType:
    """Return a table of each region's current model and the state of its newest model."""
    columns = ("study", "region", "current", "age", "metric", "newest")
    table = plain_table(*columns, right=("age", "metric"))
    now = datetime.now(UTC)
    for models_folder, models in models_folders.items():
        names = (models_folder.parent.name, read_region_name(models_folder))
        champion = next((model for model in models if model.is_current), None)
        newest = _newest(models, champion)
        shown = ("none", "", "")
        if champion:
            age = (now - champion.as_of).total_seconds() if champion.as_of else None
            shown = (champion.run, rough_duration(age), _metric(champion))
        table.add_row(*map(Text, (*names, *shown)), cut_to_width(newest))
    drifted = [
        Text(line, "yellow") for models in models_folders.values() for line in _drift_texts(models)
    ]
    keep_numbers_whole(table)
    return Group(with_hint_if_cut(table, _WHOLE), *drifted)


def history_table(models: Sequence[PublishedModel]) -> RenderableType:
    """Return a table with a row per model of a region, oldest first.

    Two values in the column "by the last gate" are comparable only if the same run's gate measured
    them, because each run's gate has its own test rows.
    """
    table = plain_table("run", "planned", "metric", "by the last gate", "state", right=("metric",))
    champion = next((model for model in models if model.is_current), None)
    for model in models:
        style = "bold" if model.is_current else ""
        cells = (model.run, local_time(model.created), _metric(model), _last_evaluation(model))
        state = cut_to_width(_state(model, champion), style)
        table.add_row(*(Text(cell, style) for cell in cells), state)
    keep_numbers_whole(table)
    planned = [model.created for model in models if model.created]
    order = [] if planned == sorted(planned) else [Text(_BY_DAYS, "dim")]
    return Group(
        with_hint_if_cut(table, _WHOLE),
        *order,
        *(Text(line, "yellow") for line in _drift_texts(models)),
    )


def card_text(model: PublishedModel) -> Text:
    """Return all that is recorded about a model as text."""
    lines = [f"{name:<10}{value}" for name, value in _card_lines(model) if value]
    return Text("\n".join(lines))


def _card_lines(model: PublishedModel) -> Iterator[tuple[str, str]]:
    card, verdict = model.card, model.verdict
    yield "model", f"{model.path}{'  (current)' if model.is_current else ''}"
    yield "study", f"{card.get('study')}, region {card.get('region')}, trial {card.get('trial')}"
    yield "planned", local_time(model.created)
    yield "settings", pairs(card.get("params") or {}, 5)
    yield "seed", str(card.get("seed", ""))
    yield "metrics", pairs(card.get("metrics") or {}, 5)
    for entry in card.get("data") or []:
        place = entry.get("path") or entry.get("url")
        yield "data", f"{place}  {data_identity(entry)[:_CHECKSUM]}"
    yield "inputs", str(card.get("changed") or "")
    yield "checks", str(card.get("checks") or "")
    seconds = f"{card['seconds']:.5g} s" if card.get("seconds") is not None else ""
    yield "trained", f"{card.get('device') or ''}  {seconds}".strip()
    yield "versions", pairs(card.get("versions") or {}, 5)
    if verdict:
        passed = "passed" if model.awaits_since else "promoted"
        words = passed if verdict.promoted else kept_words(verdict.champion_run)
        yield "gate", f"{words}: {verdict.why}"
        yield "against", (verdict.champion_run or "") if verdict.promoted else ""
    if model.awaits_since:
        yield "approval", f"waiting since {local_time(model.awaits_since)}"
    yield "measured", "  ".join(result_text(*each) for each in model.evaluations)
    for change in changes(model.path.parent / LATEST):
        if change.run == model.run:
            yield "current", f"{change.since}, by {change.description}"
    yield "drift", model.drift or ""


def _newest(models: Sequence[PublishedModel], champion: PublishedModel | None) -> str:
    if not models:
        return "no models"
    if champion and not champion.is_readable:
        return _state(champion, champion)
    last = models[-1]
    if not last.is_current:
        return f"{last.run}: {_state(last, champion)}"
    planned = [model for model in models if model.created]
    newest = max(planned, key=lambda model: (model.created, model.is_current), default=last)
    if newest.is_current:
        return "current"
    day = newest.card.get("date")  # planned later, but its day comes before
    how = "of an earlier day" if day and day != last.card.get("date") else "planned later"
    return f"current; {how}: {newest.run}: {_state(newest, champion)}"


def _state(model: PublishedModel, champion: PublishedModel | None) -> str:
    lacks = "" if model.is_readable else "; its provenance.json can't be read"
    return f"{_standing(model, champion)}{lacks}"


def _standing(model: PublishedModel, champion: PublishedModel | None) -> str:
    if model.is_current:
        return "current"
    if model.standing is ModelState.ROLLED_BACK:
        return f"rolled back{_rollback_text(model)}"
    if model.awaits_since:
        return f"{model.standing} since {local_time(model.awaits_since)}"
    if model.verdict and not model.verdict.promoted and model.standing is ModelState.NEVER:
        kept = f" (kept {model.verdict.champion_run})" if model.verdict.champion_run else ""
        return f"rejected{kept}: {model.verdict.why}"
    if champion and model.standing is ModelState.BEFORE:
        return f"before {champion.run}"
    return "not current"


def _rollback_text(model: PublishedModel) -> str:
    moved = last_move(model.path.parent / LATEST, model.run)
    return moved.description.removeprefix("rollback") if moved and moved.by == "rollback" else ""


def _drift_texts(models: Sequence[PublishedModel]) -> list[str]:
    return [model.drift for model in models if model.is_current and model.drift]


def _metric(model: PublishedModel) -> str:
    name = str(model.card.get("report_metric"))
    value = (model.card.get("metrics") or {}).get(name)
    return result_text(name, value) if isinstance(value, int | float) else ""


def _last_evaluation(model: PublishedModel) -> str:
    if not model.evaluations or not model.metric:
        return ""
    run, value = model.evaluations[-1]
    return f"{result_text(model.metric, value)} ({run}'s rows)"
