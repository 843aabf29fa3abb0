"""What the pages behind the screen show: a region, a trial, the runs, the days of a study."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from trialfleet import job_files
from trialfleet.errors import TrialfleetError
from trialfleet.optimizer.stored_trials import StoredTrial, is_stopped_early
from trialfleet.workflows.attempts.outcome import finite_metrics, load_result
from trialfleet.workflows.daily.overview import DayView, overview
from trialfleet.workflows.formatting import (
    alike,
    duration,
    local_time,
    number,
    rough_duration,
    setting,
)
from trialfleet.workflows.journal.folder import DailyFolder
from trialfleet.workflows.journal.journal import Ending, Journal
from trialfleet.workflows.models.listing import PublishedModel, models_on
from trialfleet.workflows.plan.folder import TrialFolder
from trialfleet.workflows.run.run_list import ListedRun, list_runs
from trialfleet.workflows.serve import charts, gains, strip, views
from trialfleet.workflows.serve.live import Snapshot
from trialfleet.workflows.serve.runs import Runs, key_of
from trialfleet.workflows.status.run_status import RegionStatus
from trialfleet.workflows.status.states import TrialState, trial_state

_LOG_BYTES = 32_768  # of the end of a log
_SHOWN_RUNS = 30
_SHOWN_MODELS = 30
_SHOWN_DAYS = 14
_SHOWN_PARAMETERS = 6  # in the table of trials; a trial's own page has all


@dataclass(frozen=True, kw_only=True)
class TrialRow:
    """A trial in a table of them."""

    number: int
    node: str
    state: str
    tone: str
    value: str
    params: tuple[str, ...]
    took: str
    where: str
    why: str
    marks: str


@dataclass(frozen=True, kw_only=True)
class RegionPage:
    """All about a region.

    Attributes:
        facts: label, text and tone.
        history, curves: pictures; None while there is nothing to draw.
        lanes: its trials over time, on `lanes_height` units of height.
        parameters: the names of the columns of `TrialRow.params`.
        models: its published models, the newest first.
    """

    name: str
    slug: str
    study: str
    run: str
    stage: str
    tone: str
    metric: str
    facts: tuple[tuple[str, str, str], ...]
    history: charts.Chart | None
    curves: charts.Chart | None
    lanes: tuple[strip.Bar, ...]
    lanes_height: int
    ticks: tuple[tuple[float, str], ...]
    parameters: tuple[str, ...]
    trials: tuple[TrialRow, ...]
    models: tuple[ModelRow, ...]


@dataclass(frozen=True, kw_only=True)
class ModelRow:
    """A published model, and its card as label and text."""

    run: str
    created: str
    in_force: bool
    metrics: str
    verdict: str
    drift: str
    card: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class TrialPage:
    """A trial, a full training, or a node of several trials: settings, and the ends of its logs."""

    node: str
    region: str
    slug: str
    run: str
    row: TrialRow | None
    settings: tuple[tuple[str, str], ...]
    metrics: tuple[tuple[str, str], ...]
    logs: tuple[tuple[str, str, str], ...]


def region_page(snapshot: Snapshot, slug: str) -> RegionPage:
    """Return all about a region of a run."""
    graph, status = snapshot.graph[slug], snapshot.look.status
    region = next(each for each in status.regions if each.slug == slug)
    trials = list(snapshot.look.trials.get(region.name, ()))
    lanes, ticks = strip.bars_of(snapshot, graph)
    tile = views.tile_of(snapshot, region)
    rows, parameters = _rows(snapshot, region, trials)
    return RegionPage(
        name=region.name,
        slug=slug,
        study=status.study,
        run=status.run,
        stage=tile.stage,
        tone=tile.tone,
        metric=status.metric,
        facts=tuple(_facts(snapshot, region)),
        history=charts.history(trials, status.metric, status.direction),
        curves=charts.curves(trials, status.metric, region.best_trial),
        lanes=lanes,
        lanes_height=strip.height_of(graph),
        ticks=ticks,
        parameters=parameters,
        trials=tuple(rows),
        models=tuple(_models(snapshot.champions.folder(slug))),
    )


def _facts(snapshot: Snapshot, region: RegionStatus) -> Iterable[tuple[str, str, str]]:
    tile = views.tile_of(snapshot, region)
    yield "Trials", tile.trials, ""
    if region.best is not None:
        yield f"Best {snapshot.look.status.metric}", number(region.best), "strong"
    if tile.gain.value is not None:
        yield f"Against {tile.gain.over}", f"{tile.gain.text} by {tile.gain.metric}", tile.gain.tone
    of_trials = gains.gain_of_trials(snapshot, region)
    if of_trials.value is not None and of_trials.over != tile.gain.over:
        text = f"{of_trials.text} by {of_trials.metric}"
        yield f"Trials against {of_trials.over}", text, of_trials.tone
    champion = snapshot.champions.of(region.slug)
    if champion:
        since = views.since(champion, snapshot.now)
        yield "Model in force", f"of run {champion.run}, {since}", ""
    if region.seconds_left is not None:
        yield "Last trial ends in", rough_duration(region.seconds_left), ""
    verdict = gains.verdict_of(snapshot, region.slug)
    if verdict:
        yield "Gate", verdict.why, "good" if verdict.promoted else "bad"
    for label, why in (
        ("Ended early", region.reason),
        ("Drift", region.drift),
        ("Not in force", region.not_latest),
        ("Failed attempts", str(region.cause) if region.cause else None),
    ):
        if why:
            yield label, why, "bad"


def _rows(
    snapshot: Snapshot, region: RegionStatus, trials: list[StoredTrial]
) -> tuple[list[TrialRow], tuple[str, ...]]:
    names = list(dict.fromkeys(name for trial in trials for name in _params(trial)))
    names = names[:_SHOWN_PARAMETERS]
    texts = {name: alike([p[name] for t in trials if name in (p := _params(t))]) for name in names}
    rows = []
    for trial in reversed(trials):
        params = _params(trial)
        cells = tuple(texts[name](params[name]) if name in params else "" for name in names)
        rows.append(_row(snapshot, region, trial, cells))
    return rows, tuple(names)


def _row(
    snapshot: Snapshot, region: RegionStatus, trial: StoredTrial, cells: tuple[str, ...]
) -> TrialRow:
    attributes = trial.user_attrs
    node = str(attributes.get("node", ""))
    unfinished = snapshot.look.unfinished.get(region.name, {})
    state = trial_state(trial.state.name, node, unfinished, stopped_early=is_stopped_early(trial))
    job = attributes.get("job") or {}
    running = next((each for each in region.running_trials if each.node == node), None)
    marks = ["best"] if trial.number == region.best_trial else []
    marks += ["default settings"] if attributes.get("baseline") is True else []
    value = number(trial.value) if trial.value is not None else ""
    value = f"{value} predicted" if state is TrialState.STOPPED_EARLY else value
    if running and running.step is not None:
        value = f"step {running.step}"
        value += f": {number(running.value)}" if running.value is not None else ""
    slot = running.slot if running else None
    ranks = running.ranks if running else job.get("ranks")
    return TrialRow(
        number=trial.number,
        node=node,
        state=state.value,
        tone={"complete": "", "failed": "bad", "running": "busy"}.get(state.value, "idle"),
        value=value,
        params=cells,
        took=duration(job["wall_seconds"]) if job.get("wall_seconds") is not None else "",
        where=f"{ranks} rank(s)"
        if ranks is not None
        else str(slot or job.get("slot") or job.get("machine") or ""),
        why=str(attributes.get("error") or "") if state.value in {"failed", "pruned"} else "",
        marks=", ".join(marks),
    )


def _params(trial: StoredTrial) -> dict[str, Any]:
    found = trial.user_attrs.get("params")
    return found if isinstance(found, dict) else {}


# -- models ----------------------------------------------------------------------------------------


def _models(folder: Path) -> Iterable[ModelRow]:
    try:
        found = models_on(folder)
    except OSError:  # nothing has been published yet
        return
    for model in reversed(found[-_SHOWN_MODELS:]):
        yield _model_row(model)


def _model_row(model: PublishedModel) -> ModelRow:
    metrics = model.card.get("metrics")
    values = metrics if isinstance(metrics, dict) else {}
    return ModelRow(
        run=model.run,
        created=local_time(model.created),
        in_force=model.in_force,
        metrics=", ".join(f"{name} {setting(value)}" for name, value in values.items()),
        verdict=model.verdict.why if model.verdict else "",
        drift=model.drift or "",
        card=tuple((name, _plain(value)) for name, value in model.card.items()),
    )


def _plain(value: object) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, indent=1)


# -- a trial ---------------------------------------------------------------------------------------


def trial_page(snapshot: Snapshot, slug: str, node: str) -> TrialPage | None:
    """Return a trial of a region, or one of its nodes; None where it has none of this name."""
    graph, files = snapshot.graph[slug], snapshot.folder.region(slug)
    status = snapshot.look.status
    region = next(each for each in status.regions if each.slug == slug)
    trials = snapshot.look.trials.get(region.name, ())
    known = {str(each.user_attrs.get("node")) for each in trials}
    if node not in {*known, *graph.trial_nodes, graph.best, graph.gate}:
        return None  # nothing else of an address becomes a path
    place = files.of_node(node)
    trial = next((each for each in trials if each.user_attrs.get("node") == node), None)
    params = _params(trial) if trial else _params_in(place)
    metrics = trial.user_attrs.get("metrics") if trial else _metrics_in(place)
    return TrialPage(
        node=node,
        region=region.name,
        slug=slug,
        run=status.run,
        row=_row(snapshot, region, trial, ()) if trial else None,
        settings=tuple((name, setting(value)) for name, value in params.items()),
        metrics=tuple((name, setting(value)) for name, value in (metrics or {}).items()),
        logs=tuple(_logs(place)),
    )


def _params_in(place: TrialFolder) -> dict[str, Any]:
    try:
        found = job_files.read_json(place.trial_json, job_files.MOST_NOTES)["params"]
    except (OSError, ValueError, LookupError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def _metrics_in(place: TrialFolder) -> dict[str, float]:
    try:
        return finite_metrics(load_result(place.result)["metrics"])
    except ValueError:
        return {}


def _logs(place: TrialFolder) -> Iterable[tuple[str, str, str]]:
    """Title, the end of the file, and what was left out."""
    for title, file in (
        ("Standard error", place.err),
        ("Standard output", place.out),
        ("Output of the job's agent", place.agent_log),
        ("HTCondor's log of the job", place.log),
    ):
        text, left_out = job_files.tail(file, _LOG_BYTES)
        if text:
            more = f"{left_out:,} bytes before that in {file}" if left_out else ""
            yield title, text.decode(errors="replace"), more


# -- runs and days ---------------------------------------------------------------------------------


def run_rows(runs: Runs) -> list[tuple[str, ListedRun]]:
    """Return the newest runs, each with its name in addresses."""
    found = runs.all()[:_SHOWN_RUNS]
    return list(zip(map(key_of, found), list_runs(found), strict=True))


@dataclass(frozen=True, kw_only=True)
class Days:
    """The last days of a study; `most` is how many regions the fullest of them had."""

    days: tuple[DayView, ...]
    endings: tuple[Ending, ...]
    why: tuple[tuple[str, str, str], ...]

    def share(self, day: DayView, ending: Ending) -> float:
        """How much of a day's regions ended so, in percent."""
        whole = sum(day.counts.values()) + day.open
        return round(100 * day.counts[ending] / whole, 1) if whole else 0.0


def days_of(study: str) -> Days | None:
    """Return the last days of a study; None where it has none."""
    folder = DailyFolder.of(study)
    if not folder.journal.is_file():
        return None
    try:
        shown = overview(
            study, Journal(folder.journal), datetime.now().astimezone(), None, _SHOWN_DAYS
        )
    except TrialfleetError:
        return None
    newest = [one for one in shown.newest if one.why]
    return Days(
        days=shown.days,
        endings=tuple(Ending),
        why=tuple((one.region, one.ending.value, one.why) for one in newest),
    )
