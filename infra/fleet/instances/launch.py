"""Getting nodes: candidates in order, the next where AWS has none of one.

A request can be made twice: by a run of `up` that was killed after it asked, and by the next one
to which AWS doesn't list the new instance yet. So a request has a name that depends on what it is
for and on what AWS listed before it, and goes by that name as ClientToken and as tag: asked again
within the same ten minutes, AWS answers with the instances that it made the first time.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from botocore.exceptions import ClientError

from trialfleet.infra.fleet.aws import launch_template, retries, tags
from trialfleet.infra.fleet.aws.clients import Aws, asking, code_of, message_of
from trialfleet.infra.fleet.aws.launch_template import Template
from trialfleet.infra.fleet.aws.network import RegionNetwork
from trialfleet.infra.fleet.instances import inventory
from trialfleet.infra.fleet.spec import names
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.infra.fleet.spec.machines import Candidate, Instance, Lifecycle
from trialfleet.infra.fleet.spec.price_cap import nodes_within

Progress = Callable[[str], None]
WINDOW = timedelta(minutes=10)  # a request's name is good for so long
TWICE = "IdempotentParameterMismatch"
ENDED = "IdempotentInstanceTerminated"
# What AWS says where it can't, while another type or zone may do.
UNAVAILABLE = {
    "InsufficientInstanceCapacity": "no capacity",
    "InsufficientCapacity": "no capacity",
    "UnfulfillableCapacity": "no capacity",
    "InsufficientFreeAddressesInSubnet": "the subnet has no address left",
    "SpotMaxPriceTooLow": "spot costs more than the ceiling",
    "MaxSpotInstanceCountExceeded": "the account's limit of spot instances",
    "VcpuLimitExceeded": "the account's vCPU limit",
    "InstanceLimitExceeded": "the account's limit of instances",
    "Unsupported": "not offered there",
    TWICE: "an earlier request of this name went wrong",
    ENDED: "what an earlier request of this name made has ended",
}
JUST_MADE = {
    "InvalidGroup.NotFound",
    "InvalidLaunchTemplateId.NotFound",
    "InvalidLaunchTemplateId.VersionNotFound",
    "InvalidPlacementGroup.Unknown",
}
FLEETING = {
    UNAVAILABLE[code]
    for code in ("InsufficientCapacity", "InsufficientFreeAddressesInSubnet", TWICE, ENDED)
}


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What nodes are launched with, as AWS has it.

    Attributes:
        profile: the instance profile.
        places: the network, by AWS region.
        templates: the launch template, by AWS region and `launch_template.kind_of`.
    """

    profile: str
    places: dict[str, RegionNetwork]
    templates: dict[tuple[str, str], Template]


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A candidate that gave no node, and why."""

    candidate: Candidate
    code: str
    reason: str

    @property
    def passes(self) -> bool:
        """True when asking later may help; limits and prices stay as they are."""
        return UNAVAILABLE.get(self.code) in FLEETING

    def __str__(self) -> str:
        return f"{label(self.candidate)}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class Launched:
    """What a launch came to."""

    instances: list[Instance] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)


def label(candidate: Candidate) -> str:
    """Return a candidate in words."""
    price = f"{candidate.price:.3f} USD/h"
    return f"{candidate.type.name} {candidate.lifecycle} in {candidate.zone} ({price})"


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
) -> Launched:
    """Ask for `count` nodes more, of the candidates in their order, within the cap per hour.

    Those of gangs all lie in one zone, because a placement group can't lie in two, and what ranks
    send each other across zones is slow and costs. The zone is that of the first node for as long
    as one lives. A zone without room for `least` nodes is left for another, as long
    as nothing was launched there: fewer would be of no use.

    Returns:
        The instances that AWS started, which may be fewer, and who refused.

    Raises:
        FleetError: AWS refuses for a reason that no other candidate would mend.
    """
    known = inventory.instances(aws, fleet, gone=True)
    window = (now or datetime.now(UTC)).timestamp() // WINDOW.total_seconds()
    order = _Order(aws, fleet, prepared, run, known, window)
    missing = _split(fleet, order.living, count)
    launched = Launched()
    for candidate in candidates:
        while missing[candidate.lifecycle] > 0 and order.reaches(candidate):
            lacking = max(1, least - len(launched.instances))
            answer = order.ask(candidate, missing[candidate.lifecycle], lacking)
            if isinstance(answer, Refusal):
                progress(str(answer))
                launched.refusals.append(answer)
                break
            missing[candidate.lifecycle] -= len(answer)
            launched.instances.extend(answer)
            progress(f"{label(candidate)}: launched {', '.join(i.id for i in answer)}")
    if candidates and not (launched.instances or launched.refusals) and any(missing.values()):
        reason = f"nodes of a gang lie in one zone, and those that there are lie in {order.zone}"
        refusal = Refusal(candidate=candidates[0], code="zone", reason=reason)
        launched.refusals.append(refusal)
    return launched


def _split(fleet: Fleet, living: Sequence[Instance], count: int) -> dict[Lifecycle, int]:
    """Share new nodes out, so that all together come nearest to the fleet's share of spot."""
    all_spot = math.ceil(fleet.spot.share * (len(living) + count) - 1e-9)
    have = sum(instance.lifecycle == "spot" for instance in living)
    spot = min(max(all_spot - have, 0), count)
    return {"spot": spot, "on-demand": count - spot}


