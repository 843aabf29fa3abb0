"""Reasons why jobs that run on the access point itself, such as DAGMan, have to wait.

Functions that ask the schedd raise PoolError if HTCondor is unreachable.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import platformdirs

from trialfleet.classads import JobStatus, Universe
from trialfleet.ctrl_c import delay_ctrl_c
from trialfleet.errors import PoolError
from trialfleet.infra.pool.connection import connect, use

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from classad2 import ClassAd

UNIVERSES = (Universe.SCHEDULER, Universe.LOCAL)
_JUST_SUBMITTED = 10.0  # seconds that a job may wait even if the access point starts jobs
# By universe: its jobs, the schedd's attribute that says whether they start, and the setting
# (configuration variable) behind the attribute.
_STARTS: dict[int, tuple[str, str, str]] = {
    Universe.SCHEDULER: (
        "DAGMan and the optimiser's service",
        "StartSchedulerUniverse",
        "START_SCHEDULER_UNIVERSE",
    ),
    Universe.LOCAL: ("publishing and the report", "StartLocalUniverse", "START_LOCAL_UNIVERSE"),
}


def reasons_closed(universes: Iterable[int] = UNIVERSES) -> list[str]:
    """Return a message for each kind of job in `universes` that the access point doesn't start.

    A universe is a kind of job. DAGMan runs in the scheduler universe. Models are published in the
    local universe.
    """
    if not (asked := [*universes]):
        return []
    ad = _schedd_ad()
    return [
        f"{jobs} wait: the access point does not start them now, because its setting {setting} "
        f"({ad.lookup(attribute)}) is false"
        for jobs, attribute, setting in (_STARTS[universe] for universe in asked)
        if attribute in ad and ad.eval(attribute) is False
    ]


def reasons_jobs_wait(jobs: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the reasons why the access point doesn't start the waiting jobs among `jobs`.

    `jobs` are ClassAds. A job that has waited for less than 10 s doesn't count.
    """
    now = time.time()
    waiting = {
        ad["JobUniverse"]
        for ad in jobs
        if ad["JobStatus"] == JobStatus.IDLE
        and ad["JobUniverse"] in UNIVERSES
        and now - ad["EnteredCurrentStatus"] > _JUST_SUBMITTED
        and ad.get("JobCoolDownExpiration", 0) < now
    }
    return reasons_closed(sorted(waiting))


def _schedd_ad() -> ClassAd:
    use(connect())
    import htcondor2

    try:
        with delay_ctrl_c():
            collector = htcondor2.Collector()
            own = collector.locate(htcondor2.DaemonType.Schedd)
            name = f'Name == "{own["Name"]}"'
            return collector.query(htcondor2.AdTypes.Schedd, name)[0]
    except IndexError as error:
        raise PoolError("HTCondor's collector does not list the schedd of this machine") from error
    except htcondor2.HTCondorException as error:
        raise PoolError(f"HTCondor's schedd can't be found: {error}") from error


def default_state() -> Path:
    """Return the default folder for the state of `trialfleet supervise`.

    An embedded pool, which `trialfleet pool up` starts, uses another folder.
    """
    return platformdirs.user_state_path("trialfleet") / "supervisor"
