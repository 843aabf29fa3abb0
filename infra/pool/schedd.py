"""Jobs of the queue, read, changed and removed through this machine's schedd.

All of it raises PoolError: no HTCondor is reachable, or it refuses.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from trialfleet.classads import plain
from trialfleet.ctrl_c import postponed
from trialfleet.errors import PoolError
from trialfleet.infra.pool.connection import connect, local_schedd, start_command, use


def query(
    constraint: str, projection: list[str], as_text: Collection[str] = ()
) -> list[dict[str, Any]]:
    """Return the ads of the queue's jobs that satisfy a ClassAd constraint.

    An attribute that is undefined is not in them: HTCondor writes `MachineAttr…0` of what the
    machine doesn't say so. Those in `as_text` are given as they stand.
    """
    with reach() as schedd:
        return [plain(ad, as_text) for ad in schedd.query(constraint, projection)]


def groups(constraint: str, attributes: list[str]) -> list[dict[str, Any]]:
    """Return an ad for all jobs of the queue that have the same in these attributes.

    The schedd counts them itself: JobCount says how many they are, JobIds begins with the id of the
    first. The constraint may name these attributes and no others.
    """
    with reach() as schedd:
        import htcondor2

        how = htcondor2.QueryOpts.GroupBy
        return [plain(ad) for ad in schedd.query(constraint, attributes, opts=how)]


def act(action: str, constraint: str, reason: str) -> int:
    """Have the schedd do something to the jobs that satisfy a constraint; return to how many.

    The action is a name of htcondor2.JobAction, such as "Remove". Their logs tell the reason.
    """
    reason_and_code: Any = (reason, 0)  # 25.14 drops a reason that stands without its code
    with reach(f"HTCondor refused to {action} {constraint}") as schedd:
        import htcondor2

        done = schedd.act(htcondor2.JobAction[action], constraint, reason=reason_and_code)
        return int(done["TotalSuccess"])


def edit(jobs: str, attribute: str, value: str) -> None:
    """Set an attribute of jobs, by an id or a ClassAd constraint, to a ClassAd expression."""
    with reach(f"HTCondor refused to edit {jobs}") as schedd:
        schedd.edit(jobs, attribute, value)


@contextmanager
def reach(failed: str = "HTCondor's schedd does not answer") -> Iterator[Any]:
    """Give the schedd; what it raises in the block is an error that begins so."""
    use(connect())
    import htcondor2

    found = None
    try:
        with postponed():
            found = local_schedd()
            yield found
    except htcondor2.HTCondorException as error:
        if found is None:
            failed = "HTCondor's schedd can't be found"
            raise PoolError(f"{failed}: {error}; start a pool with: {start_command()}") from error
        raise PoolError(f"{failed}: {error}") from error
