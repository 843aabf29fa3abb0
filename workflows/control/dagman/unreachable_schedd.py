"""An unreachable schedd is ended, so that its master starts another.

A schedd that starts in the same second as the shared port may find no address of it, and tries
again only a minute later, HTCondor's constant. Another schedd is ready within seconds.
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
    """Repair of a schedd of the same master that had no address at two checks.

    If this process's parent is not the schedd's condor_master, as under systemd, no schedd is found
    and the minute passes.
    """

    def __init__(self) -> None:
        self._before: set[int] = set()

    def check(self) -> None:
        """End the schedd if it was there before. Call it while the schedd has no address."""
        found = [p for p in processes.living() if p.parent == os.getppid() and p.name == NAME]
        for process in found:
            if process.pid in self._before:
                log.warning("the schedd (%d) has no address: it is restarted", process.pid)
                with suppress(psutil.Error):
                    process.handle.kill()
        self._before = {process.pid for process in found}
