"""The autoscaler on the manager, which launches and ends nodes in repeated steps.

A step first renews the nodes' leases. Then it reads the pool, decides, and acts. So leases are
renewed even if the pool doesn't answer. A step may fail or be killed at any point, because the next
step reads everything again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import NamedTuple

from trialfleet.errors import FleetError, InputError, PoolError, TrialfleetError
from trialfleet.infra.fleet.aws import retries
from trialfleet.infra.fleet.aws.clients import Aws
from trialfleet.infra.fleet.choice.candidates import candidates, rank_candidates
from trialfleet.infra.fleet.htcondor import demand as pool_demand
from trialfleet.infra.fleet.htcondor.demand import PoolView
from trialfleet.infra.fleet.instances import launch, node_lease
from trialfleet.infra.fleet.instances.fleet_request import Prepared
from trialfleet.infra.fleet.instances.launch import Progress
from trialfleet.infra.fleet.instances.regions import RegionListings, Regions
from trialfleet.infra.fleet.lifecycle import down, up
from trialfleet.infra.fleet.scaling import down_note, draining, price_cap_stop
from trialfleet.infra.fleet.scaling.autoscaler_costs import CostLedger
from trialfleet.infra.fleet.scaling.instance_costs import Lifetime
from trialfleet.infra.fleet.scaling.known_nodes import KnownNodes
from trialfleet.infra.fleet.scaling.launch_pauses import Backoff, UnfitNodes, UnmatchedTrials
from trialfleet.infra.fleet.scaling.price_cap_stop import PriceCapStop, required_stop
from trialfleet.infra.fleet.scaling.scaling_decision import (
    Decision,
    Node,
    Removal,
    affordable,
    decide,
    left_alone,
    phase,
    unmatched_trials,
)
from trialfleet.infra.fleet.scaling.suitable_types import node_room, suitable
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.infra.fleet.spec.limits import Limits, run_cap_reached
from trialfleet.infra.fleet.spec.machines import Candidate, Instance
from trialfleet.infra.pool.machines import Machine, Resources
from trialfleet.wall_clock import SETTLED_SECONDS, WallClock

LEAVING = (1.0,) * 20  # seconds between checks whether a finished run still has jobs on nodes
# When candidates and prices are refreshed: soon if an AWS region has none because of an error.
SOON, LATER = timedelta(minutes=1), timedelta(minutes=10)


def ignore_output_errors(progress: Progress) -> Progress:
    """Return a function like `progress` that ignores errors of output, such as a full disk."""

    def say(line: str) -> None:
        with suppress(OSError, ValueError):  # the log's disk is full, or its reader is gone
            progress(line)

    return say


@dataclass(frozen=True, kw_only=True)
class Step:
    """The observations and actions of one step of the autoscaler.

    Attributes:
        nodes: number of nodes by phase, such as idle.
        price_per_hour: USD per hour of all living nodes.
        spent: USD since `since`, the start of the run or, without a run, of this autoscaler.
        stopped: why the cap on costs ends jobs of the run. Empty if no job must end.
        ended: number of jobs that were removed from the queue because of `stopped`.
        instances: lifetimes of the instances that lived at `since` or later, by instance id.
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
    stopped: str = ""
    ended: int = 0
    notes: tuple[str, ...] = ()
    instances: Mapping[str, Lifetime] = field(default_factory=dict)

    @property
    def joined_nodes(self) -> int:
        """The number of nodes that have joined the pool and are fit for trials."""
        return self.nodes.get("idle", 0) + self.nodes.get("busy", 0)


@dataclass(frozen=True, kw_only=True)
class Connections:
    """The functions that an autoscaler calls to reach AWS, the HTCondor pool and the clocks.

    Attributes:
        choose: lists the candidates for new nodes, the best first, and tells errors of AWS regions.
        read_run, read_all: read a fleet's nodes in the pool, and what one run's or all trials
            request.
        ticks: seconds of a monotonic clock.
    """

    inputs: Callable[[Aws, Fleet], up.NodeInputs] = up.gather_inputs
    choose: Callable[[Aws, Fleet, Progress], Sequence[Candidate]] = candidates
    read_run: Callable[[str, str], PoolView] = lambda fleet, run: pool_demand.read_pool(
        fleet, run, named=False
    )
    read_all: Callable[[str], PoolView] = pool_demand.read_pool
    end: Callable[[str, PriceCapStop], int] = price_cap_stop.end
    drain: Callable[[Machine, Removal], str] = draining.drain
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ticks: Callable[[], float] = time.monotonic


class Choice(NamedTuple):
    """The candidates for new nodes, the errors of AWS regions without any, and until when."""

    candidates: list[Candidate]
    troubles: list[str]
    expires: datetime


