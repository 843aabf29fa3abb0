"""Repair of an unreachable schedd: it is killed, and its master starts another.

A schedd that starts in the same second as the shared port daemon may not find that daemon's
address. HTCondor's schedd tries again only after a minute. A new schedd is ready within seconds.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress

import psutil

from trialfleet.infra.pool import processes

NAME = "condor_schedd"

log = logging.getLogger(__name__)


class UnreachableSchedd:
    """Repair of a schedd that had no address at two checks in a row.

    The schedd is only found if its condor_master also started this process. Under systemd this is
    not so: then nothing is killed, and the schedd tries again after a minute.
    """

    def __init__(self) -> None:
        self._before: set[int] = set()

    def check(self) -> None:
        """Kill the schedd if the last call also saw it. To be called while it has no address."""
        found = [p for p in processes.living() if p.parent == os.getppid() and p.name == NAME]
        for process in found:
            if process.pid in self._before:
                log.warning("the schedd (%d) has no address: it is restarted", process.pid)
                with suppress(psutil.Error):
                    process.handle.kill()
        self._before = {process.pid for process in found}
