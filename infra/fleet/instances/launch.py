"""Launches of EC2 nodes: which requests to send to EC2 Fleet, and what to do after a refusal."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from trialfleet.errors import FleetError, InputError
from trialfleet.infra.fleet.aws import retries
from trialfleet.infra.fleet.aws.clients import Aws, asking, error_code, explain_error
from trialfleet.infra.fleet.choice.candidates import worth_most
from trialfleet.infra.fleet.instances import inventory, request_names
from trialfleet.infra.fleet.instances.fleet_request import Answer, Failure, FleetRequest, Prepared
from trialfleet.infra.fleet.spec import names
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.infra.fleet.spec.limits import affordable_nodes
from trialfleet.infra.fleet.spec.machines import Candidate, Instance, Lifecycle, Pool

if TYPE_CHECKING:
    from types_boto3_ec2.type_defs import TagTypeDef

Progress = Callable[[str], None]
WINDOW = timedelta(minutes=10)  # period in which a repeated request has the same name
TWICE = "IdempotentParameterMismatch"
# AWS's codes for a pool without room or a limit; another type or zone may work.
UNAVAILABLE = {
    "InsufficientInstanceCapacity": "no capacity",
    "InsufficientCapacity": "no capacity",
    "UnfulfillableCapacity": "no capacity",
    "InsufficientFreeAddressesInSubnet": "the subnet has no free address",
    "SpotMaxPriceTooLow": "spot costs more than the ceiling",
    "MaxSpotInstanceCountExceeded": "the account's limit of spot instances",
    "MaxFleetCountExceeded": "the account's limit of EC2 Fleets",
    "VcpuLimitExceeded": "the account's vCPU limit",
    "InstanceLimitExceeded": "the account's limit of instances",
    "Unsupported": "not offered there",
    TWICE: "an earlier request of this name failed",
}
# AWS's codes for a temporary failure, which says nothing about the pool.
BUSY = {"InternalError", "RequestLimitExceeded", "ServiceUnavailable", "Unavailable"}
NO_REASON = "NoReason"
TEMPORARY = {NO_REASON, TWICE, "InsufficientFreeAddressesInSubnet", *BUSY} | {
    code for code, words in UNAVAILABLE.items() if words == "no capacity"
}
JUST_MADE = {
    "InvalidGroup.NotFound",
    "InvalidLaunchTemplateId.NotFound",
    "InvalidLaunchTemplateId.VersionNotFound",
    "InvalidPlacementGroup.Unknown",
}


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Capacity pools that AWS or the fleet's limits refused, and the reason.

    `code` is AWS's error code, or empty. `is_error` means that the cause is not in the capacity
    pools, but in a permission, for example, or in the request itself.
    """

    pools: str
    reason: str
    code: str = ""
    is_error: bool = False

    @property
    def is_temporary(self) -> bool:
        """True if a later request may succeed. For a quota or a price, for example, it is False."""
        return self.code in TEMPORARY

    def __str__(self) -> str:
        return f"{self.pools}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class Launched:
    """The new instances of a launch, and the refusals by AWS or by the fleet's limits."""

    instances: list[Instance] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)


