"""The roster of a gang (one training over several jobs): the list of the jobs that take part.

This module reads the fields that agents (the jobs' first processes) need. The workers get the
address and the port of rank 0 as MASTER_ADDR and MASTER_PORT.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Roster:
    """The jobs that take part, in the order of their ranks.

    The keeper, a process on the access point (`trialfleet.workflows.control.gang`), writes the
    roster.
    """

    generation: int
    state: str
    trial: str  # the trial's name in the order; "" while it is undecided
    members: list[list[Any]]  # proc, token, host, port, door; in the order of ranks
    start: str | None
    kill: bool
    short: bool
    code: int

    @staticmethod
    def from_json(text: bytes | None, cluster: int) -> Roster | None:
        """Return the roster in `text`; None if it is missing, invalid or of another job cluster."""
        try:
            plain = json.loads(text or b"null")
            if not plain or plain["cluster"] != cluster:
                return None
            values = {field.name: plain[field.name] for field in fields(Roster)}
            return Roster(**values | {"code": plain["code"] or 0})
        except (ValueError, LookupError, TypeError):
            return None
