"""Prices: spot from AWS, on-demand from the shipped table or from AWS's Pricing API."""

from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from tests.fleet.mock_aws.moto_account import HOME, Account
from trialfleet.errors import FleetError, InputError
from trialfleet.files import read_json
from trialfleet.infra.fleet.aws.clients import Aws
from trialfleet.infra.fleet.choice import prices

pytestmark = pytest.mark.usefixtures("cache")

TODAY = datetime.now(UTC)


@pytest.fixture
def aws() -> Aws:
    return Aws(boto3.Session("testing", "testing"))


def product(*usd: str, unit: str = "Hrs", term: str = "OnDemand") -> str:
    dimensions = {
        f"D{i}": {"unit": unit, "pricePerUnit": {"USD": each}} for i, each in enumerate(usd)
    }
    return json.dumps({"product": {}, "terms": {term: {"T": {"priceDimensions": dimensions}}}})


def filters(aws_region: str, instance_type: str) -> list[dict[str, str]]:
    fields = {**prices.PLAIN, "regionCode": aws_region, "instanceType": instance_type}
    return [{"Type": "TERM_MATCH", "Field": key, "Value": fields[key]} for key in fields]


def answers(stub: Stubber, instance_type: str, *products: str, aws_region: str = HOME) -> None:
    asked = {"ServiceCode": "AmazonEC2", "Filters": filters(aws_region, instance_type)}
    stub.add_response("get_products", {"PriceList": list(products)}, asked)


def test_the_shipped_table_has_dated_prices_of_gpu_types() -> None:
    shipped = read_json(prices.SHIPPED)["regions"]
    assert "us-east-1" in shipped
    assert "eu-west-1" in shipped
    for known in shipped.values():
        assert date(2025, 1, 1) < date.fromisoformat(known["date"]) < date.today()
        assert all(0.1 < usd < 200 for usd in known["prices"].values())
        assert all(kind.startswith(("g", "p")) and "." in kind for kind in known["prices"])


def test_larger_types_of_a_family_cost_more_in_the_shipped_table() -> None:
    for known in read_json(prices.SHIPPED)["regions"].values():
        for family in ("g4dn", "g5", "g6"):
            sizes = [f"{family}.{size}" for size in ("xlarge", "2xlarge", "4xlarge", "48xlarge")]
            found = [known["prices"][kind] for kind in sizes if kind in known["prices"]]
            assert found == sorted(set(found))


def test_an_on_demand_price_is_that_of_the_table() -> None:
    table = prices.table()
    assert table["us-east-1"]["g5.xlarge"] == 1.006
    assert table["eu-west-1"]["g4dn.xlarge"] == 0.587
    assert "m5.large" not in table["us-east-1"]
    assert "mars-north-1" not in table


def test_a_refreshed_price_wins_and_the_others_stay(aws: Aws) -> None:
    with Stubber(aws.pricing()) as stub:
        answers(stub, "g5.xlarge", product("0.9000000000"))
        path = prices.refresh(aws, [HOME], ["g5.xlarge"])
        answers(stub, "m5.large", product("0.107"))
        prices.refresh(aws, [HOME], ["m5.large"])
    table = prices.table()
    assert table[HOME]["g5.xlarge"] == 0.9
    assert table[HOME]["m5.large"] == 0.107
    assert table[HOME]["g4dn.xlarge"] == 0.587
    assert table["us-east-1"]["g5.xlarge"] == 1.006
    assert path == prices.cache_file()


def test_reservations_free_offers_and_other_units_are_no_hourly_price(aws: Aws) -> None:
    with Stubber(aws.pricing()) as stub:
        answers(
            stub,
            "g5.xlarge",
            product("0.1", term="Reserved"),
            product("0.0000000000"),
            product("0.9", unit="Quantity"),
            product("1.123"),
        )
        assert prices.ask(aws, HOME, "g5.xlarge") == 1.123


def test_types_that_a_region_does_not_sell_are_left_out(aws: Aws) -> None:
    with Stubber(aws.pricing()) as stub:
        answers(stub, "p6-b300.48xlarge")
        prices.refresh(aws, [HOME], ["p6-b300.48xlarge"])
    assert "p6-b300.48xlarge" not in prices.table()[HOME]


