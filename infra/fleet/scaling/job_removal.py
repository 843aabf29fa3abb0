"""Removal of trials' jobs from HTCondor's queue when no money is left."""

from __future__ import annotations

from trialfleet.classads import JobStatus
from trialfleet.infra.fleet.pool.demand import TRIALS, quote, select_run
from trialfleet.infra.fleet.scaling.caps_and_limits import Stop
from trialfleet.infra.pool import schedd

# Jobs that stay in the queue for a moment after their end.
OVER = f"(JobStatus == {JobStatus.REMOVED} || JobStatus == {JobStatus.COMPLETED})"


def end(run: str, stop: Stop, folder: str = "") -> int:
    """Remove the jobs of a run's trials; return how many were removed.

    With `stop.finals` the jobs of full trainings and gates are removed too. The jobs' logs get the
    reason, and the POST scripts of their DAG nodes report the reason to the optimiser's service.
    Without `folder` the id `run` identifies the run; PoolError if several runs have this id.
    """
    wanted = f"{TRIALS} && TrialfleetRun =?= {quote(run)} && !{OVER}"
    if not stop.finals:
        wanted += ' && TrialfleetMode =?= "tune"'
    jobs = select_run(schedd.query(wanted, ["TrialfleetRun", "TrialfleetFolder"]), run, folder)
    if not jobs:
        return 0
    own = quote(str(jobs[0].get("TrialfleetFolder")))
    return schedd.apply_action("Remove", f"{wanted} && TrialfleetFolder =?= {own}", stop.reason)
