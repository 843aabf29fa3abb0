"""The lease on a study's days, which one of two managers holds; see `SharedRows`."""

from __future__ import annotations

from dataclasses import dataclass

from trialfleet.errors import TrialfleetError
from trialfleet.workflows.formatting import duration


class LeaseLostError(TrialfleetError):
    """The error that another manager works on the study's days; nothing was written."""


@dataclass(frozen=True)
class Lease:
    """The lease on a study's days, with its present or last holder.

    Attributes:
        token: a number that counts the lease's holders, from 1.
        host: the name of the holder's machine, for people.
        folder: the folder of the study's runs on that machine.
        is_ours: whether this manager is the holder.
        age: seconds since the last renewal.
        seconds: how long the lease lasts without a renewal; 0 if it was given back.
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
