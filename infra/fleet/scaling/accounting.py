"""One autoscaler's books: what its run has cost, from the fleet's record and its own memory of it.

The record in S3 may be out of reach, or damaged. Nodes don't end for that: their autoscaler goes on
with what it has seen itself, and catches up once it can read and write again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from trialfleet.errors import FleetError
from trialfleet.infra.fleet.aws.clients import Aws
from trialfleet.infra.fleet.choice.pool_history import History
from trialfleet.infra.fleet.scaling import down_note
from trialfleet.infra.fleet.scaling import ledger as ledgers
from trialfleet.infra.fleet.scaling.decision import Removal
from trialfleet.infra.fleet.scaling.draining import why_it_drains
from trialfleet.infra.fleet.scaling.lifetimes import Ledger, Lifetime
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.infra.fleet.spec.machines import Instance
from trialfleet.infra.pool.machines import Machine


class Books:
    """The costs of one fleet, as one autoscaler knows them."""

    def __init__(
        self, aws: Aws, fleet: Fleet, run: str, began: datetime, planned: datetime | None = None
    ) -> None:
        """Begin with nothing known; nothing is read yet.

        Costs count from the beginning of `run`. Where there is no run, or the record doesn't know
        it, they count from `began`. `planned` is when that run was planned, if it is known.
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

    def seen(self, pool: Iterable[Machine], now: datetime) -> None:
        """Note which nodes are in the pool, and what they say; the next `note` writes it down."""
        self._ledger = self._ledger.seen(pool, now)

    def history(self, now: datetime) -> History:
        """Return what is known of pools of capacity."""
        return self._ledger.history(now)

    def explained(self, pool: Iterable[Machine], ending: Iterable[Removal]) -> None:
        """Note why nodes drain or end; the next `note` writes it down."""
        whys = {node.instance: why_it_drains(node) for node in pool}
        ended = {one.instance: whys.get(one.instance) or one.reason for one in ending}
        self._ledger = self._ledger.explained(whys | ended)

    def lifetimes(self) -> Mapping[str, Lifetime]:
        """Return the instances that have lived since the run began."""
        return self._ledger.since(self.since)

    def note(self, listed: Iterable[Instance], now: datetime) -> str:
        """Bring the costs up to date, and the record where something in it changed.

        Returns:
            Why the record could not be read or written, in words; it is tried again next time.
        """
        problem, seen = "", self._ledger
        if self._stored is None:
            self._stored, problem = ledgers.load_or_tell(self._aws, self._fleet)
            if stored := self._stored:
                seen = stored.with_kept(seen)
        ledger = seen.noted(listed, now)
        self._ledger = ledger.begun(self._run, self._began, self._planned) if self._run else ledger
        if problem or not self._ledger.lifetimes or self._ledger == self._stored:
            return problem
        if down_note.why_no_nodes(self._fleet.called):  # `fleet down` keeps it elsewhere
            return ""
        try:
            ledgers.save(self._aws, self._fleet, self._ledger)
        except FleetError as error:
            return f"what the nodes cost is not recorded yet: {error}"
        self._stored = self._ledger
        return ""
