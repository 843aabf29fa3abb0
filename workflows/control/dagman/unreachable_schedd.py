"""Repair of an unreachable schedd: it is killed, and HTCondor's master starts another.

A schedd that starts in the same second as the shared port daemon may miss that daemon's address.
It tries again only after a minute, but a new schedd is ready within seconds. A schedd is killed
only if the same master started both the schedd and this supervisor. So no schedd is killed if
systemd started the supervisor.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress

import psutil

from trialfleet.errors import PoolError
from trialfleet.infra.pool import processes
from trialfleet.infra.pool.connection import NoAddressError

NAME = "condor_schedd"

log = logging.getLogger(__name__)


class UnreachableSchedd:
    """Kills the schedd if it has no address at two checks in a row."""

    def __init__(self) -> None:
        self._before: set[int] = set()

    def check(self, error: PoolError | None) -> None:
        """Kill the schedd if it has no address now and had none at the previous check.

        `error` is the error of the last query of the schedd; None if the query succeeded. The
        schedd has no address if this is a NoAddressError.
        """
        if not isinstance(error, NoAddressError):
            self._before = set()
            return
        found = [
            p for p in processes.list_processes() if p.parent == os.getppid() and p.name == NAME
        ]
        for process in found:
            if process.pid in self._before:
                log.warning("the schedd (%d) has no address: it is restarted", process.pid)
                with suppress(psutil.Error):
                    process.handle.kill()
        self._before = {process.pid for process in found}
