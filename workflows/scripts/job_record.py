"""How a trial ran, whatever came of it: what a tell stores beside the outcome."""

from __future__ import annotations

from dataclasses import asdict

from trialfleet.optimizer.trial_execution import TrialExecution
from trialfleet.workflows.plan.folder import TrialFolder
from trialfleet.workflows.status.job_log import read_job
from trialfleet.workflows.status.progress import read_reports


def execution_of(place: TrialFolder, metric: str, attempts: int) -> TrialExecution:
    """Return how a trial ran.

    Args:
        place: its folder, with what the job left.
        metric: the objective's.
        attempts: so many are counted where the job's log says nothing: DAGMan forgets those of a
            run that was stopped, the log does not.
    """
    job = read_job(place.log)
    plain = asdict(job) if job else {}
    return TrialExecution(
        attempts=plain.pop("attempts", attempts),
        job=plain or None,
        reports=read_reports(place.progress, metric),
    )
