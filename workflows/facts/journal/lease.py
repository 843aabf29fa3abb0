"""The lease on a study's daily runs: only the manager that has the lease works on them."""

from __future__ import annotations

from dataclasses import dataclass

from trialfleet.errors import TrialfleetError
from trialfleet.workflows.formatting import duration


class LeaseLostError(TrialfleetError):
    """Nothing was written, because another manager has the lease on the daily runs now."""


@dataclass(frozen=True)
class Lease:
    """The lease on a study's daily runs, with the manager that has it or had it last.

    Attributes:
        token: a number that increases by one whenever another manager takes the lease.
        folder: the folder of the study's runs on that manager.
        age: the seconds since that manager last renewed the lease.
        seconds: how many seconds after a renewal the lease expires; 0 if it was given back.
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
            return f"{who} worked on the daily runs last; no manager does now"
        if self.age >= self.seconds:
            return f"{who} worked on the daily runs, but has given no sign for {duration(self.age)}"
        return f"{who} works on the daily runs"
