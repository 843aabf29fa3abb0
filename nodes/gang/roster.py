"""What the agents of a gang are told: as much of the roster as they need."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Roster:
    """The keeper's decision; `trialfleet.workflows.control.gang` explains it."""

    generation: int
    state: str
    trial: str  # its name, as the order has it; "" while nobody knows which comes
    members: list[list[Any]]  # proc, token, host, port, door; in the order of ranks
    start: str | None
    kill: bool
    short: bool
    code: int

    @staticmethod
    def of(text: bytes | None, cluster: int) -> Roster | None:
        """Return what a file holds; None where there is none for this submission of the job."""
        try:
            plain = json.loads(text or b"null")
            if not plain or plain["cluster"] != cluster:
                return None
            told = {field.name: plain[field.name] for field in fields(Roster)}
            return Roster(**told | {"code": plain["code"] or 0})
        except (ValueError, LookupError, TypeError):
            return None
