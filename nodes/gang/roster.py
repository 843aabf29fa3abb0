"""The roster, which is the list of the jobs of a gang that take part in the training.

This module reads the fields that the jobs' agents need.
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
        """Return the roster in `text`, or None if it is missing or invalid.

        A roster for the jobs of another `cluster` (12 for the job 12.3) counts as invalid.
        """
        try:
            plain = json.loads(text or b"null")
            if not plain or plain["cluster"] != cluster:
                return None
            values = {field.name: plain[field.name] for field in fields(Roster)}
            return Roster(**values | {"code": plain["code"] or 0})
        except (ValueError, LookupError, TypeError):
            return None
