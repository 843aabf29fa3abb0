"""The autoscaler: looks at AWS and at the pool, decides, acts; again and again, on the manager.

One step may fail as a whole or end anywhere: the next one goes by what AWS and the pool say then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from trialfleet.errors import FleetError, InputError, PoolError
from trialfleet.infra.fleet import down, draining, inventory, launch, lease, pool_nodes, up
from trialfleet.infra.fleet import ledger as ledgers
from trialfleet.infra.fleet.aws import Aws
from trialfleet.infra.fleet.brake import Brake, Duds, Misfits, Notices
from trialfleet.infra.fleet.machines import Candidate, Instance
from trialfleet.infra.fleet.pool_nodes import PoolNode, PoolView, Room
from trialfleet.infra.fleet.scaling import (
    Decision,
    Limits,
    Node,
    Removal,
    decide,
    mismatched,
    phase,
)
from trialfleet.infra.fleet.spec import Fleet
from trialfleet.infra.fleet.watch import Watch, room_of, usual_room

CHOICE = timedelta(minutes=10)  # for so long a choice of candidates and their prices are good
RENEWED = 2 / 3  # a lease is renewed when less than this part of it is left
Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Step:
    """What one step saw and did.

    Attributes:
        at: when.
        nodes: number of nodes by where they stand, see `scaling.Phase`.
        waiting: trials that wait for a slot.
        running: trials that run.
        price_per_hour: USD of all nodes.
        spent: USD since `since`.
        since: when the run began, or this autoscaler where it serves no run.
        launched: instances that were started.
        drained: nodes that were asked to drain, and why.
        terminated: instances that were ended, and why.
        notes: what a person may wonder about, a line each.
    """

    at: datetime
    nodes: Mapping[str, int]
    waiting: int
    running: int
    price_per_hour: float
    spent: float
    since: datetime
    launched: tuple[str, ...] = ()
    drained: tuple[Removal, ...] = ()
    terminated: tuple[Removal, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def joined(self) -> int:
        """Nodes that are in the pool and fit to run trials."""
        return self.nodes.get("idle", 0) + self.nodes.get("busy", 0)


@dataclass(frozen=True, kw_only=True)
class Ways:
    """How an autoscaler reaches what is outside it.

    Attributes:
        supplies: gathers what new nodes are given.
        choose: lists where new nodes may be had, the best first.
        look: asks the pool for a fleet's nodes and a run's demand.
        drain: asks a node to drain; returns why that could not be.
        clock: the time, in UTC.
    """

    supplies: Callable[[Aws, Fleet], up.Supplies]
    choose: Callable[[Aws, Fleet], Sequence[Candidate]]
    look: Callable[[str, str], PoolView] = pool_nodes.look
    drain: Callable[[PoolNode, Removal], str] = field(
        default=lambda node, removal: draining.drain(
            node, removal.reason, only_idle=removal.only_idle
        )
    )
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)


class Autoscaler:
    """Scales one fleet for one run, or for all trials in the queue."""

    def __init__(
        self,
        aws: Aws,
        fleet: Fleet,
        ways: Ways,
        *,
        run: str = "",
        progress: Progress = lambda _: None,
    ) -> None:
        """Name the fleet; nothing is asked or done before the first step.

        Args:
            aws: the account.
            fleet: which fleet.
            ways: how to reach the pool and what new nodes need.
            run: whose trials count, and from whose beginning the cap of a run counts; empty: all
                trials, and from now on.
            progress: told what is done, a line each.
        """
        self._aws, self._fleet, self._ways = aws, fleet, ways
        self._run, self._progress = run, progress
        self._began = ways.clock()
        self._watch = Watch(self._began)
        self._ledger: ledgers.Ledger | None = None
        self._chosen: tuple[datetime, list[Candidate]] | None = None
        self._room = Room(gpus=fleet.needs.gpus * fleet.shares)
        self._capacity = Brake(timedelta(seconds=30), timedelta(minutes=15))
        self._duds = Duds()
        self._misfits = Misfits()
        self._notices = Notices()

    def step(self, *, least: int = 0) -> Step:
        """Look, decide and act once.

        Args:
            least: nodes to have whatever waits, where that is more than the fleet's minimum.

        Raises:
            FleetError: AWS refuses or can't be reached.
            PoolError: the pool does not answer.
        """
        now = self._ways.clock()
        listed = inventory.instances(self._aws, self._fleet, gone=True)
        self._keep_the_record(listed, now)
        living = self._watch.living(listed, now)
        self._renew_leases(living, now)
        view = self._look()
        candidates, unavailable = self._candidates(now)
        shares = self._fleet.shares
        rooms = {one.type.name: room_of(one.type, shares) for one in candidates}
        nodes = self._watch.nodes(living, view.nodes, rooms, self._room, now)
        candidates = self._notices.last(candidates, living, nodes, now)
        limits = self._limits(candidates, living, nodes, unavailable, least)
        misfits = mismatched(view.demand, nodes, limits, now)
        demand, misfitting = self._misfits.without(view.demand, misfits, now)
        decision = decide(demand, nodes, self._paused(limits, nodes, now), now)
        drained, refused = self._drain(decision, nodes)
        self._terminate(decision, living)
        launched = self._launch(decision, candidates, now)
        return Step(
            at=now,
            nodes=dict(sorted(Counter(phase(node, limits, now) for node in nodes).items())),
            waiting=view.demand.waiting,
            running=view.demand.running,
            price_per_hour=sum(node.price or 0.0 for node in nodes),
            spent=limits.spent,
            since=self._since,
            launched=tuple(launched),
            drained=drained,
            terminated=decision.terminate,
            notes=(*decision.reasons, *misfitting, *refused),
        )

    # --- Looking ----------------------------------------------------------------------------------

    def _look(self) -> PoolView:
        try:
            return self._ways.look(self._fleet.called, self._run)
        except PoolError:
            self._watch.blinded()
            raise

    def _keep_the_record(self, listed: Sequence[Instance], now: datetime) -> None:
        """Bring the record of costs up to date; it is written when something in it changes."""
        before = self._ledger or ledgers.load(self._aws, self._fleet)
        after = before.noted(listed, now)
        if self._run:
            after = after.begun(self._run, self._began)
        if after.spells and after != before:
            ledgers.save(self._aws, self._fleet, after)
        self._ledger = after

    @property
    def _since(self) -> datetime:
        runs = self._ledger.runs if self._ledger else {}
        return runs.get(self._run, self._began)

    @property
    def _spent(self) -> float:
        return self._ledger.cost(self._ways.clock(), self._since) if self._ledger else 0.0

    def _candidates(self, now: datetime) -> tuple[list[Candidate], str]:
        """Return where nodes may be had, or why nowhere; that doesn't keep others from going."""
        if self._chosen is None or now - self._chosen[0] >= CHOICE:
            try:
                self._chosen = now, list(self._ways.choose(self._aws, self._fleet))
            except (FleetError, InputError) as error:
                return [], " ".join(str(error).split())
        return self._chosen[1], ""

    def _limits(
        self,
        candidates: Sequence[Candidate],
        living: Sequence[Instance],
        nodes: Sequence[Node],
        unavailable: str,
        least: int,
    ) -> Limits:
        fleet = self._fleet
        if candidates:
            kind = candidates[0].type
            self._room = usual_room(room_of(kind, self._fleet.shares), kind.name, living, nodes)
        return Limits(
            min_nodes=min(fleet.nodes.max, max(fleet.nodes.min, least)),
            max_nodes=fleet.nodes.max,
            idle_minutes=fleet.idle_minutes,
            boot_minutes=up.BOOT_MINUTES,
            room=self._room,
            price=candidates[0].price if candidates else 0.0,
            hour_cap=fleet.price_cap.hour,
            run_cap=fleet.price_cap.run,
            spent=self._spent,
            paused=unavailable,
        )

    def _paused(self, limits: Limits, nodes: Sequence[Node], now: datetime) -> Limits:
        phases = {node.instance: phase(node, limits, now) for node in nodes}
        reasons = (limits.paused, self._duds.reason(phases, now), self._capacity.reason(now))
        return replace(limits, paused="; ".join(filter(None, reasons)))

    # --- Acting -----------------------------------------------------------------------------------

    def _renew_leases(self, living: Sequence[Instance], now: datetime) -> None:
        """Let the nodes live on; but not once the run's money is spent, whatever fails then."""
        cap = self._fleet.price_cap.run
        if cap is not None and self._spent >= cap:
            return
        soon = now + RENEWED * timedelta(minutes=self._fleet.lease_minutes)
        due = [i for i in living if i.expires is None or i.expires < soon]
        if due:
            lease.renew(self._aws, self._fleet, due, now=now)

    def _drain(
        self, decision: Decision, nodes: Sequence[Node]
    ) -> tuple[tuple[Removal, ...], list[str]]:
        """Ask nodes to drain; return those that were asked, and who can't be, in words."""
        pool = {node.instance: node.pool for node in nodes if node.pool}
        refusals = {r.instance: self._ways.drain(pool[r.instance], r) for r in decision.drain}
        asked = tuple(r for r in decision.drain if not refusals[r.instance])
        for removal in asked:
            self._progress(f"draining {removal.instance}: {removal.reason}")
        refused = [f"{name} can't be drained: {why}" for name, why in refusals.items() if why]
        return asked, refused

    def _terminate(self, decision: Decision, living: Sequence[Instance]) -> None:
        reasons = {removal.instance: removal.reason for removal in decision.terminate}
        if not reasons:
            return
        down.terminate(self._aws, [instance for instance in living if instance.id in reasons])
        for name, reason in reasons.items():
            self._progress(f"terminated {name}: {reason}")

    def _launch(
        self, decision: Decision, candidates: Sequence[Candidate], now: datetime
    ) -> list[str]:
        """Start nodes, and pause for a while where AWS has fewer than are wanted."""
        if not decision.launch:
            return []
        supplies = self._ways.supplies(self._aws, self._fleet)
        aws, fleet, run, say = self._aws, self._fleet, self._run, self._progress
        prepared = up.prepare(aws, fleet, supplies, candidates, run)
        got = launch.launch(aws, fleet, prepared, candidates, decision.launch, run, say, now=now)
        self._watch.launched(got.instances)
        if len(got.instances) >= decision.launch:
            self._capacity.release()
        else:
            last = f": {got.refusals[-1]}" if got.refusals else ""
            self._capacity.pull(now, f"AWS had {len(got.instances)} of {decision.launch}{last}")
        return [instance.id for instance in got.instances]
