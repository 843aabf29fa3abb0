"""The end of trials that nothing pays for: their jobs leave the queue, with the reason."""

from __future__ import annotations

from typing import Any

from trialfleet.errors import PoolError
from trialfleet.infra.fleet.pool.queries import TRIALS, job_ads, of_run, quoted
from trialfleet.infra.fleet.scaling.money import Stop
from trialfleet.infra.pool.connection import local_schedd

# Those that are in the queue for some moments more, at their end: removed, completed.
OVER = "(JobStatus == 3 || JobStatus == 4)"


def end(run: str, stop: Stop, folder: str = "") -> int:
    """Remove the jobs of a run's trials, and of its full trainings where those end too.

    What tells the study of them is their POST script, which finds the reason in the job's log.
    Without its folder the run is found by its id.

    Returns:
        How many jobs were removed.

    Raises:
        PoolError: several runs in the queue have this id.
    """
    wanted = f"{TRIALS} && TrialfleetRun =?= {quoted(run)} && !{OVER}"
    if not stop.finals:
        wanted += ' && TrialfleetMode =?= "tune"'
    jobs = of_run(job_ads(wanted, ["TrialfleetRun", "TrialfleetFolder"]), run, folder)
    if jobs:
        own = quoted(str(jobs[0].get("TrialfleetFolder")))
        import htcondor2

        remove: Any = htcondor2.JobAction.Remove
        why: Any = (stop.reason, 0)  # 25.14 drops a reason that stands without its code
        try:
            local_schedd().act(remove, f"{wanted} && TrialfleetFolder =?= {own}", reason=why)
        except htcondor2.HTCondorException as error:
            raise PoolError(f"trials can't be removed from the queue: {error}") from error
    return len(jobs)