class Autoscaler:
    """Scales one fleet for one run, or for all trials in the queue."""

    def __init__(
        self,
        aws: Aws,
        fleet: Fleet,
        connections: Connections,
        *,
        run: str = "",
        planned: datetime | None = None,
        progress: Progress = lambda _: None,
    ) -> None:
        """Scale for `run`. If `run` is empty, scale for all trials in the queue.

        Costs count from the recorded start of `run`. If no start is recorded, they count from now.
        `planned` is the time at which the run was planned. An earlier recorded start is ignored,
        because it belongs to another run with this id.
        """
        self._aws, self._fleet, self._connections = aws, fleet, connections
        self._run, self._progress = run, ignore_output_errors(progress)
        self._clock = WallClock(connections.clock, connections.ticks)
        self._began = self._clock.now()
        self._watch = KnownNodes(self._began)
        self._regions = Regions(aws, fleet)
        self._cost_ledger = CostLedger(aws, fleet, run, self._began, planned)
        self._chosen: Choice | None = None
        self._prepared: Prepared | None = None
        self._room = Resources(gpus=fleet.needs.gpus * fleet.shares)
        self._capacity = Backoff(timedelta(seconds=30), timedelta(minutes=15))
        self._unfit = UnfitNodes()
        self._unmatched = UnmatchedTrials()

    def step(self, *, least: int = 0) -> Step:
        """Launch and end nodes as needed at present. Return what was seen and done.

        At least `least` nodes are kept, even if no trial needs them. Shortly after the system's
        clock was set, the step only renews leases, because nodes may wrongly seem idle or lost.
        """
        now = self._clock.now()
        heard = self._list_instances(now, renewing=True)
        listed, unheard = heard.instances, list(heard.silent.values())
        living = self._watch.living_instances(listed, now, heard.silent)
        troubles = [*heard.troubles, *map(str, unheard)]
        if self._clock.is_set:
            return self._only_waited(living, troubles, now)
        troubles.append(self._cost_ledger.note(listed, now, heard.unknown))
        view = self._read_pool()
        self._cost_ledger.add_pool(view.nodes, now)
        candidates, unavailable, missing = self._candidates(now)
        troubles += missing
        shares = self._fleet.shares
        rooms = {one.type.name: node_room(one.type, shares) for one in candidates}
        candidates = suitable(self._fleet, candidates, view.demand.idle)
        nodes = self._watch.nodes(living, view.nodes, rooms, self._room, now)
        is_down = down_note.reason_no_nodes(self._fleet.full_name)
        if is_down:
            self._prepared = None  # `fleet down` deletes the resources for launches
        unknown = self._cost_ledger.unknown_reason(is_silent=bool(unheard))
        paused = "; ".join(filter(None, (is_down, unavailable, unknown)))
        limits = self._for_new_nodes(self._limits(paused, least, now), candidates, nodes)
        candidates, needed = affordable(candidates, rooms, view.demand.idle, nodes, limits, now)
        limits = self._for_new_nodes(limits, candidates, nodes)
        unmatched = unmatched_trials(view.demand, nodes, limits, now)
        demand, lines = self._unmatched.remove_unmatched(view.demand, unmatched, now)
        count = len(nodes) or len(unheard)  # a silent region may have nodes
        is_wanted = view.demand.waiting_trials or least
        stop = required_stop(limits, count, needed if is_wanted else 0)
        ended, limits, trouble = self._end_trials(stop, limits)
        phases = {node.id: phase(node, limits, now) for node in nodes}
        unfit = self._unfit.reason(phases, listed, now)
        reasons = filter(None, (limits.paused, unfit, self._capacity.reason(now)))
        decision = decide(demand, nodes, replace(limits, paused="; ".join(reasons)), now)
        self._cost_ledger.add_reasons(view.nodes, decision.terminate)
        drained, refused = self._drain(decision.drain[: draining.IN_A_STEP], nodes)
        troubles += [trouble, *refused, self._terminate(decision, living)]
        launched, trouble = self._launch(decision, candidates, living, now)
        troubles.append(trouble)
        return replace(
            self._build_step(view, living, now),
            nodes=dict(sorted(Counter(phases.values()).items())),
            launched=tuple(launched),
            drained=drained,
            terminated=decision.terminate,
            stopped=stop.reason if stop else "",
            ended=ended,
            notes=(*filter(None, troubles), *decision.reasons, *lines),
            instances=self._cost_ledger.lifetimes(),
        )

    def release_nodes(self) -> Step:
        """Drain or terminate the nodes that are not needed after the run's end.

        First wait up to 20 seconds until the run's jobs have left the nodes. A node stays if it is
        busy, or if a waiting trial of another run will use it. At least `nodes.min` nodes stay. The
        fleet's next autoscaler decides about the nodes that stay. Without one, a node shuts down at
        the latest when its lease ends.
        """
        retries.wait_for(self._has_left_its_slots, LEAVING)
        now = self._clock.now()
        heard = self._list_instances(now, renewing=False)
        troubles = [*map(str, heard.silent.values())]
        living = self._watch.living_instances(heard.instances, now, heard.silent)
        view = self._connections.read_all(self._fleet.full_name)
        nodes = self._watch.nodes(living, view.nodes, {}, self._room, now)
        reason = f"the run {self._run} is over"
        limits = self._limits("", 0, now)
        decision = left_alone(view.demand, nodes, limits, reason, now)
        drained, refused = self._drain(decision.drain, nodes)
        # A node was idle when it accepted the order to drain, and takes no jobs since.
        ending = replace(decision, terminate=(*decision.terminate, *drained))
        self._cost_ledger.add_reasons(view.nodes, ending.terminate)
        troubles += [*refused, self._terminate(ending, living)]
        heard = self._list_instances(now, renewing=False)
        record = self._cost_ledger.note(heard.instances, now, heard.unknown)
        troubles += [*map(str, heard.silent.values()), record]
        left = [instance for instance in heard.instances if instance.is_alive]
        return replace(
            self._build_step(view, left, now),
            drained=drained,
            terminated=ending.terminate,
            notes=tuple(filter(None, troubles)),
            instances=self._cost_ledger.lifetimes(),
        )

    def _has_left_its_slots(self) -> bool:
        """Return whether each busy node runs a trial of another run.

        Just after a job's end, a node may be busy without a trial. Then the result is False.
        """
        nodes = self._connections.read_all(self._fleet.full_name).nodes
        return not any(
            node.idle_since is None and all(trial.run == self._run for trial in node.trials)
            for node in nodes
        )

    def _only_waited(self, living: Sequence[Instance], troubles: list[str], now: datetime) -> Step:
        """Return a step without any decision, because this machine's clock was just set."""
        self._watch.note_no_answer()
        note = f"this machine's clock was set: no scaling for {SETTLED_SECONDS:.0f} s"
        return replace(self._build_step(self._read_pool(), living, now), notes=(*troubles, note))

    def _build_step(self, view: PoolView, living: Sequence[Instance], now: datetime) -> Step:
        return Step(
            at=now,
            nodes={},
            waiting=view.demand.waiting_trials,
            running=view.demand.running_trials,
            price_per_hour=sum(instance.price or 0.0 for instance in living),
            spent=self._cost_ledger.total_cost(now),
            since=self._cost_ledger.start_time,
        )

    # --- Looking ----------------------------------------------------------------------------------

    def _list_instances(self, now: datetime, *, renewing: bool) -> RegionListings:
        """List the nodes. With `renewing`, also renew their leases.

        No lease is renewed while the fleet is down, or once the run's cap on costs is reached.
        """

        def renew(instances: Sequence[Instance]) -> list[Instance]:
            due = node_lease.instances_to_renew(self._fleet, instances, now)
            return node_lease.renew(self._aws, self._fleet, due, now=now)

        is_spent = run_cap_reached(self._fleet.price_cap.run, self._cost_ledger.total_cost(now))
        ends = is_spent or down_note.reason_no_nodes(self._fleet.full_name)
        return self._regions.list_instances(
            self._watch.unlisted_instances, renew if renewing and not ends else None, now
        )

    def _read_pool(self) -> PoolView:
        try:
            return self._connections.read_run(self._fleet.full_name, self._run)
        except PoolError:
            self._watch.note_no_answer()
            raise

    def _candidates(self, now: datetime) -> tuple[list[Candidate], str, list[str]]:
        """Return the candidates, why there are none, and the errors of AWS regions without any."""
        if self._chosen is None or now >= self._chosen.expires:
            troubles: list[str] = []
            try:
                found = list(self._connections.choose(self._aws, self._fleet, troubles.append))
            except (FleetError, InputError) as error:
                return [], " ".join(str(error).split()), troubles
            is_lacking = {one.aws_region for one in found} != {*self._fleet.aws_regions}
            pause = SOON if troubles and is_lacking else LATER
            self._chosen = Choice(found, troubles, now + pause)
            self._prepared = None
        history = self._cost_ledger.record.history(now)
        ranked = rank_candidates(self._chosen.candidates, self._fleet, history)
        return ranked, "", self._chosen.troubles

    def _for_new_nodes(
        self, limits: Limits, candidates: Sequence[Candidate], nodes: Sequence[Node]
    ) -> Limits:
        """Return `limits` with the price and the resources of a node of the first candidate."""
        if not candidates:
            return limits
        kind = candidates[0].type
        # A new node is assumed to have at most the resources of each present node of its type.
        present = (n.machine.total for n in nodes if n.machine and n.instance.type == kind.name)
        self._room = reduce(Resources.minimum, present, node_room(kind, self._fleet.shares))
        return replace(limits, room=self._room, price=candidates[0].price)

    def _limits(self, paused: str, least: int, now: datetime) -> Limits:
        fleet = self._fleet
        return Limits(
            min_nodes=min(fleet.nodes.max, max(fleet.nodes.min, least)),
            max_nodes=fleet.nodes.max,
            idle_minutes=fleet.idle_minutes,
            boot_minutes=up.BOOT_MINUTES,
            room=self._room,
            price=0.0,
            hour_cap=fleet.price_cap.hour,
            run_cap=fleet.price_cap.run,
            reserve=fleet.price_cap.reserve,
            spent=self._cost_ledger.total_cost(now),
            paused=paused,
        )

    # --- Acting -----------------------------------------------------------------------------------

    def _end_trials(self, stop: PriceCapStop | None, limits: Limits) -> tuple[int, Limits, str]:
        """Remove the jobs that `stop` ends. Return their number, new limits, and an error.

        The new limits forbid launches if jobs were removed, or if the removal failed.
        """
        if stop is None or not self._run:  # without a run it is unknown whose trials to stop
            return 0, limits, ""
        try:
            ended = self._connections.end(self._run, stop)
        except PoolError as error:
            return 0, replace(limits, paused=stop.reason), str(error)
        if ended:
            self._progress(f"removed {ended} job(s): {stop.reason}")
            limits = replace(limits, paused=stop.reason)
        return ended, limits, ""

    def _drain(
        self, going: Sequence[Removal], nodes: Sequence[Node]
    ) -> tuple[tuple[Removal, ...], list[str]]:
        """Ask nodes to drain. Return those that agreed, and all refusals."""
        machines = [node.machine for node in nodes if node.machine]
        refused = draining.drain_all(machines, going, self._connections.drain)
        asked = tuple(removal for removal in going if removal.instance not in refused)
        for removal in asked:
            self._progress(f"draining {removal.instance}: {removal.reason}")
        return asked, list(refused.values())

    def _terminate(self, decision: Decision, living: Sequence[Instance]) -> str:
        reasons = {removal.instance: removal.reason for removal in decision.terminate}
        if not reasons:
            return ""
        try:
            down.terminate(self._aws, [instance for instance in living if instance.id in reasons])
        except FleetError as error:
            return str(error)
        for name, reason in reasons.items():
            self._progress(f"terminated {name}: {reason}")
        return ""

    def _launch(
        self,
        decision: Decision,
        candidates: Sequence[Candidate],
        living: Sequence[Instance],
        now: datetime,
    ) -> tuple[list[str], str]:
        """Launch nodes. Return their ids, and errors that prevented some, or an empty text.

        If nodes are missing, the next launch follows after a pause.
        """
        if not decision.launch:
            return [], ""
        prepared, self._prepared = self._prepared, None  # not kept after a failed launch
        aws, fleet, count = self._aws, self._fleet, decision.launch
        try:
            if prepared is None:  # about 20 calls to AWS
                assert self._chosen is not None, "a launch has candidates"
                chosen, given = self._chosen.candidates, self._connections.inputs(aws, fleet)
                prepared = up.prepare(aws, fleet, given, chosen, self._run, everywhere=False)
            got = launch.launch(
                aws,
                fleet,
                prepared,
                candidates,
                count,
                self._run,
                self._progress,
                now=now,
                least=decision.least,
                unlisted=living,
            )
        except (TrialfleetError, OSError) as error:
            trouble = f"no node was launched: {' '.join(str(error).split())}"
            self._capacity.hold(now, trouble)
            self._progress(trouble)
            return [], trouble
        self._watch.add_launched(got.instances)
        lasting = [str(one) for one in got.refusals if one.is_error]
        self._prepared = None if lasting else prepared
        if len(got.instances) >= count:
            self._capacity.reset()
        else:
            whys = "; ".join(dict.fromkeys([*lasting, *map(str, got.refusals[-1:])]))
            held = f"AWS launched {len(got.instances)} of {count} nodes"
            self._capacity.hold(now, ": ".join(filter(None, (held, whys))))
        return [instance.id for instance in got.instances], "; ".join(lasting)
