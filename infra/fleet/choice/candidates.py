"""The candidates for a new node, sorted by their cost of finished work.

A candidate is an instance type in a zone, as spot or on-demand. Finished work is work that no spot
interruption destroys.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from trialfleet.errors import FleetError, join_names
from trialfleet.infra.fleet.aws.clients import Aws
from trialfleet.infra.fleet.choice import instance_types, prices
from trialfleet.infra.fleet.choice.interruption_history import History
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.infra.fleet.spec.limits import affordable_nodes
from trialfleet.infra.fleet.spec.machines import Candidate, InstanceType, Lifecycle

GOOD = 1.5  # pools come first if their work costs at most 1.5 times as much as the cheapest's
Tell = Callable[[str], object]
MOST_REASONS = 20  # shown in an error; with all AWS regions there would be hundreds
MOST_NAMED = 8  # types in a line
PRICELESS = (
    "its price is unknown, and AWS's Pricing API gave none (a request to that API needs the "
    "permission pricing:GetProducts)"
)


def candidates(aws: Aws, fleet: Fleet, tell: Tell = lambda _: None) -> list[Candidate]:
    """List the candidates for a new node, sorted without knowledge of past interruptions.

    `tell` gets an error for each AWS region that does not list all types and prices. FleetError if
    no candidate is left; its message has these errors, and the reason against each type.
    """
    found: list[Candidate] = []
    troubles: list[str] = []
    dropped: dict[tuple[str, str, str], list[str]] = {}  # places by type, lifecycle and reason
    for offer in _all_offers(aws, fleet, troubles.append):
        if reason := _objection(offer, fleet):
            where = offer.zone if offer.lifecycle == "spot" else offer.aws_region
            places = dropped.setdefault((offer.type.name, offer.lifecycle, reason), [])
            if where not in places:
                places.append(where)
        else:
            found.append(offer)
    if not found:
        raise FleetError("; ".join([*troubles, _no_candidate_text(fleet, dropped)]))
    for trouble in troubles:
        tell(trouble)
    return rank_candidates(found, fleet, History())


def rank_candidates(
    candidates: Iterable[Candidate], fleet: Fleet, history: History
) -> list[Candidate]:
    """Sort `candidates` by their cost of finished work, which depends on the `history`."""
    return sorted(history.apply(candidates, fleet.spot.lost_minutes), key=order(fleet))


def worth_most(pools: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates that are requested before the others.

    Their cost of finished work is at most `GOOD` times the lowest cost among `pools`.
    """
    best = min((one.cost for one in pools), default=0.0)
    return [one for one in pools if one.cost <= GOOD * best]


def _all_offers(aws: Aws, fleet: Fleet, tell: Tell) -> list[Candidate]:
    offers: list[Candidate] = []
    known: list[InstanceType] = []
    refusals: list[FleetError] = []
    for aws_region in fleet.aws_regions:
        try:
            types = instance_types.resolve(aws, fleet, aws_region)
            offers += list(_offers(aws, fleet, aws_region, types, tell))
            known += types
        except FleetError as error:
            refusals.append(error)
    if len(refusals) == len(fleet.aws_regions):
        raise refusals[0]
    for refusal in refusals:
        tell(f"{refusal}; no node is launched in that AWS region")
    if not refusals:
        instance_types.refuse_unknown(aws, fleet, known)
    return offers


def _offers(
    aws: Aws, fleet: Fleet, aws_region: str, kinds: Iterable[InstanceType], tell: Tell
) -> Iterator[Candidate]:
    """Yield a candidate for each type, zone and lifecycle in an AWS region.

    An unknown price is NaN.
    """
    types = {kind.name: kind for kind in kinds}
    places = instance_types.zones(aws, aws_region, types, fleet.zones)
    for lifecycle, price_of in _tariffs(aws, fleet, aws_region, types, tell).items():
        for name, zones in places.items():
            for zone in zones:
                price = price_of(name, zone)
                yield Candidate(
                    type=types[name],
                    aws_region=aws_region,
                    zone=zone,
                    lifecycle=lifecycle,
                    price=math.nan if price is None else price,
                )


def _tariffs(
    aws: Aws, fleet: Fleet, aws_region: str, types: Iterable[str], tell: Tell
) -> dict[Lifecycle, Callable[[str, str], float | None]]:
    tariffs: dict[Lifecycle, Callable[[str, str], float | None]] = {}
    if fleet.spot.share > 0:
        spot = prices.spot_prices(aws, aws_region, types)
        tariffs["spot"] = lambda name, zone: spot.get((name, zone))
    if fleet.spot.has_on_demand:
        fixed = _on_demand_prices(aws, aws_region, types, tell)
        tariffs["on-demand"] = lambda name, _: fixed.get(name)
    return tariffs


def _on_demand_prices(
    aws: Aws, aws_region: str, types: Iterable[str], tell: Tell
) -> dict[str, float]:
    """Return the known on-demand prices in USD per hour, by type.

    AWS is asked for missing prices. If they can't be had, `tell` gets the error.
    """
    wanted, known = set(types), prices.table().get(aws_region, {})
    if unknown := wanted - known.keys():
        try:
            prices.refresh(aws, [aws_region], unknown)
        except (FleetError, OSError) as error:
            tell(
                f"no on-demand node starts in {aws_region} of types without a known price "
                f"({join_names(sorted(unknown), MOST_NAMED)}): {error}"
            )
        known = prices.table().get(aws_region, {})
    return {name: known[name] for name in wanted & known.keys()}


def _objection(offer: Candidate, fleet: Fleet) -> str | None:
    ceiling, cap = fleet.spot.ceiling, fleet.price_cap.hour
    if math.isnan(offer.price):
        if offer.lifecycle == "spot":
            return "AWS lists no spot price"
        return prices.why_unavailable(offer.aws_region) or PRICELESS
    if offer.lifecycle == "spot" and ceiling is not None and offer.price > ceiling:
        return f"costs {offer.price:g} USD/h, over spot.ceiling, which is {ceiling:g}"
    if affordable_nodes(cap, 0.0, offer.price) < 1:
        return f"costs {offer.price:g} USD/h, over price_cap.hour, which is {cap:g}"
    return None


def order(fleet: Fleet) -> Callable[[Candidate], tuple[object, ...]]:
    """Return a sort key for candidates. The best has the lowest key, and no two are equal."""
    return lambda one: (
        one.cost,
        one.price,
        one.lifecycle != "spot",
        fleet.aws_regions.index(one.aws_region),
        one.zone,
        one.type.name,
    )


def _no_candidate_text(fleet: Fleet, dropped: Mapping[tuple[str, str, str], list[str]]) -> str:
    if not dropped:
        kinds = ", ".join(fleet.instance_types) or "type that meets `needs`"
        where = ", ".join(fleet.zones or fleet.aws_regions)
        return f"no node can be started: no {kinds} is offered in {where}"
    reasons = [
        f"{name} {lifecycle} in {', '.join(places)}: {reason}"
        for (name, lifecycle, reason), places in dropped.items()
    ]
    more = [f"… and {len(reasons) - MOST_REASONS} more"] if len(reasons) > MOST_REASONS else []
    lines = "\n".join(f"  {line}" for line in [*reasons[:MOST_REASONS], *more])
    return f"no node can be started; the fleet's choices, and why each is impossible:\n{lines}"
