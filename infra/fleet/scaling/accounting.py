"""One autoscaler's books: what its run has cost, from the fleet's record and its own memory of it.

The record in S3 may be out of reach, or damaged. Nodes don't end for that: their autoscaler goes on
with what it has seen itself, and catches up once it can read and write again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime

from trialfleet.errors import FleetError
from trialfleet.infra.fleet.aws.clients import Aws
from trialfleet.infra.fleet.scaling import ledger as ledgers
from trialfleet.infra.fleet.scaling.ledger import Ledger, Lifetime
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.infra.fleet.spec.machines import Instance


class Books:
    """The costs of one fleet, as one autoscaler knows them."""

    def __init__(
        self, aws: Aws, fleet: Fleet, run: str, began: datetime, planned: datetime | None = None
    ) -> None:
        """Begin with nothing known; nothing is read yet.

        Args:
            aws: the account.
            fleet: whose costs.
            run: the run whose beginning counts; empty: `began` does.
            began: the beginning of a run that the record doesn't know.
            planned: when that run was planned; None: unknown.
        """
        self._aws, self._fleet, self._run, self._began = aws, fleet, run, began
        self._planned = planned
        self._ledger = Ledger()
        self._stored: Ledger | None = None

    @property
    def known(self) -> bool:
        """Whether the fleet's record was read; without it costs are those seen by this process."""
        return self._stored is not None

    @property
    def since(self) -> datetime:
        """When the run began, or this autoscaler where it serves no run."""
        return self._ledger.runs.get(self._run, self._began)

    def spent(self, now: datetime) -> float:
        """Return what all instances have cost since then, in USD."""
        return self._ledger.cost(now, self.since)

    def joined(self, instances: Iterable[str], now: datetime) -> None:
        """Note the instances that are in the pool; the next `note` writes it down."""
        self._ledger = self._ledger.joined(instances, now)

    def lifetimes(self) -> Mapping[str, Lifetime]:
        """Return the instances that have lived since the run began."""
        return self._ledger.since(self.since)

    def note(self, listed: Iterable[Instance], now: datetime) -> str:
        """Bring the costs up to date, and the record where something in it changed.

        Returns:
            Why the record could not be read or written, in words; it is tried again next time.
        """
        problem = self._read()
        ledger = self._ledger.noted(listed, now)
        self._ledger = ledger.begun(self._run, self._began, self._planned) if self._run else ledger
        return problem or self._write()

    def _read(self) -> str:
        if self._stored is not None:
            return ""
        try:
            self._stored = ledgers.load(self._aws, self._fleet)
        except FleetError as error:
            return f"the cost is of what AWS still lists alone: {error}"
        seen = self._ledger
        runs = {**seen.runs, **self._stored.runs}
        self._ledger = replace(
            seen, lifetimes={**seen.lifetimes, **self._stored.lifetimes}, runs=runs
        )
        return ""

    def _write(self) -> str:
        if not self._ledger.lifetimes or self._ledger == self._stored:
            return ""
        try:
            ledgers.save(self._aws, self._fleet, self._ledger)
        except FleetError as error:
            return f"what the nodes cost is not recorded yet: {error}"
        self._stored = self._ledger
        return ""
