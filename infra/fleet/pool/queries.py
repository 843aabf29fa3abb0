"""What is asked of HTCondor's schedd about a fleet."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from typing import Any

from trialfleet.errors import PoolError
from trialfleet.infra.pool import schedd
from trialfleet.infra.pool.connection import connect, use

# A trial's job; the graph's own jobs carry the run but no node of it, or run on the access point.
TRIALS = "TrialfleetRun isnt undefined && TrialfleetNode isnt undefined && JobUniverse == 5"
JOB_ATTRIBUTES = [
    *("JobStatus", "GlobalJobId", "ClusterId", "RequestCpus", "RequestGPUs", "RequestMemory"),
    *("Requirements", "EnteredCurrentStatus", "TrialfleetRun", "TrialfleetFolder"),
    *("TrialfleetRegion", "TrialfleetNode", "TrialfleetGangMin"),
]
AS_TEXT = {"Requirements"}  # what a job asks of a node, whichever that will be
Ad = dict[str, Any]


def trial_ads() -> list[Ad]:
    """Return the ads of trials' jobs in the queue."""
    return schedd.query(TRIALS, JOB_ATTRIBUTES, AS_TEXT)


def of_run(jobs: Iterable[Ad], run: str, folder: str = "") -> list[Ad]:
    """Return the jobs of one run: by its folder, or else by its id, or of all without either.

    Raises:
        PoolError: several runs have that id, and no folder says which is meant.
    """
    if folder:
        return [job for job in jobs if job.get("TrialfleetFolder") == folder]
    own = [job for job in jobs if not run or job.get("TrialfleetRun") == run]
    folders = sorted({str(job.get("TrialfleetFolder")) for job in own})
    if run and len(folders) > 1:
        raise PoolError(
            f"trials of several runs called {run!r} are in the queue: {', '.join(folders)}"
        )
    return own


def tool(name: str) -> str:
    """Return the path of one of HTCondor's tools.

    Raises:
        PoolError: there is no pool, or no such tool on PATH.
    """
    use(connect())
    found = shutil.which(name)
    if found is None:
        raise PoolError(f"{name} is not on PATH: HTCondor's tools are not installed here")
    return found


def quoted(text: str) -> str:
    """Return `text` as a ClassAd string."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