@dataclass
class _Order:
    """One launch: what there was before it and what it got (`known`), in which window of time."""

    aws: Aws
    fleet: Fleet
    prepared: Prepared
    run: str
    known: list[Instance]
    window: float

    @property
    def living(self) -> list[Instance]:
        return [instance for instance in self.known if instance.alive]

    @property
    def zone(self) -> str | None:
        """Where the nodes of gangs lie: the zone of the oldest; None while there is none."""
        running = [one for one in self.known if one.state in {"pending", "running"}]
        return running[0].zone if running and self.fleet.gangs else None

    def reaches(self, candidate: Candidate) -> bool:
        """Tell whether a candidate's nodes would lie where those lie that there are."""
        return self.zone in {None, candidate.zone}

    def ask(self, candidate: Candidate, wanted: int, least: int = 1) -> list[Instance] | Refusal:
        """Ask for at most `wanted` of a candidate; AWS gives at least `least` or refuses."""
        place = self.prepared.places[candidate.aws_region]
        if candidate.zone not in place.subnets:
            return Refusal(candidate=candidate, code="subnet", reason="no subnet in this zone")
        least = min(least, wanted)
        affordable = self._affordable(candidate, wanted)
        if affordable < least:
            reason = f"would exceed the cap of {self.fleet.price_cap.hour} USD per hour"
            return Refusal(candidate=candidate, code="cap", reason=reason)
        name = self._name(candidate)
        request = self._request(candidate, affordable, least, name)
        with asking(f"{affordable} x {label(candidate)}"):
            try:
                made = self._run_instances(candidate.aws_region, request)
            except ClientError as error:
                code = code_of(error)
                if code not in UNAVAILABLE:
                    raise
                made = self._listed(name) if code == TWICE else []
                if not made:
                    reason = f"{UNAVAILABLE[code]} ({code}: {message_of(error)})"
                    return Refusal(candidate=candidate, code=code, reason=reason)
        self.known += made
        return made

    def _affordable(self, candidate: Candidate, wanted: int) -> int:
        used = sum(one.price_or(candidate.price) for one in self.living)
        return min(wanted, nodes_within(self.fleet.price_cap.hour, used, candidate.price))

    def _run_instances(self, aws_region: str, request: dict[str, Any]) -> list[Instance]:
        ec2 = self.aws.ec2(aws_region)
        ec2.meta.events.register_first("needs-retry.ec2.RunInstances", _take_as_answer, "capacity")
        answer = retries.patiently(lambda: ec2.run_instances(**request), _is_new, retries.LATER)
        return [inventory.described(instance, aws_region) for instance in answer["Instances"]]

    def _request(self, candidate: Candidate, count: int, least: int, name: str) -> dict[str, Any]:
        template = self._template(candidate)
        subnet = self.prepared.places[candidate.aws_region].subnets[candidate.zone]
        resource_name = names.resource_name(self.fleet.called)
        # The end of the first lease is the same for the same request: counted from the window's.
        end = datetime.fromtimestamp((self.window + 1) * WINDOW.total_seconds(), UTC)
        tagged = {
            "Name": resource_name,
            names.EXPIRES_TAG: names.at(end + timedelta(minutes=self.fleet.lease_minutes)),
            names.PRICE_TAG: f"{candidate.price:.6f}".rstrip("0").rstrip("."),
            names.LAUNCH_TAG: name,
            **({names.RUN_TAG: self.run} if self.run else {}),
        }
        request: dict[str, Any] = {
            "LaunchTemplate": {"LaunchTemplateId": template.id, "Version": template.version},
            "InstanceType": candidate.type.name,
            **launch_template.in_subnet(template.interface, subnet),
            "IamInstanceProfile": {"Name": self.prepared.profile},
            "MinCount": least,
            "MaxCount": count,
            "ClientToken": name,
            "TagSpecifications": [
                tags.specification(self.fleet, kind, tagged) for kind in ("instance", "volume")
            ],
        }
        if candidate.lifecycle == "spot":
            options = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
            if self.fleet.spot.ceiling is not None:
                options["MaxPrice"] = f"{self.fleet.spot.ceiling:f}"
            request["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": options}
        if self.fleet.clusters and candidate.type.clusters:
            request["Placement"] = {"GroupName": resource_name}
        return request

    def _template(self, candidate: Candidate) -> Template:
        type_ = candidate.type
        kind = launch_template.kind_of(self.fleet, type_.architecture, efa=type_.efa)
        return self.prepared.templates[candidate.aws_region, kind]

    def _name(self, candidate: Candidate) -> str:
        """Name a request; AWS keeps the name of one that it refused, and takes no other by it."""
        before = sorted(instance.id for instance in self.known)
        kind = (candidate.type.name, candidate.zone, candidate.lifecycle, f"{candidate.price:.6f}")
        version = self._template(candidate).version
        parts = [self.fleet.called, f"{self.window:.0f}", self.run, version, *kind, *before]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def _listed(self, name: str) -> list[Instance]:
        """Wait for what an earlier request of this name made; AWS lists it within seconds."""
        made: list[Instance] = []

        def there() -> bool:
            found = inventory.instances(self.aws, self.fleet)
            made.extend(instance for instance in found if instance.launch == name)
            return bool(made)

        retries.until(there)
        return made


def _take_as_answer(response: Any, **_: Any) -> None:
    """Let a lack of capacity be reported at once.

    AWS gives it status 500, a fault of its own, which botocore would ask about again for minutes;
    the next candidate is the better answer.
    """
    if response and response[1].get("Error", {}).get("Code") in UNAVAILABLE:
        response[0].status_code = 400


def _is_new(error: ClientError) -> bool:
    """True where AWS doesn't know everywhere yet what was made a moment ago."""
    if code_of(error) == "InvalidParameterValue":
        return "IAM Instance Profile" in message_of(error)
    return code_of(error) in JUST_MADE