def launch(
    aws: Aws,
    fleet: Fleet,
    prepared: Prepared,
    candidates: Sequence[Candidate],
    count: int,
    run: str,
    progress: Progress,
    *,
    now: datetime | None = None,
    least: int = 1,
    unlisted: Sequence[Instance] = (),
) -> Launched:
    """Request `count` more nodes, the best candidates first. Return new nodes and refusals.

    AWS may start fewer nodes. The fleet's cap on costs per hour is kept. `unlisted` has nodes that
    AWS may not list yet. They count as the fleet's nodes. The call waits up to two minutes until
    AWS knows new resources, such as launch templates.

    The nodes of a gang (a training over several nodes) are in one zone, because traffic between
    zones is slow and costs money. If the fleet has nodes, the zone of the oldest node is taken. A
    gang can't use fewer than `least` nodes, so a zone with less room is skipped. The nodes of a
    gang are all spot or all on-demand, because these two need separate requests.

    FleetError if no node was launched, because every request was an error, or because AWS did not
    answer one. After the latter no other candidate is requested, because AWS may have started
    nodes.
    """
    known = inventory.instances(aws, fleet, gone=True)
    listed = {one.id for one in known}
    known += [one for one in unlisted if one.id not in listed]
    order = _Order(aws, fleet, prepared, run, known, now or datetime.now(UTC))
    launched = Launched()
    for lifecycle, wanted in _split(fleet, order.living_instances, count, least).items():
        pools = [one for one in candidates if one.lifecycle == lifecycle]
        reached = [one for one in pools if order.can_launch_in(one)]
        missing = wanted
        if wanted and not reached:
            launched.refusals.append(order.out_of_reach(lifecycle, pools, wanted))
        for group in requests(reached, one_type=fleet.gangs is not None):
            while missing > 0 and (left := [one for one in group if order.can_launch_in(one)]):
                try:
                    got = order.ask(left, missing, max(1, least - (wanted - missing)))
                except FleetError as error:
                    if not launched.instances:  # the caller must get the nodes that came
                        raise
                    launched.refusals.append(Refusal(pools=lifecycle, reason=str(error)))
                    return launched
                unpriced = order.set_prices(left, got.instances)
                results = (*_launched_lines(got.instances), *map(str, got.refusals), unpriced)
                for line in filter(None, results):
                    progress(line)
                launched.instances.extend(got.instances)
                launched.refusals.extend(got.refusals)
                missing -= len(got.instances)
                if not got.instances:
                    break
    if launched.refusals and not launched.instances and all(r.is_error for r in launched.refusals):
        raise FleetError(str(launched.refusals[0]))
    return launched


def label(pools: Sequence[Candidate]) -> str:
    """Return a text that names capacity pools of one type, all spot or all on-demand."""
    first, zones = pools[0], ", ".join(one.zone for one in pools)
    prices = sorted({f"{one.price:.3f}" for one in pools})
    price = prices[0] if len(prices) == 1 else f"{prices[0]} to {prices[-1]}"
    return f"{first.type.name} {first.lifecycle} in {zones} ({price} USD/h)"


def _launched_lines(instances: Sequence[Instance]) -> list[str]:
    found: dict[str, list[str]] = defaultdict(list)
    for one in instances:
        pool = f"{one.type} {one.lifecycle} in {one.zone} ({one.price:.3f} USD/h)"
        found[pool].append(one.id)
    return [f"{pool}: launched {', '.join(ids)}" for pool, ids in found.items()]


