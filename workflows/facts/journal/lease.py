"""The lease on a study's daily runs: only the manager that holds it works on them."""

from __future__ import annotations

from dataclasses import dataclass

from trialfleet.errors import TrialfleetError
from trialfleet.workflows.formatting import duration


class LeaseLostError(TrialfleetError):
    """Nothing was written, because another manager has taken the lease on the daily runs."""


@dataclass(frozen=True)
class Lease:
    """The lease on a study's daily runs, with its present or last holder.

    `token` counts the holders, from 1. `folder` is the folder of the study's runs on the holder's
    machine. `age` is the seconds since the last renewal. The lease expires `seconds` after a
    renewal. `seconds` is 0 if the holder gave the lease back.
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
