"""Queries, changes and removal of jobs in this machine's schedd.

Functions raise PoolError if no schedd is reachable, or if the schedd refuses the request.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from trialfleet.classads import plain_attributes
from trialfleet.ctrl_c import delay_ctrl_c
from trialfleet.errors import PoolError
from trialfleet.infra.pool.connection import connect, local_schedd, start_command, use


def query(
    constraint: str, projection: list[str], as_text: Collection[str] = ()
) -> list[dict[str, Any]]:
    """Return the ClassAds of the jobs in the queue that satisfy a ClassAd constraint.

    Undefined attributes are left out. Those in `as_text` are returned as unevaluated expressions.
    """
    with connect_schedd() as schedd:
        return [plain_attributes(ad, as_text) for ad in schedd.query(constraint, projection)]


def groups(constraint: str, attributes: list[str]) -> list[dict[str, Any]]:
    """Return a ClassAd for each group of jobs with equal values of `attributes`.

    JobCount is the group's number of jobs, and JobIds begins with the id of the group's first job.
    The constraint may use only `attributes`.
    """
    with connect_schedd() as schedd:
        import htcondor2

        how = htcondor2.QueryOpts.GroupBy
        return [plain_attributes(ad) for ad in schedd.query(constraint, attributes, opts=how)]


def apply_action(action: str, constraint: str, reason: str) -> int:
    """Apply an action such as "Remove" to the jobs that satisfy a ClassAd constraint.

    Return the number of jobs for which the action succeeded. HTCondor writes `reason` into the
    jobs' event logs.
    """
    reason_and_code: Any = (reason, 0)  # 25.14 drops a reason without a code
    with connect_schedd(f"HTCondor refused to {action} {constraint}") as schedd:
        import htcondor2

        done = schedd.act(htcondor2.JobAction[action], constraint, reason=reason_and_code)
        return int(done["TotalSuccess"])


def edit(jobs: str, attribute: str, value: str) -> None:
    """Set an attribute of `jobs` (an id or a ClassAd constraint) to a ClassAd expression."""
    with connect_schedd(f"HTCondor refused to edit {jobs}") as schedd:
        schedd.edit(jobs, attribute, value)


@contextmanager
def connect_schedd(failed: str = "HTCondor's schedd does not answer") -> Iterator[Any]:
    """Yield the schedd's client.

    An HTCondorException in the `with` block becomes a PoolError that begins with `failed`.
    """
    use(connect())
    import htcondor2

    found = None
    try:
        with delay_ctrl_c():
            found = local_schedd()
            yield found
    except htcondor2.HTCondorException as error:
        if found is None:
            failed = "HTCondor's schedd can't be found"
            raise PoolError(f"{failed}: {error}; start a pool with: {start_command()}") from error
        raise PoolError(f"{failed}: {error}") from error
