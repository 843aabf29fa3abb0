"""The trials that led to a published model, as child runs in MLflow (`mlflow: trials: true`).

A child run is identified by its parent run and the trial's number, so nothing is created twice. A
child run that MLflow shows as ended is never changed again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trialfleet.errors import ExportError
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.rules.states import TrialState
from trialfleet.workflows.status.run_trials import RunTrials, Trial, build_trial
from trialfleet.workflows.study.frozen import load_frozen

if TYPE_CHECKING:
    from mlflow import MlflowClient

PARENT = "mlflow.parentRunId"
NUMBER = "trialfleet.trial"
STATUS = {TrialState.COMPLETE: "FINISHED", TrialState.FAILED: "FAILED"}
_MOMENT = 0.001  # seconds; of two values for the same step, MLflow shows the later one
STOPPED = "KILLED"  # for trials that were stopped early or abandoned


class Point(NamedTuple):
    """The value of a metric at a step. `time` is in Unix seconds."""

    name: str
    value: float
    time: float
    step: int


def trials_of_model(card: Mapping[str, Any]) -> tuple[str, list[Trial]]:
    """Return the objective's metric, and the finished trials of a model's region in its run.

    TrialfleetError if the run can't be read, or if another run now uses the run's folder.
    """
    place, region = Path(str(card.get("folder"))), str(card.get("region"))
    if not (place.is_absolute() and RunFolder(place).study.exists()):
        raise ExportError(f"the run's folder does not exist: {place}")
    folder = RunFolder(place)
    frozen = load_frozen(folder.study)
    named = (frozen.study.name, frozen.run)
    if named != (card.get("study"), card.get("run")):
        raise ExportError(f"the run's folder {place} now belongs to another run")
    trials = [
        build_trial(region, each, {}) for each in RunTrials(folder, frozen).read_region(region)
    ]
    return frozen.study.objective.metric, [each for each in trials if each.state.is_finished]


def known_trials(client: MlflowClient, experiment: str, parent: str) -> dict[str, Any]:
    """Return the existing child runs of the MLflow run `parent`, by the trial's number."""
    found, token = {}, None
    while True:
        page = client.search_runs([experiment], f"tags.`{PARENT}` = '{parent}'", page_token=token)
        found.update({run.data.tags.get(NUMBER): run for run in page})
        if not (token := page.token):
            return found


def trial_tags(trial: Trial, parent: str) -> dict[str, object]:
    """Return the tags for a trial's child run. Tags with the value None are not sent."""
    return {
        PARENT: parent,
        NUMBER: trial.trial,
        "trialfleet.region": trial.region,
        "trialfleet.node": trial.node,
        "trialfleet.state": trial.state,
        "trialfleet.machine": trial.machine,
        "trialfleet.error": trial.error,
    }


def trial_points(trial: Trial, metric: str) -> Iterator[Point]:
    """Yield the points of a trial's learning curve, then a point for each of its final metrics."""
    begun = trial.started or 0.0
    ended = max(trial.ended or 0.0, begun + _MOMENT)
    for step, value in trial.curve:
        yield Point(metric, value, begun, step)
    last = trial.curve[-1][0] if trial.curve else 0
    metrics = trial.metrics | ({} if trial.predicted is None else {"predicted": trial.predicted})
    for name, value in metrics.items():
        yield Point(name, value, ended, last)
