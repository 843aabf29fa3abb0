"""The content of the live pages of a region and of a trial."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trialfleet import untrusted_files
from trialfleet.files import object_or_empty
from trialfleet.workflows.facts.models.folders import region_models_folder
from trialfleet.workflows.facts.models.listing import PublishedModel, list_published_models
from trialfleet.workflows.facts.run_folder.folder import TrialFolder
from trialfleet.workflows.formatting import NOTHING, duration, number, rough_duration, setting, usd
from trialfleet.workflows.status.attempts.outcome import reported_metrics
from trialfleet.workflows.status.run_trials import Trial, build_trial
from trialfleet.workflows.status.status_types import RegionStatus
from trialfleet.workflows.status.unfinished_trials import RunningTrial
from trialfleet.workflows.study.spec import Study
from trialfleet.workflows.views.report.report_reader import report_of_region
from trialfleet.workflows.views.report.report_types import Report
from trialfleet.workflows.views.serve import gains, run_page
from trialfleet.workflows.views.serve.live_runs import Snapshot

_LOG_BYTES = 32_768  # of the end of a log
_SHOWN_MODELS = 30
SHOWN_ROWS = 100  # of the matrix of days


@dataclass(frozen=True, kw_only=True)
class RegionPage:
    """The page of a region.

    Attributes:
        report: the run's report, with this region only.
        facts: facts that the report lacks, each as label, text and tone (a CSS class).
        progress: the slot, step and last reported value of each running trial, as text, by the
            name of the trial or DAG node. For a gang, the text has the number of ranks, not the
            slot.
        models: the last `_SHOWN_MODELS` published models, the newest first.
    """

    tile: run_page.Tile
    report: Report
    facts: tuple[tuple[str, str, str], ...]
    progress: dict[str, str]
    models: tuple[PublishedModel, ...]


@dataclass(frozen=True, kw_only=True)
class TrialPage:
    """The page of a trial, a full training, a gate, or a DAG node with several trials.

    Attributes:
        facts: facts about the trial, each as label, text and tone (a CSS class).
        settings: the parameters, each as name, value and tone.
        metrics: the metrics, each as name, value and tone.
        logs: each log that exists, as its title, the end of its text, and a note if earlier bytes
            are left out.
    """

    node: str
    region: str
    slug: str
    facts: tuple[tuple[str, str, str], ...]
    settings: tuple[tuple[str, str, str], ...]
    metrics: tuple[tuple[str, str, str], ...]
    logs: tuple[tuple[str, str, str], ...]


def region_page(snapshot: Snapshot, slug: str) -> RegionPage:
    """Return the page of a region of a run."""
    region = _region_status(snapshot, slug)
    tile = run_page.build_tile(snapshot, region)
    return RegionPage(
        tile=tile,
        report=report_of_region(snapshot.folder, snapshot.frozen, snapshot.run, slug),
        facts=tuple(_facts(snapshot, region, tile)),
        progress=_progress(region),
        models=_models(region_models_folder(snapshot.frozen.study, slug)),
    )


def _region_status(snapshot: Snapshot, slug: str) -> RegionStatus:
    return next(each for each in snapshot.run.status.regions if each.slug == slug)


def _facts(
    snapshot: Snapshot, region: RegionStatus, tile: run_page.Tile
) -> Iterable[tuple[str, str, str]]:
    gain = tile.gain
    if gain.value is not None:
        yield f"Compared with {gain.over}", f"{gain.text} by {gain.compared.metric}", gain.tone
    champion = snapshot.champions.get(region.slug)
    if champion:
        since = run_page.age_text(champion, snapshot.now)
        yield "Current model", f"of run {champion.run}, {since}", ""
    if region.seconds_left is not None:
        yield "Last trial ends in", rough_duration(region.seconds_left), ""
    verdict = gains.read_new_verdict(snapshot, region.slug)
    if verdict and not (region.gate or region.not_latest):  # otherwise the report has it
        yield "Gate", verdict.why, "good" if verdict.promoted else "bad"
    for warning in region.warnings:
        yield "Warning", warning, "bad"


def _progress(region: RegionStatus) -> dict[str, str]:
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


def _models(folder: Path) -> tuple[PublishedModel, ...]:
    try:
        return tuple(reversed(list_published_models(folder)[-_SHOWN_MODELS:]))
    except OSError:  # nothing is published yet
        return ()


def metrics_text(model: PublishedModel) -> str:
    """Return the metrics of a model's full training as text."""
    metrics = model.card.get("metrics")
    values = metrics if isinstance(metrics, dict) else {}
    return ", ".join(f"{name} {setting(value)}" for name, value in values.items())


