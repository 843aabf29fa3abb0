"""The daily schedule without systemd: an HTCondor job on this machine. PoolError if that fails."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime

from trialfleet.classads import JobStatus
from trialfleet.infra.pool import schedd
from trialfleet.render import classad_string, render_template
from trialfleet.workflows.control.daily.missed_days import timer_hours_and_minutes
from trialfleet.workflows.facts.dagman import job_queue
from trialfleet.workflows.facts.journal.folder import DailyFolder
from trialfleet.workflows.study.daily import Daily

_ATTRIBUTES = ["ClusterId", "HoldReason", "JobStatus", "TrialfleetDailyText"]


def install_job(study: str, daily: Daily, folder: DailyFolder, text: str) -> str:
    """Submit the job that starts the study's daily runs, and return the job's id.

    `text` is the script that the job runs. If a job with this script and the right start times is
    in the queue, it stays. Otherwise the new job replaces all earlier jobs of this schedule.
    """
    hours, minutes = timer_hours_and_minutes(daily, datetime.now(UTC), None)
    identity = hashlib.sha256(f"{hours} {minutes} {text}".encode()).hexdigest()
    previous = schedd.query(_job_constraint(folder), _ATTRIBUTES)
    if len(previous) == 1 and previous[0].get("TrialfleetDailyText") == identity:
        return f"{previous[0]['ClusterId']}.0"
    description = render_template(
        "submit/daily.sub.j2",
        study=study,
        root=folder.root,
        start=folder.start,
        hours=hours,
        minutes=minutes,
        text=identity,
    )
    job = job_queue.submit_job(description)  # briefly two jobs; a day starts only once
    schedd.apply_action(
        "Remove",
        f"{_job_constraint(folder)} && ClusterId != {int(float(job))}",
        "another job starts the daily runs",
    )
    return job


def remove_job(folder: DailyFolder) -> bool:
    """Remove the job that starts the study's daily runs, and return whether it existed.

    A day that has started continues.
    """
    return schedd.apply_action("Remove", _job_constraint(folder), "trialfleet daily remove") > 0


def job_there(folder: DailyFolder) -> tuple[str, str | None] | None:
    """Return the id of the job that starts the study's daily runs, and why the job is on hold.

    The reason is None if the job is not on hold. The result is None if the queue has no such job.
    """
    found = schedd.query(_job_constraint(folder), _ATTRIBUTES)
    if not found:
        return None
    is_held = found[0]["JobStatus"] == JobStatus.HELD
    reason = str(found[0].get("HoldReason") or "no reason given") if is_held else None
    return f"{found[0]['ClusterId']}.0", reason


def _job_constraint(folder: DailyFolder) -> str:
    return f"TrialfleetDaily =?= {classad_string(folder.root)} && JobStatus != {JobStatus.REMOVED}"
