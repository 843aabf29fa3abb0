"""Which HTCondor the manager runs, and so its nodes."""

from __future__ import annotations

from trialfleet.errors import PoolError
from trialfleet.infra.pool.htcondor_package import (
    MINIMUM,
    Installation,
    machine_installation,
    release_number,
)

LEAST = ".".join(map(str, MINIMUM))


def usable_installation() -> Installation | None:
    """Return the machine's own HTCondor; None if there is none, or one that is too old."""
    found = machine_installation()
    return found if found and release_number(found.version) >= MINIMUM else None


def manager_version() -> str:
    """Return the version of this machine's HTCondor, such as `25.14.1`.

    Raises:
        PoolError: there is none that is new enough.
    """
    found = usable_installation()
    if found is None:
        raise PoolError(
            f"this machine has no HTCondor {LEAST} or newer on PATH:"
            " `sudo trialfleet manager install` makes it a manager"
        )
    return found.version
