"""The roster of a gang (one training over several jobs), as far as the jobs' agents need it.

It has rank 0's address and port, which agent.py gives to the workers by MASTER_ADDR and
MASTER_PORT; network.py chooses them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Roster:
    """The jobs that take part, as decided by the keeper, a process on the access point.

    The keeper is in `trialfleet.workflows.control.gang`.
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