def test_a_denied_refresh_is_reported_and_keeps_the_table(aws: Aws, cache: Path) -> None:
    with Stubber(aws.pricing()) as stub:
        stub.add_client_error("get_products", "AccessDeniedException")
        with pytest.raises(FleetError, match=r"price of g5\.xlarge in eu-west-1.*GetProducts"):
            prices.refresh(aws, [HOME], ["g5.xlarge"])
    assert not list(cache.rglob("*.json"))


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "it is empty"),
        ("[]", "it is not a JSON object"),
        ("\x00", "it is not JSON"),
        ('{"eu-west-1": {"g5.xlarge": {}}}', "eu-west-1.g5.xlarge: "),
        ('{"Ireland": {}}', "Ireland.*must be an AWS region such as eu-west-1"),
        ('{"eu-west-1": {"g5": {}}}', "g5.*must be an instance type such as g5.xlarge"),
        ('{"eu-west-1": {"g5.xlarge": "1"}}', r"g5\.xlarge: .*number"),
        ('{"eu-west-1": {"g5.xlarge": -1}}', r"g5\.xlarge: .*greater than 0"),
    ],
)
def test_a_file_of_prices_with_a_mistake_is_refused(aws: Aws, text: str, wrong: str) -> None:
    prices.cache_file().parent.mkdir(parents=True)
    prices.cache_file().write_text(text)
    expected = f"{prices.cache_file()}.*{wrong}.*; correct the file or delete it"
    with pytest.raises(InputError, match=expected):
        prices.table()
    with Stubber(aws.pricing()), pytest.raises(InputError, match=expected):
        prices.refresh(aws, [HOME], [])
    assert prices.cache_file().read_text() == text


def test_spot_prices_are_listed_by_type_and_zone(cloud: Account) -> None:
    found = prices.spot_prices(cloud.aws, HOME, ["g5.xlarge", "p4d.24xlarge"])
    assert found == {
        ("g5.xlarge", "eu-west-1a"): 0.00001,
        ("g5.xlarge", "eu-west-1b"): 0.00001,
        ("g5.xlarge", "eu-west-1c"): 0.00001,
        ("p4d.24xlarge", "eu-west-1c"): 0.00001,
    }
    assert prices.spot_prices(cloud.aws, HOME, []) == {}


def test_prices_in_another_currency_are_never_read_as_usd(aws: Aws) -> None:
    entry = {
        "InstanceType": "g5.xlarge",
        "AvailabilityZone": "cn-north-1a",
        "SpotPrice": "7.0",
        "Timestamp": TODAY,
    }
    with Stubber(aws.ec2("cn-north-1")) as stub:
        stub.add_response("describe_spot_price_history", {"SpotPriceHistory": [entry]})
        with pytest.raises(InputError, match="the prices of cn-north-1 are in CNY"):
            prices.spot_prices(aws, "cn-north-1", ["g5.xlarge"])


@pytest.mark.parametrize("aws_region", ["cn-north-1", "us-gov-west-1"])
def test_prices_that_aws_does_not_give_in_usd_can_be_stated_by_hand(
    aws: Aws, aws_region: str
) -> None:
    with Stubber(aws.pricing()), pytest.raises(FleetError) as error:  # which is not asked
        prices.refresh(aws, [aws_region], ["p9.large"])
    text = str(error.value)
    assert f"AWS has no on-demand prices in USD for accounts with {aws_region}" in text
    (stated,) = re.findall(r"\{.*\}", text)
    prices.cache_file().parent.mkdir(parents=True)
    prices.cache_file().write_text(stated)
    assert str(prices.cache_file()) in text
    assert prices.table()[aws_region]["g5.xlarge"] == 1.5


def test_of_several_spot_prices_the_newest_counts(aws: Aws) -> None:
    def entry(usd: str, minutes: int) -> dict[str, Any]:
        return {
            "InstanceType": "g5.xlarge",
            "AvailabilityZone": "eu-west-1a",
            "SpotPrice": usd,
            "Timestamp": TODAY - timedelta(minutes=minutes),
        }

    history = [entry("0.3", 20), entry("0.4", 10), entry("0.5", 30)]
    with Stubber(aws.ec2(HOME)) as stub:
        stub.add_response("describe_spot_price_history", {"SpotPriceHistory": history})
        found = prices.spot_prices(aws, HOME, ["g5.xlarge"])
    assert found == {("g5.xlarge", "eu-west-1a"): 0.4}
