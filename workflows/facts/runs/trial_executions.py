"""The executions of a run's trials, full trainings and gates, with their costs.

A running execution ends at the argument `now`. If `now` is None, it ends at its last event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trialfleet import untrusted_files
from trialfleet.errors import InputError
from trialfleet.optimizer.stored_trials import Attributes
from trialfleet.workflows.facts.jobs.executions import ExecutionEnd
from trialfleet.workflows.facts.jobs.job_log import (
    JobNotes,
    PricedExecution,
    parse_stays,
    read_between_trials,
    read_stays,
)
from trialfleet.workflows.facts.jobs.ordered_trial import find_lane, in_lane, shared_nodes
from trialfleet.workflows.facts.run_folder.folder import RegionFolder, TrialFolder
from trialfleet.workflows.study.spec import Study

if TYPE_CHECKING:
    from trialfleet.workflows.facts.runs.failed_attempts import AnyTrial

# Texts in the JSON of a trial's notes.
_HAS_STAYS = '"stays": [{'
_LOST = tuple(f'"{end}"' for end in ExecutionEnd if end.is_lost)


def noted_job(place: TrialFolder) -> dict[str, Any]:
    """Return the content of job.json of a full training or gate; empty if it can't be read."""
    try:
        return untrusted_files.read_record(place.job, shape=JobNotes)
    except InputError:
        return {}


def trial_stays(
    files: RegionFolder, trial: AnyTrial, study: Study, now: float | None
) -> list[PricedExecution]:
    """Return the executions of a trial, with their costs."""
    is_over = trial.state.is_finished()
    if is_over and (noted := parse_stays(trial.user_attrs.get("job") or {})):
        return noted
    place = files.trial(str(trial.user_attrs["node"]))
    failed = is_over and trial.state.name != "COMPLETE"
    return read_stays(place, study.usd_per_hour, failed=failed, now=None if is_over else now)


def has_lost_nothing(trial: AnyTrial) -> bool:
    """Return whether an ended trial is known to have lost no work.

    The JSON text of the trial's executions is searched, not parsed: parsing would take several
    times as long. If the result is False, only `trial_stays` tells whether work was lost.
    """
    notes = trial.user_attrs
    text = notes.text("job") if isinstance(notes, Attributes) else ""
    if _HAS_STAYS not in text or not trial.state.is_finished():
        return False
    return not any(end in text for end in _LOST)


def between_stays(files: RegionFolder, study: Study, now: float | None) -> list[PricedExecution]:
    """Return the parts of a region's executions in which no trial was trained.

    Only jobs that train several trials have such parts.
    """
    until = None if files.is_done else now
    logs = (files.trial(node).log for node in shared_nodes(files))
    return [
        stay for log in logs for stay in read_between_trials(log, study.usd_per_hour, now=until)
    ]


def end_stays(
    files: RegionFolder, step: TrialFolder, study: Study, now: float | None
) -> list[PricedExecution]:
    """Return the executions of the full training or gate in the folder `step`."""
    nodes, lane = shared_nodes(files), find_lane(files, step)
    now = None if files.is_done else now
    if not nodes:
        return stays_of_own(step, study, now)
    found = read_stays(step, study.usd_per_hour, now=now)
    for node in nodes:
        without_result = node != lane  # the step failed in this lane, and was retried in another
        place = in_lane(files, step, node)
        found += read_stays(place, study.usd_per_hour, failed=without_result, now=now)
    return sorted(found, key=lambda stay: stay.began) or parse_stays(noted_job(step))


def stays_of_own(place: TrialFolder, study: Study, now: float | None) -> list[PricedExecution]:
    """Return the executions of a full training or gate that has its own job."""
    if now is None and place.job.exists() and (noted := parse_stays(noted_job(place))):
        return noted
    return read_stays(place, study.usd_per_hour, now=now)