def card_rows(model: PublishedModel) -> list[tuple[str, str, str]]:
    """Return the rows of a model's card, each as label, text and tone."""

    def text(value: object) -> str:
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1)

    return [(name, text(value), "path") for name, value in model.card.items()]


# -- a trial ---------------------------------------------------------------------------------------


def trial_page(snapshot: Snapshot, slug: str, node: str) -> TrialPage | None:
    """Return the page of the trial or DAG node called `node`, or None if it isn't in the region."""
    graph, files = snapshot.graph[slug], snapshot.folder.region(slug)
    region = _region_status(snapshot, slug)
    trial = _find_trial(snapshot, region.name, node)
    if trial is None and node not in {*graph.trial_nodes, graph.best, graph.gate}:
        return None  # no other text of a URL becomes a path
    place = files.node_folder(node)
    params = trial.params if trial else _read_params(place)
    metrics = trial.metrics if trial else reported_metrics(place)
    running = _progress(region).get(node)
    return TrialPage(
        node=node,
        region=region.name,
        slug=slug,
        facts=(
            *(_trial_facts(snapshot.frozen.study, region, trial) if trial else ()),
            *([("Runs", running, "")] if running else ()),
        ),
        settings=_parameter_facts(params),
        metrics=_parameter_facts(metrics),
        logs=tuple(_logs(place)),
    )


def _parameter_facts(values: Mapping[str, Any]) -> tuple[tuple[str, str, str], ...]:
    return tuple((name, setting(value), "") for name, value in values.items())


def _find_trial(snapshot: Snapshot, region: str, node: str) -> Trial | None:
    run = snapshot.run
    found = [each for each in run.trials[region] if each.user_attrs.get("node") == node]
    return build_trial(region, found[-1], run.unfinished[region]) if found else None


def _trial_facts(
    study: Study, region: RegionStatus, trial: Trial
) -> Iterator[tuple[str, str, str]]:
    roles = ["best"] if trial.trial == region.best_trial else []
    roles += ["default settings"] if trial.baseline else []
    tone = "strong" if "best" in roles else ""
    yield "Trial", str(trial.trial), tone
    yield "State", ", ".join([trial.state, *roles]), "bad" if trial.state == "failed" else tone
    if trial.value is not None:
        yield study.objective.metric, number(trial.value), tone
    started = datetime.fromtimestamp(trial.started, UTC) if trial.started else None
    memory = f"{number(round(trial.memory_mb))} MB" if trial.memory_mb else ""
    known = {
        "Started (UTC)": f"{started:%d %b %H:%M:%S}" if started else "",
        "Time": duration(trial.compute_seconds),
        "CPU time": duration(trial.cpu_seconds),
        "Memory": memory,
        "USD": usd(trial.usd),
        "Ranks": str(trial.ranks or ""),
        "Generations": str(trial.generations or ""),
        "Machine": trial.slot or trial.machine or "",
        "Attempts": str(trial.attempts or ""),
        "DAG node": trial.node,
    }
    for label, text in known.items():
        if text not in {"", NOTHING}:
            yield label, text, ""
    if trial.error:
        yield "Why it failed", trial.error, "bad"


def _read_params(place: TrialFolder) -> dict[str, Any]:
    order = place.trial_json
    return object_or_empty(
        lambda: untrusted_files.read_json(order, untrusted_files.MOST_NOTES)["params"]
    )


def _logs(place: TrialFolder) -> Iterable[tuple[str, str, str]]:
    live = (
        ("Standard error so far", place.printed_err, place.printed_head),
        ("Standard output so far", place.printed_out, place.printed_head),
    )
    kept = (("Standard error", place.err, b""), ("Standard output", place.out, b""))
    runs = not os.path.lexists(place.ended) and any(
        untrusted_files.tail(file, 1, head)[0] for _, file, head in live
    )
    for title, file, head in (
        *(live if runs else kept),
        ("Output of the job's agent", place.agent_log, b""),
        ("HTCondor's log of the job", place.log, b""),
    ):
        text, left_out = untrusted_files.tail(file, _LOG_BYTES, head)
        if text:
            more = f"{left_out:,} earlier bytes are in {file}" if left_out else ""
            yield title, text.decode(errors="replace"), more
