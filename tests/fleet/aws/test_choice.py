"""The candidates for a node: order, ceilings, caps, and the reasons if none is possible."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fleet.mock_aws import moto_account
from tests.fleet.mock_aws.moto_account import AWAY, HOME, Account
from trialfleet.errors import FleetError, InputError
from trialfleet.infra.fleet.choice import candidates as choice
from trialfleet.infra.fleet.choice import instance_types, prices
from trialfleet.infra.fleet.spec.machines import Candidate

IMAGES = {HOME: moto_account.IMAGE, AWAY: moto_account.IMAGE}
SPOT = {
    HOME: {
        ("g5.xlarge", "eu-west-1a"): 0.50,
        ("g5.xlarge", "eu-west-1b"): 0.40,
        ("g5.12xlarge", "eu-west-1a"): 1.20,
    },
    AWAY: {("g5.xlarge", "us-east-1a"): 0.40},
}


@contextmanager
def spot_costs(spot: Mapping[str, Mapping[tuple[str, str], float]] = SPOT) -> Iterator[None]:
    def answer(_: Any, aws_region: str, types: Any) -> Mapping[tuple[str, str], float]:
        wanted = set(types)
        return {pair: usd for pair, usd in spot[aws_region].items() if pair[0] in wanted}

    with mock.patch.object(prices, "spot_prices", answer):
        yield


def chosen(cloud: Account, **changes: Any) -> list[Candidate]:
    kinds = {"instance_types": ["g5.xlarge", "g5.12xlarge"], **changes}
    with spot_costs():
        return choice.candidates(cloud.aws, moto_account.fleet(**kinds))


def brief(candidates: list[Candidate]) -> list[tuple[str, str, str, float]]:
    return [(one.type.name, one.zone, one.lifecycle, one.price) for one in candidates]


def test_candidates_are_ordered_by_price_per_gpu(cloud: Account) -> None:
    assert brief(chosen(cloud)) == [
        ("g5.12xlarge", "eu-west-1a", "spot", 1.20),
        ("g5.xlarge", "eu-west-1b", "spot", 0.40),
        ("g5.xlarge", "eu-west-1a", "spot", 0.50),
    ]


def test_of_equal_prices_the_first_region_comes_first(cloud: Account) -> None:
    kinds = {"instance_types": ["g5.xlarge"], "ami": IMAGES}
    for regions in ([HOME, AWAY], [AWAY, HOME]):
        found = chosen(cloud, aws_regions=regions, **kinds)
        assert [one.aws_region for one in found if one.price == 0.40] == regions


@pytest.mark.parametrize("operation", ["DescribeInstanceTypes", "DescribeInstanceTypeOfferings"])
def test_the_trouble_of_a_region_costs_only_its_own_candidates(
    cloud: Account, operation: str
) -> None:
    cloud.faults.refuse(operation, "InternalError", aws_region=AWAY)
    fleet = moto_account.fleet(aws_regions=[HOME, AWAY], ami=IMAGES, instance_types=["g5.xlarge"])
    told: list[str] = []
    with spot_costs():
        found = choice.candidates(cloud.aws, fleet, told.append)
        assert {one.aws_region for one in found} == {HOME}
        (line,) = told
        assert AWAY in line
        cloud.faults.refuse(operation, "InternalError")
        with pytest.raises(FleetError, match=HOME):
            choice.candidates(cloud.aws, fleet)


def test_on_demand_is_offered_in_every_zone_at_the_tables_price(cloud: Account) -> None:
    found = chosen(cloud, spot={"share": 0}, instance_types=["g5.xlarge"])
    assert brief(found) == [
        ("g5.xlarge", f"eu-west-1{letter}", "on-demand", 1.123) for letter in "abc"
    ]


def test_a_mixed_fleet_has_spot_and_on_demand_candidates(cloud: Account) -> None:
    found = chosen(cloud, spot={"share": 0.5}, instance_types=["g5.xlarge"])
    assert [one.lifecycle for one in found] == ["spot"] * 2 + ["on-demand"] * 3


def test_zones_that_are_not_the_fleets_are_left_out(cloud: Account) -> None:
    found = chosen(cloud, zones=["eu-west-1b"], spot={"share": 0.5})
    assert {one.zone for one in found} == {"eu-west-1b"}


def test_spot_over_the_ceiling_is_dropped(cloud: Account) -> None:
    found = chosen(cloud, spot={"ceiling": 0.45})
    assert brief(found) == [("g5.xlarge", "eu-west-1b", "spot", 0.40)]


def test_the_ceiling_is_for_spot_alone(cloud: Account) -> None:
    found = chosen(cloud, instance_types=["g5.xlarge"], spot={"ceiling": 0.45, "share": 0.5})
    assert [one.price for one in found] == [0.40, 1.123, 1.123, 1.123]


def test_an_instance_over_the_cap_is_dropped(cloud: Account) -> None:
    found = chosen(cloud, price_cap={"hour": 1.0}, spot={"share": 0.5})
    assert [one.price for one in found] == [0.40, 0.50]


def test_the_reason_against_each_candidate_is_shown_if_none_is_left(cloud: Account) -> None:
    cap = {"spot": {"ceiling": 0.1, "share": 0.9}, "price_cap": {"hour": 1.0}}
    with pytest.raises(FleetError) as error:
        chosen(cloud, instance_types=["g5.xlarge"], **cap)
    assert str(error.value).splitlines() == [
        "no node can be started; the fleet's choices, and why each is impossible:",
        "  g5.xlarge spot in eu-west-1a: costs 0.5 USD/h, over spot.ceiling, which is 0.1",
        "  g5.xlarge spot in eu-west-1b: costs 0.4 USD/h, over spot.ceiling, which is 0.1",
        "  g5.xlarge spot in eu-west-1c: AWS lists no spot price",
        "  g5.xlarge on-demand in eu-west-1: costs 1.123 USD/h, over price_cap.hour, which is 1",
    ]


def test_a_long_list_of_reasons_is_cut(cloud: Account) -> None:
    kinds = [f"g5.{size}xlarge" for size in (2, 4, 8, 16, 24)]
    with mock.patch.object(choice, "MOST_REASONS", 3), pytest.raises(FleetError) as error:
        chosen(cloud, instance_types=kinds)
    lines = str(error.value).splitlines()
    zones = "eu-west-1a, eu-west-1b, eu-west-1c"
    assert lines[1] == f"  g5.16xlarge spot in {zones}: AWS lists no spot price"
    assert lines[4:] == ["  … and 2 more"]


def test_a_type_that_no_zone_offers_is_reported(cloud: Account) -> None:
    with pytest.raises(FleetError, match=r"no p4d\.24xlarge is offered in eu-west-1a"):
        chosen(cloud, instance_types=["p4d.24xlarge"], zones=["eu-west-1a"])


def test_an_unknown_type_is_an_input_error(cloud: Account) -> None:
    with pytest.raises(InputError, match="types not offered in eu-west-1: g55"):
        chosen(cloud, instance_types=["g55.xlarge"])


def test_a_price_that_is_in_no_table_is_requested_from_aws(cloud: Account) -> None:
    def answer(_: Any, aws_region: str, instance_type: str) -> float | None:
        return 0.107 if (aws_region, instance_type) == (HOME, "m5.large") else None

    with mock.patch.object(prices, "ask", answer):
        found = chosen(cloud, instance_types=["m5.large"], spot={"share": 0})
    assert {one.price for one in found} == {0.107}


def test_a_type_without_a_known_price_is_left_out(cloud: Account) -> None:
    kinds = ["m5.large", "g5.xlarge"]  # moto has no Pricing API
    told: list[str] = []
    some = moto_account.fleet(instance_types=kinds, spot={"share": 0})
    found = choice.candidates(cloud.aws, some, told.append)
    assert {one.type.name for one in found} == {"g5.xlarge"}
    (line,) = told
    assert line.startswith(
        "no on-demand node starts in eu-west-1 of types without a known price (m5.large): "
        "Pricing (GetProducts): "
    )
    with pytest.raises(FleetError, match="pricing:GetProducts"):
        chosen(cloud, instance_types=["m5.large"], spot={"share": 0})


def test_prices_that_cannot_be_kept_are_not_taken_for_a_refusal_of_aws(cloud: Account) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(prices.cache_file()))
    with (
        mock.patch.object(prices, "refresh", side_effect=full),
        pytest.raises(FleetError) as error,
    ):
        chosen(cloud, instance_types=["m5.large"], spot={"share": 0})
    assert "without a known price (m5.large): [Errno 28] No space left" in str(error.value)


def test_a_type_without_a_price_in_another_partition_says_where_to_state_it(
    cloud: Account,
) -> None:
    offered = {"m5.large": ["us-gov-west-1a"]}  # moto offers nothing there
    where = {"aws_regions": ["us-gov-west-1"], "instance_types": [*offered], "spot": {"share": 0}}
    with (
        mock.patch.object(instance_types, "zones", return_value=offered),
        pytest.raises(FleetError) as error,
    ):
        chosen(cloud, **where)
    assert "AWS has no on-demand prices in USD for accounts with us-gov-west-1" in str(error.value)
    assert "pricing:GetProducts" not in str(error.value)


def test_a_fleet_of_spot_alone_asks_for_no_other_price(cloud: Account) -> None:
    with mock.patch.object(prices, "refresh", side_effect=AssertionError("asked")):
        assert chosen(cloud)


@given(st.lists(st.tuples(st.integers(1, 8), st.floats(0.01, 99)), min_size=2, max_size=9))
def test_the_order_depends_on_nothing_but_the_candidates(
    offers: list[tuple[int, float]],
) -> None:
    fleet, way = moto_account.fleet(), moto_account.candidate()
    all_ways = [
        replace(way, type=replace(way.type, name=f"g5.x{i}"), price=price, speed=speed)
        for i, (speed, price) in enumerate(offers)
    ]
    order = choice.order(fleet)
    ordered, backwards = sorted(all_ways, key=order), all_ways[::-1]
    assert ordered == sorted(backwards, key=order)
    assert [one.cost for one in ordered] == sorted(one.cost for one in all_ways)