def _split(
    fleet: Fleet, living: Sequence[Instance], count: int, least: int
) -> dict[Lifecycle, int]:
    """Divide `count` new nodes into spot and on-demand ones, by the fleet's share of spot nodes.

    For gangs, each of the two numbers is 0 or at least `least`.
    """
    have = sum(instance.lifecycle == "spot" for instance in living)
    spot = min(max(fleet.spot.nodes(len(living) + count) - have, 0), count)
    if fleet.gangs and count:
        gangs = max(1, count // least)
        of_spot = math.floor(gangs * spot / count + 0.5)
        spot = count if of_spot == gangs else of_spot * least
    return {"spot": spot, "on-demand": count - spot}


def requests(pools: Sequence[Candidate], *, one_type: bool) -> Iterator[list[Candidate]]:
    """Divide `pools` into requests, each for one AWS region. The best request comes first.

    With `one_type` each request has a single instance type, because a gang is only as fast as its
    slowest node.
    """
    first = set(worth_most(pools))
    groups: dict[tuple[bool, str, str], list[Candidate]] = defaultdict(list)
    for one in pools:
        own_type = one.type.name if one_type else ""
        groups[one not in first, one.aws_region, own_type].append(one)
    yield from sorted(groups.values(), key=lambda group: group[0] not in first)


@dataclass
class _Order:
    """The state of one launch.

    `known` has the fleet's instances, including new ones. `pauses` are those that are left until
    AWS must know all new resources.
    """

    aws: Aws
    fleet: Fleet
    prepared: Prepared
    run: str
    known: list[Instance]
    now: datetime
    refused: set[Pool] = field(default_factory=set)
    pauses: Iterator[float] = field(default_factory=lambda: iter(retries.LATER))

    @property
    def living_instances(self) -> list[Instance]:
        return [instance for instance in self.known if instance.is_alive]

    @property
    def zone(self) -> str | None:
        """The zone in which a gang's new nodes must be, or None if any zone will do."""
        running = [one for one in self.known if one.state in {"pending", "running"}]
        return running[0].zone if running and self.fleet.gangs else None

    def can_launch_in(self, candidate: Candidate) -> bool:
        return self.zone in {None, candidate.zone} and candidate.pool not in self.refused

    def out_of_reach(self, lifecycle: str, pools: Sequence[Candidate], count: int) -> Refusal:
        if pools:
            reason = f"a gang's nodes must be in one zone, and the existing ones are in {self.zone}"
            return Refusal(pools=label(pools[:1]), reason=reason)
        nodes = "node" if count == 1 else "nodes"
        reason = f"no instance type is left for {count} {nodes}: see `trialfleet fleet plan`"
        return Refusal(pools=lifecycle, reason=reason)

    def ask(self, pools: Sequence[Candidate], wanted: int, least: int) -> Launched:
        """Request at most `wanted` nodes of `pools`; none if fewer than `least` are possible.

        FleetError if AWS may have started nodes, but doesn't say so.
        """
        usable = [one for one in pools if self.prepared.subnet(one)]
        if not usable:
            place = self.prepared.places.get(pools[0].aws_region)
            none = "no subnet in this zone" if len(pools) == 1 else "no subnet in these zones"
            reason = (place and place.why) or none
            return Launched(refusals=_group_refusals(pools, reason))
        least = min(least, wanted)
        cap, living = self.fleet.price_cap.hour, self.living_instances
        affordable = [
            affordable_nodes(cap, sum(node.price_or(one.price) for node in living), one.price)
            for one in usable
        ]
        first = next((number for number in affordable if number >= least), 0)
        if not first:
            reason = f"would exceed the cap of {cap} USD per hour"
            return Launched(refusals=_group_refusals(usable, reason))
        count = min(wanted, first)
        paid = [one for one, number in zip(usable, affordable, strict=True) if number >= count]
        what = f"{count} x {label(paid[:1])}"
        try:
            for one in paid:
                self.prepared.template(self.fleet, one)
        except (FleetError, InputError) as error:
            return Launched(refusals=[Refusal(pools=what, reason=str(error), is_error=True)])
        with asking(what):
            name, answer = self._send_until_known(paid, count, least)
            if not answer.made and any(map(_is_unanswered, answer.failures)):
                raise _client_error(answer.failures[0])
        if not answer.made and answer.failures and not any(map(_word, answer.failures)):
            refusal = _client_error(answer.failures[0])
            reason, code = explain_error(refusal), error_code(refusal)
            return Launched(refusals=[Refusal(pools=what, reason=reason, code=code, is_error=True)])
        instances = [self._new_instance(id_, pool, name) for id_, pool in answer.made.items()]
        self.known += instances
        self.refused |= {one.pool.pool for one in answer.failures if one.pool}
        return Launched(instances=instances, refusals=list(_refusals(answer, paid)))

    def set_prices(self, pools: Sequence[Candidate], instances: Sequence[Instance]) -> str:
        """Write the right price into the tags of new nodes. Return an error, or an empty text."""
        highest, by_price = max(one.price for one in pools), defaultdict[float, list[str]](list)
        for one in instances:
            if one.price is not None and one.price != highest:
                by_price[one.price].append(one.id)
        ec2 = self.aws.ec2(pools[0].aws_region)
        try:
            for price, ids in by_price.items():
                tag: TagTypeDef = {"Key": names.PRICE_TAG, "Value": names.price(price)}
                tell = partial(ec2.create_tags, Resources=ids, Tags=[tag])
                with asking(f"the price of {', '.join(ids)}"):
                    retries.retry(tell, "InvalidInstanceID.NotFound")
        except FleetError as error:
            return str(error)
        return ""

    def _send_until_known(
        self, pools: Sequence[Candidate], count: int, least: int
    ) -> tuple[str, Answer]:
        """Repeat a request until AWS knows all new resources. Return the last name and answer.

        All requests of a launch together wait for two minutes at most.
        """
        while True:
            name = self._name(pools)
            request = FleetRequest(
                name=name,
                pools=pools,
                count=count,
                least=least,
                expires=self._lease_end,
                run=self.run,
            )
            answer = self._answer(request)
            if not answer.made and not any(map(_is_unanswered, answer.failures)):
                request_names.note_refused(self.fleet.full_name, self._window_number, name)
            is_new = not answer.made and any(map(_is_new, answer.failures))
            pause = next(self.pauses, None) if is_new else None
            if pause is None:
                return name, answer
            retries.sleep(pause)

    def _answer(self, request: FleetRequest) -> Answer:
        """Send a request, and return AWS's answer.

        If a request of this name was sent before, the answer has the instances of that request.
        """
        answer = request.send(self.aws, self.fleet, self.prepared)
        earlier = any(one.code == TWICE for one in answer.failures)
        if earlier or not (answer.made or answer.failures):
            by_pool = {one.pool: one for one in request.pools}
            listed = self._wait_until_listed(request)
            made = {one.id: by_pool.get(one.pool, request.pools[0]) for one in listed}
            return Answer(made=made, failures=() if made else answer.failures)
        return answer

    @property
    def _lease_end(self) -> str:
        """The end of new nodes' first lease.

        It stays the same for ten minutes, because repeated requests must be equal.
        """
        end = datetime.fromtimestamp((self._window_number + 1) * WINDOW.total_seconds(), UTC)
        return names.time_text(end + timedelta(minutes=self.fleet.lease_minutes))

    @property
    def _window_number(self) -> int:
        return int(self.now.timestamp() // WINDOW.total_seconds())

    def _name(self, pools: Sequence[Candidate]) -> str:
        """Return a request's name. If `fleet up` is killed and runs again, the name is the same."""
        before = sorted(instance.id for instance in self.known)
        kinds = [
            f"{self.prepared.template(self.fleet, one)} {one.pool} {one.price:.6f}" for one in pools
        ]
        parts = [self.fleet.full_name, f"{self._window_number}", self.run, *kinds, *before]
        return request_names.first_unrefused(self.fleet.full_name, self._window_number, parts)

    def _wait_until_listed(self, request: FleetRequest) -> list[Instance]:
        """Return the instances of an earlier request of this name, once AWS lists them.

        AWS may list them one after another. If it started fewer than `count`, the wait lasts until
        it must list all: otherwise they would be bought twice.
        """
        made: list[Instance] = []

        def are_listed() -> bool:
            nonlocal made
            found = inventory.instances(self.aws, self.fleet)
            made = [one for one in found if one.launch == request.name]
            return len(made) >= request.count

        retries.wait_for(are_listed)
        return made

    def _new_instance(self, id_: str, pool: Candidate, name: str) -> Instance:
        return Instance(
            id=id_,
            aws_region=pool.aws_region,
            zone=pool.zone,
            type=pool.type.name,
            lifecycle=pool.lifecycle,
            state="pending",
            address="",
            launched=self.now,
            expires=names.moment(self._lease_end),
            price=pool.price,
            run=self.run,
            launch=name,
        )


def _client_error(failure: Failure) -> ClientError:
    error = {"Error": {"Code": failure.code, "Message": failure.message}}
    return ClientError(error, "CreateFleet")  # type: ignore[arg-type]


def _group_refusals(pools: Sequence[Candidate], reason: str) -> list[Refusal]:
    alike: dict[str, list[Candidate]] = defaultdict(list)
    for one in pools:
        alike[one.type.name].append(one)
    return [Refusal(pools=label(found), reason=reason) for found in alike.values()]


def _word(failure: Failure) -> str:
    busy = "AWS is busy" if failure.pool and failure.code in BUSY else ""
    return UNAVAILABLE.get(failure.code, busy)


def _refusals(answer: Answer, pools: Sequence[Candidate]) -> Iterator[Refusal]:
    """Yield AWS's refusals: one for each type and reason, which may be about several zones."""
    if not (answer.made or answer.failures):
        reason = "AWS launched no node, and gave no reason"
        yield Refusal(pools=label(pools[:1]), code=NO_REASON, reason=reason)
    alike: dict[tuple[str, str, str, str], list[Candidate]] = defaultdict(list)
    for one in answer.failures:
        pool = one.pool or pools[0]
        same = alike[pool.type.name, one.code, one.message, _word(one) or "refused"]
        same += [] if pool in same else [pool]
    for (_, code, message, word), same in alike.items():
        reason = f"{word} ({code}: {message})"
        yield Refusal(pools=label(same), code=code, reason=reason)


def _is_unanswered(failure: Failure) -> bool:
    """Return whether AWS may have started nodes despite `failure`."""
    return failure.pool is None and failure.code in BUSY


def _is_new(failure: Failure) -> bool:
    """Return whether AWS failed because not all of its servers know a new resource yet."""
    if failure.code == "InvalidParameterValue":
        return "IAM Instance Profile" in failure.message
    return failure.code in JUST_MADE
