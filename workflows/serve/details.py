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
from trialfleet.files import object_or_empty
from trialfleet.workflows.attempts.outcome import reported_metrics
from trialfleet.workflows.daily.overview import DayView, overview
from trialfleet.workflows.formatting import NOTHING, local_time, number, rough_duration, setting
from trialfleet.workflows.journal.folder import DailyFolder
from trialfleet.workflows.journal.journal import Ending, Journal
from trialfleet.workflows.models.listing import PublishedModel, models_on
from trialfleet.workflows.plan.folder import TrialFolder
from trialfleet.workflows.report import tables
from trialfleet.workflows.report.model import RegionReport, Report
from trialfleet.workflows.report.reading import report_of_region
from trialfleet.workflows.run.run_list import ListedRun, list_runs
from trialfleet.workflows.serve import gains, views
from trialfleet.workflows.serve.live import Snapshot
from trialfleet.workflows.serve.runs import Runs, key_of
from trialfleet.workflows.status.run_status import RegionStatus
from trialfleet.workflows.status.run_trials import Trial
from trialfleet.workflows.status.running import RunningTrial

_LOG_BYTES = 32_768  # of the end of a log
_SHOWN_RUNS = 30
_SHOWN_MODELS = 30
_SHOWN_DAYS = 14


@dataclass(frozen=True, kw_only=True)
class RegionPage:
    """All about a region.

    Attributes:
        report: the report of it alone.
        facts: what the report doesn't have: label, text and tone.
        progress: where its running trials run and how far they have come, by their nodes.
        models: its published models, the newest first.
    """

    tile: views.Tile
    report: Report
    facts: tuple[tuple[str, str, str], ...]
    progress: dict[str, str]
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
    facts: tuple[tuple[str, str, str], ...]
    settings: tuple[tuple[str, str], ...]
    metrics: tuple[tuple[str, str], ...]
    logs: tuple[tuple[str, str, str], ...]


def region_page(snapshot: Snapshot, slug: str) -> RegionPage:
    """Return all about a region of a run."""
    region = next(each for each in snapshot.look.status.regions if each.slug == slug)
    tile = views.tile_of(snapshot, region)
    return RegionPage(
        tile=tile,
        report=_report(snapshot, slug),
        facts=tuple(_facts(snapshot, region, tile)),
        progress=_progress(snapshot, slug),
        models=tuple(_models(snapshot.champions.folder(slug))),
    )


def _report(snapshot: Snapshot, slug: str) -> Report:
    return report_of_region(snapshot.folder, snapshot.frozen, snapshot.look, slug)


def _facts(
    snapshot: Snapshot, region: RegionStatus, tile: views.Tile
) -> Iterable[tuple[str, str, str]]:
    """What the report doesn't say of a region: its models and what is to come."""
    gain = tile.gain
    if gain.value is not None:
        yield f"Against {gain.over}", f"{gain.text} by {gain.metric}", gain.tone
    champion = snapshot.champions.of(region.slug)
    if champion:
        since = views.since(champion, snapshot.now)
        yield "Model in force", f"of run {champion.run}, {since}", ""
    if region.seconds_left is not None:
        yield "Last trial ends in", rough_duration(region.seconds_left), ""
    verdict = gains.verdict_of(snapshot, region.slug)
    if verdict and not (region.gate or region.not_latest):  # else the report says it
        yield "Gate", verdict.why, "good" if verdict.promoted else "bad"
    if region.drift:
        yield "Drift", region.drift, "bad"


def _progress(snapshot: Snapshot, slug: str) -> dict[str, str]:
    """Where a region's running trials run, and how far they have come, by their nodes."""
    region = next(each for each in snapshot.look.status.regions if each.slug == slug)
    return {each.node: ", ".join(_parts_of_progress(each)) for each in region.running_trials}


def _parts_of_progress(trial: RunningTrial) -> Iterable[str]:
    if trial.ranks is not None:
        yield f"{trial.ranks} rank(s)"
    elif trial.slot:
        yield trial.slot
    if trial.step is not None:
        value = f": {number(trial.value)}" if trial.value is not None else ""
        yield f"step {trial.step}{value}"


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
    report = _report(snapshot, slug)
    (region,) = report.regions
    trials = {trial.node: trial for trial in region.trials}
    if node not in {*trials, *graph.trial_nodes, graph.best, graph.gate}:
        return None  # nothing else of an address becomes a path
    place, trial = files.of_node(node), trials.get(node)
    params = trial.params if trial else _params_in(place)
    metrics = trial.metrics if trial else reported_metrics(place)
    return TrialPage(
        node=node,
        region=region.name,
        slug=slug,
        facts=(
            *(_trial_facts(report, region, trial) if trial else ()),
            *(("Runs", text, "") for at, text in _progress(snapshot, slug).items() if at == node),
        ),
        settings=tuple((name, setting(value)) for name, value in params.items()),
        metrics=tuple((name, setting(value)) for name, value in metrics.items()),
        logs=tuple(_logs(place)),
    )


def _trial_facts(
    report: Report, region: RegionReport, trial: Trial
) -> Iterable[tuple[str, str, str]]:
    """The cells of the trial's row in the table of trials, but for its settings, which follow."""
    cells = tables.trial_rows(report, region)[region.trials.index(trial)]
    names = {item.name for item in region.settings}
    for (title, _), cell in zip(tables.trial_columns(report, region), cells, strict=True):
        if title not in names and cell.text not in {"", NOTHING}:
            yield title, cell.text, cell.tone
    if trial.error:
        yield "Why it failed", trial.error, "bad"


def _params_in(place: TrialFolder) -> dict[str, Any]:
    order = place.trial_json
    return object_or_empty(lambda: job_files.read_json(order, job_files.MOST_NOTES)["params"])


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
