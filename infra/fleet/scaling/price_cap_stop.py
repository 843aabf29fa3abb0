"""The end of a run's jobs when the money that it may spend is used up.

A part of the run's cap on costs is reserved for the full trainings with the best settings. When the
rest is spent, the run's waiting and running trials end: their jobs are removed from HTCondor's
queue. At the cap, the jobs of full trainings and gates are removed too.
"""

from __future__ import annotations

from dataclasses import dataclass

from trialfleet.classads import JobStatus
from trialfleet.infra.fleet.htcondor.demand import TRIALS, quote, select_run
from trialfleet.infra.fleet.spec.limits import NO_MONEY, Limits, run_cap_reached
from trialfleet.infra.pool import schedd

# Jobs that stay in the queue for a moment after their end.
OVER = f"(JobStatus == {JobStatus.REMOVED} || JobStatus == {JobStatus.COMPLETED})"


@dataclass(frozen=True, kw_only=True)
class PriceCapStop:
    """An order to end a run's trials, because the run's money is spent.

    With `finals` the run's full trainings and gates must end too.
    """

    reason: str
    finals: bool


def required_stop(limits: Limits, nodes: int, needed: int) -> PriceCapStop | None:
    """Return the order to end jobs of a run, or None if no job must end.

    `needed` is the number of new nodes on which a waiting job can begin, or 0 if no job waits. If
    `nodes` is 0 and too little money is left for these, all jobs of the run must end.
    """
    cap, spent = limits.run_cap, limits.spent
    if cap is None:
        return None
    reason, share = run_cap_reached(cap, spent), cap * (1 - limits.reserve)
    if not reason and not nodes and limits.affordable_in_run(0.0) < needed:
        # Without nodes costs don't grow, so the cap would never be reached.
        cost = "a new node costs until it can train"
        if needed > 1:
            cost = f"the {needed} new nodes with which a gang begins cost until they can train"
        reason = (
            f"${cap - spent:.2f} of the run's cap of ${cap:.2f} is left, less than {cost} "
            f"(${needed * limits.price:.2f} per hour for {limits.boot_minutes:g} minutes)"
        )
    if reason:
        return PriceCapStop(reason=NO_MONEY + reason, finals=True)
    if spent < share:
        return None
    reason = (
        f"trials have spent ${spent:.2f}; ${cap - share:.2f} of the run's cap of ${cap:.2f} "
        "is kept for the full trainings"
    )
    return PriceCapStop(reason=NO_MONEY + reason, finals=False)


def end(run: str, stop: PriceCapStop, folder: str = "") -> int:
    """Remove the jobs of a run's trials from the queue. Return how many were removed.

    With `stop.finals` the jobs of full trainings and gates are removed too. HTCondor writes the
    reason into the jobs' logs. PoolError if several runs have the id `run` and `folder` is empty.
    """
    wanted = f"{TRIALS} && TrialfleetRun =?= {quote(run)} && !{OVER}"
    if not stop.finals:
        wanted += ' && TrialfleetMode =?= "tune"'
    jobs = select_run(schedd.query(wanted, ["TrialfleetRun", "TrialfleetFolder"]), run, folder)
    if not jobs:
        return 0
    own = quote(str(jobs[0].get("TrialfleetFolder")))
    return schedd.apply_action("Remove", f"{wanted} && TrialfleetFolder =?= {own}", stop.reason)
