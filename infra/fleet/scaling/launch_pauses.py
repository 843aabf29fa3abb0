"""Pauses in which no node is launched, after refusals, unfit nodes or unmatched trials."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from trialfleet.infra.fleet.htcondor.demand import Demand, Group
from trialfleet.infra.fleet.scaling.scaling_decision import Node, Phase
from trialfleet.infra.fleet.spec.machines import Instance
from trialfleet.infra.pool.machines import Resources

FIRST_UNMATCHED, LONGEST_UNMATCHED = timedelta(minutes=30), timedelta(hours=12)
BY_CALL = "Client.UserInitiatedShutdown"  # prefix of AWS's reason if a call has ended a node
UNFIT_IN_A_ROW = 3  # number of unfit nodes in a row at which launches slow down


class Backoff:
    """Pauses of launches, each twice as long as the one before, up to `longest`."""

    def __init__(self, first: timedelta, longest: timedelta) -> None:
        self._first, self._longest = first, longest
        self._length = first
        self._until: datetime | None = None
        self._reason = ""

    def hold(self, now: datetime, reason: str) -> None:
        """Begin a pause for this reason."""
        self._until, self._reason = now + self._length, reason
        self._length = min(self._length * 2, self._longest)

    def reset(self) -> None:
        """End the pause, and make the next one as short as the first."""
        self._until, self._length = None, self._first

    def reason(self, now: datetime) -> str:
        """Return why and until when launches pause, or an empty text if they don't."""
        if self._until is None or now >= self._until:
            return ""
        return f"{self._reason}; retried at {self._until:%H:%M:%S} UTC"


class UnfitNodes:
    """Pauses launches after several nodes in a row that were never fit for a trial.

    A node is unfit if it did not join in time. A node that ended before it joined is unfit too,
    unless the autoscaler or a person ended it. A node whose GPU failed the probe is also unfit.
    """

    def __init__(self) -> None:
        self._backoff = Backoff(timedelta(minutes=5), timedelta(hours=2))
        self._fit: set[str] = set()
        self._coming: set[str] = set()
        self._unfit: set[str] = set()

    def reason(self, phases: Mapping[str, Phase], listed: Iterable[Instance], now: datetime) -> str:
        """Count the newly unfit nodes. Return why launches pause, or an empty text.

        `phases` has the nodes' phases by id, and `listed` AWS's instances, including ended ones.
        """
        fit = {name for name, where in phases.items() if where in {"idle", "busy"}}
        bad = {name for name, where in phases.items() if where in {"late", "sick"}}
        terminated = {one.id for one in listed if one.ended.startswith(BY_CALL)}
        gone = self._coming - set(phases) - terminated
        if fit - self._fit:
            self._unfit.clear()
            self._backoff.reset()
        self._fit |= fit
        new = (bad | gone) - self._fit - self._unfit
        self._unfit |= new
        self._coming = {name for name, where in phases.items() if where == "coming"}
        if new and len(self._unfit) >= UNFIT_IN_A_ROW:
            self._backoff.hold(now, f"the last {len(self._unfit)} nodes were never fit for a trial")
        return self._backoff.reason(now)


class UnmatchedTrials:
    """Trials that match no node, although a node has room for them.

    New nodes would not help, so no node is launched for these trials for 30 minutes. If they still
    match no node then, the next pause is twice as long, up to 12 hours. The pauses end when a trial
    with the same request and requirements runs.
    """

    def __init__(self) -> None:
        self._backoffs: dict[tuple[Resources, str], Backoff] = {}

    def remove_unmatched(
        self, demand: Demand, found: Iterable[tuple[Group, Node]], now: datetime
    ) -> tuple[Demand, list[str]]:
        """Return `demand` without trials that match no node, and a line about each removed group.

        `found` has the groups that match no node, each with a node that has enough free resources
        but does not meet the group's requirements.
        """
        for group in demand.active:
            self._backoffs.pop((group.need, group.requirements), None)
        for group, node in found:
            backoff = self._backoffs.setdefault(
                (group.need, group.requirements), Backoff(FIRST_UNMATCHED, LONGEST_UNMATCHED)
            )
            if not backoff.reason(now):
                backoff.hold(now, f"though {node.id} is free and has room")
        reasons = {kind: backoff.reason(now) for kind, backoff in self._backoffs.items()}
        held = {one: reasons.get((one.need, one.requirements), "") for one in demand.idle}
        lines = [
            f"{group.jobs} trial(s) that ask for {group.need} wait {reason}; "
            "condor_q -better-analyze explains their requirements"
            for group, reason in held.items()
            if reason
        ]
        return replace(demand, idle=tuple(one for one in demand.idle if not held[one])), lines
