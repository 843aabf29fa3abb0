"""The lease on a study's days, which one of two managers holds; see `SharedRows`."""

from __future__ import annotations

from dataclasses import dataclass

from trialfleet.errors import TrialfleetError
from trialfleet.workflows.formatting import duration


class LeaseLostError(TrialfleetError):
    """The error that another manager works on the study's days, so nothing was written."""


@dataclass(frozen=True)
class Lease:
    """The lease on a study's days, with its present or last holder.

    `token` is the number of the holder, from 1. `folder` is the folder of the study's runs on the
    holder's machine. `age` is the seconds since the last renewal. Without a renewal the lease lasts
    `seconds`; 0 means that the lease was given back.
    """

    token: int
    host: str
    folder: str
    is_ours: bool
    age: float
    seconds: float

    def __str__(self) -> str:
        who = "this manager" if self.is_ours else f"another manager, {self.host},"
        if not self.seconds:
            return f"{who} worked on the days last; no manager does now"
        if self.age >= self.seconds:
            return f"{who} worked on the days, and has been silent for {duration(self.age)}"
        return f"{who} works on the days"
