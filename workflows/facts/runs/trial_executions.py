"""The executions of a run's trials, full trainings and gates, with their costs.

A running execution ends at the argument `now`. If `now` is None, it ends at its last event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trialfleet import untrusted_files
from trialfleet.errors import InputError
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
    if not nodes and now is None and (noted := parse_stays(noted_job(step))):
        return noted
    found = read_stays(step, study.usd_per_hour, now=now)
    for node in nodes:
        without_result = node != lane  # the step failed in this lane, and was retried in another
        place = in_lane(files, step, node)
        found += read_stays(place, study.usd_per_hour, failed=without_result, now=now)
    return sorted(found, key=lambda stay: stay.began) or parse_stays(noted_job(step))
