"""The part of the keeper's roster that the agents of a gang need."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Roster:
    """The keeper's decision; `trialfleet.workflows.control.gang` explains it."""

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
        """Return the roster in a file; None unless it is for this submission of the job."""
        try:
            plain = json.loads(text or b"null")
            if not plain or plain["cluster"] != cluster:
                return None
            values = {field.name: plain[field.name] for field in fields(Roster)}
            return Roster(**values | {"code": plain["code"] or 0})
        except (ValueError, LookupError, TypeError):
            return None
