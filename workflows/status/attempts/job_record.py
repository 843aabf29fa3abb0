"""The record of a job's executions, progress and cost: in the trial database, or in a file."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from trialfleet import untrusted_files
from trialfleet.optimizer.region_types import TrialExecution
from trialfleet.workflows.facts.jobs.gang_records import count_generations, ranks_and_generation
from trialfleet.workflows.facts.jobs.job_log import read_job, read_stays
from trialfleet.workflows.facts.jobs.progress import read_reports
from trialfleet.workflows.facts.run_folder.folder import TrialFolder
from trialfleet.workflows.study.spec import Study


def read_execution(
    place: TrialFolder, study: Study, attempts: int, *, failed: bool
) -> TrialExecution:
    """Return the facts about a trial's execution, from its job's files.

    `failed` says that the trial has no result. `attempts` is DAGMan's count, which lacks attempts
    before a stop. It is used only if the job's log shows no attempt.
    """
    plain, metric = _job_data(place, study, failed=failed), study.objective.metric
    # if the job's files are missing, the reports that its agent sent
    reports = read_reports(place.progress, metric) or read_reports(place.reports, metric)
    attempts = plain.pop("attempts", attempts)
    return TrialExecution(attempts=attempts, job=plain or None, reports=reports)


def note_job(place: TrialFolder, study: Study, *, failed: bool) -> None:
    """Write the facts about the job of a full training or gate to job.json.

    `failed` says that the last attempt failed. The trial database has no place for these facts,
    because it contains only trials.
    """
    untrusted_files.write_json(place.job, _job_data(place, study, failed=failed))


def _job_data(place: TrialFolder, study: Study, *, failed: bool) -> dict[str, Any]:
    job = read_job(place, study.usd_per_hour, failed=failed)
    stays = read_stays(place, study.usd_per_hour, failed=failed)
    if job is None:
        return {}
    ranks = ranks_and_generation(place).get("ranks")
    job = replace(job, ranks=ranks, generations=count_generations(place))
    return {**asdict(job), "stays": [asdict(stay) for stay in stays]}
