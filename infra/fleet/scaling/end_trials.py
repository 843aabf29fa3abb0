"""The end of trials that nothing pays for: their jobs leave the queue, with the reason."""

from __future__ import annotations

from trialfleet.classads import JobStatus
from trialfleet.infra.fleet.pool.demand import TRIALS, of_run, quoted
from trialfleet.infra.fleet.scaling.limits import Stop
from trialfleet.infra.pool import schedd

# Those that are in the queue for some moments more, at their end: removed, completed.
OVER = f"(JobStatus == {JobStatus.REMOVED} || JobStatus == {JobStatus.COMPLETED})"


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
    jobs = of_run(schedd.query(wanted, ["TrialfleetRun", "TrialfleetFolder"]), run, folder)
    if not jobs:
        return 0
    own = quoted(str(jobs[0].get("TrialfleetFolder")))
    return schedd.act("Remove", f"{wanted} && TrialfleetFolder =?= {own}", stop.reason)
