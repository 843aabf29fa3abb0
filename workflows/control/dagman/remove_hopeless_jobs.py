"""Removal of hopeless jobs, which HTCondor would restart again and again or keep forever.

The supervisor recognizes a hopeless job by its event log. A job that saves checkpoints is not
hopeless. A rule in the submit file can't tell the two apart, because no attribute of a job says
whether the job has saved a checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from trialfleet.errors import PoolError
from trialfleet.infra.pool import schedd
from trialfleet.workflows.facts.dagman.job_queue import Ad
from trialfleet.workflows.facts.jobs.job_facts import may_fail, read_jobs
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.rules.jobs_without_progress import job_troubles

log = logging.getLogger(__name__)


def fail_hopeless_attempts(runs: Iterable[RunFolder], ads: Iterable[Ad], now: float) -> None:
    """Remove the hopeless jobs among the ClassAds `ads`. Each job's POST script gets the reason.

    Errors of HTCondor or of files are only logged, because the next check may succeed.
    """
    known = {run.root: run for run in runs}
    for ad in ads:
        run = known.get(Path(ad["TrialfleetFolder"]))
        if run is None or not may_fail(ad):
            continue
        try:
            for trouble in job_troubles(read_jobs(run, [ad]), now):
                if trouble.error:
                    _remove(trouble.job, trouble.error)
        except (PoolError, OSError) as error:  # the next check may succeed
            log.info("%s: %s", run.root, error)


def _remove(job: str, error: str) -> None:
    cluster, _, proc = job.partition(".")
    schedd.apply_action("Remove", f"ClusterId == {cluster} && ProcId == {proc}", error)
    log.warning("job %s: %s", job, error)
