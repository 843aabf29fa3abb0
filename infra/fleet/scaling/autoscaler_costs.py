"""The costs of a run, as its autoscaler knows them.

While the autoscaler can't read the record of costs, nodes continue to run. The autoscaler then
counts only the costs that it has seen itself, and launches no node if the run has a cap on costs.
Later it adds these costs to the record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from trialfleet.errors import FleetError
from trialfleet.infra.fleet.aws.clients import Aws
from trialfleet.infra.fleet.scaling import cost_record, down_note
from trialfleet.infra.fleet.scaling.draining import drain_text
from trialfleet.infra.fleet.scaling.instance_costs import Ledger, Lifetime
from trialfleet.infra.fleet.scaling.scaling_decision import Removal
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.infra.fleet.spec.machines import Instance
from trialfleet.infra.pool.machines import Machine


class CostLedger:
    """A fleet's costs as one autoscaler knows them. The attribute `record` holds them."""

    def __init__(
        self, aws: Aws, fleet: Fleet, run: str, began: datetime, planned: datetime | None = None
    ) -> None:
        """Count costs from the recorded start of `run`. If none is recorded, count from `began`.

        `planned` is the time at which the run was planned. An earlier recorded start is ignored,
        because it belongs to another run with this id. The first call of `note` reads the record.
        """
        self._aws, self._fleet, self._run, self._began = aws, fleet, run, began
        self._planned = planned
        self.record = Ledger()
        self._stored: Ledger | None = None

    def unknown_reason(self, *, is_silent: bool) -> str:
        """Return why unknown costs forbid new nodes, or an empty text if they don't.

        `is_silent` means that an AWS region did not list its nodes. An unreadable record forbids
        new nodes only if the run has a cap on costs.
        """
        if is_silent:
            return "an AWS region does not list its nodes"
        capped = self._fleet.price_cap.run is not None
        return "the run's cost is unknown" if capped and self._stored is None else ""

    @property
    def start_time(self) -> datetime:
        """The start of the run, or of this autoscaler if there is no run."""
        return self.record.runs.get(self._run, self._began)

    def total_cost(self, now: datetime) -> float:
        """Return the cost of all instances since `start_time`, in USD."""
        return self.record.cost(now, self.start_time)

    def add_pool(self, pool: Iterable[Machine], now: datetime) -> None:
        """Add what the pool knows of the fleet's nodes. The next call of `note` saves it."""
        self.record = self.record.add_machines(pool, now)

    def add_reasons(self, pool: Iterable[Machine], ending: Iterable[Removal]) -> None:
        """Add why nodes of `pool` drain and why those of `ending` end. The next `note` saves it."""
        whys = {node.instance: drain_text(node) for node in pool}
        ended = {one.instance: whys.get(one.instance) or one.reason for one in ending}
        self.record = self.record.add_reasons(whys | ended)

    def lifetimes(self) -> Mapping[str, Lifetime]:
        """Return the lifetimes of instances that were alive after `start_time`, by instance id."""
        return self.record.alive_since(self.start_time)

    def note(self, listed: Iterable[Instance], now: datetime, silent: Iterable[str] = ()) -> str:
        """Update the costs from AWS's list of instances. Return an error, or an empty text.

        The record is saved if it changed, but not while the fleet is down. `silent` are AWS regions
        that did not answer. Their nodes may still run. After an error, the next call tries again.
        """
        problem, seen = "", self.record
        if self._stored is None:
            self._stored, problem = cost_record.load_or_tell(self._aws, self._fleet)
            if stored := self._stored:
                seen = stored.combine(seen)
        self.record = seen.add_listing(listed, now, silent)
        if self._run:
            self.record = self.record.begin_run(self._run, self._began, self._planned)
        if problem or not self.record.lifetimes or self.record == self._stored:
            return problem
        if down_note.reason_no_nodes(self._fleet.full_name):  # `fleet down` saves the record
            return ""
        try:
            cost_record.save(self._aws, self._fleet, self.record)
        except FleetError as error:
            return f"the nodes' costs are not recorded yet: {error}"
        self._stored = self.record
        return ""
