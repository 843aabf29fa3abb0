"""The lease of one of two managers on a study's days; see `SharedRows`."""

from __future__ import annotations

from dataclasses import dataclass

from trialfleet.errors import TrialfleetError
from trialfleet.workflows.formatting import duration


class LeaseLostError(TrialfleetError):
    """Another manager works on the study's days; nothing was written."""


@dataclass(frozen=True)
class Lease:
    """The lease on a study's days, held now or last.

    Attributes:
        token: how often it has changed hands, from 1.
        host: the manager's name, for people.
        folder: of the study's runs there.
        is_ours: whether that is this manager.
        age: seconds since it was renewed.
        seconds: how long it lasts without that; 0: it was given back.
    """

    token: int
    host: str
    folder: str
    is_ours: bool
    age: float
    seconds: float

    def __str__(self) -> str:
        """Return the lease's holder in one line."""
        who = "this manager" if self.is_ours else f"another manager, {self.host},"
        if not self.seconds:
            return f"{who} worked on the days last; no manager does now"
        if self.age >= self.seconds:
            return f"{who} worked on the days, and has been silent for {duration(self.age)}"
        return f"{who} works on the days"
