"""AWS's refusals, as messages that a person can act on."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import pytest
from boto3 import Session
from botocore.exceptions import (
    ClientError,
    EndpointConnectionError,
    NoCredentialsError,
    TokenRetrievalError,
)
from botocore.parsers import JSONParser

from tests.fleet.mock_aws.moto_account import ACCOUNT, AWAY, HOME, Account, fleet
from trialfleet.errors import FleetError
from trialfleet.infra.fleet.aws import identity
from trialfleet.infra.fleet.aws.clients import LONGEST_REASON, Aws, asking


def refused(code: str, message: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": message}}, "RunInstances")


def message_of(error: Exception) -> str:
    with pytest.raises(FleetError) as raised, asking("two nodes"):
        raise error
    return str(raised.value)


def test_a_missing_permission_is_named_with_the_command_that_prints_the_policy() -> None:
    text = message_of(
        refused("AccessDenied", "You are not authorized to perform: ec2:RunInstances")
    )
    assert "the permission ec2:RunInstances is denied" in text
    assert "trialfleet fleet plan --policy" in text


def test_a_denial_that_names_no_permission_names_the_call() -> None:
    assert "to call RunInstances is denied" in message_of(refused("UnauthorizedOperation", "No."))


def test_an_expired_login_is_not_reported_as_unreachable_aws() -> None:
    text = message_of(TokenRetrievalError(provider="sso", error_msg="Token has expired"))
    assert text == "two nodes: Error when retrieving token from sso: Token has expired"


SCP = "arn:aws:organizations::987654321098:policy/o-qv5af4abcd/service_control_policy/p-2kgnabcd"
BY_OUR_ORGANIZATION = (
    "of your AWS organization overrides every policy of this account: ask the organization's "
    "administrator to change it"
)
BY_ITS_AUTHOR = "overrides every policy that allows the call: ask its author to change it"


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        (
            f"with an explicit deny in a service control policy: {SCP}. Encoded message: x",
            f"the service control policy {SCP} {BY_OUR_ORGANIZATION}",
        ),
        (
            "with an explicit deny in a service control policy",
            f"the service control policy {BY_OUR_ORGANIZATION}",
        ),
        (
            "because no resource control policy allows the ec2:CreateFleet action",
            f"the resource control policy {BY_OUR_ORGANIZATION}",
        ),
        (
            "with an explicit deny in an identity-based policy: arn:aws:iam::1:policy/p",
            f"the identity-based policy arn:aws:iam::1:policy/p {BY_ITS_AUTHOR}",
        ),
        (
            "because no permissions boundary allows the ec2:CreateFleet action",
            f"the permissions boundary {BY_ITS_AUTHOR}",
        ),
        (
            "with an explicit deny",
            f"the policy {BY_ITS_AUTHOR}",
        ),
    ],
)
def test_a_denial_that_no_own_policy_can_lift_names_the_policy_and_whom_to_ask(
    reason: str, advice: str
) -> None:
    message = f"User: x is not authorized to perform: ec2:CreateFleet on resource: y {reason}"
    text = message_of(refused("UnauthorizedOperation", message))
    assert "the permission ec2:CreateFleet is denied" in text
    assert "fleet plan --policy" not in text
    assert text.endswith(f"; {advice}")


def test_a_long_refusal_is_cut_to_one_line() -> None:
    text = message_of(refused("Unavailable", "<html>\n  sorry\n</html>" * 500))
    assert text.startswith("two nodes: AWS refused: Unavailable: <html> sorry")
    assert "\n" not in text
    assert len(text) < LONGEST_REASON + 100


def test_a_refusal_without_an_error_code_has_the_http_status() -> None:
    """Botocore then gives the status as the code, here of a JSON answer without `__type`."""
    parsed = JSONParser().parse({"status_code": 500, "headers": {}, "body": b"{}"}, None)  # type: ignore[arg-type]
    text = message_of(ClientError(parsed, "GetParameter"))
    assert text == "two nodes: AWS refused: HTTP 500"


def test_the_accounts_number_is_asked_for_once(cloud: Account) -> None:
    assert cloud.aws.account(HOME) == cloud.aws.account(AWAY) == ACCOUNT
    assert cloud.faults.calls == ["sts:GetCallerIdentity"]


@pytest.mark.parametrize(
    ("aws_region", "host"),
    [
        ("eu-west-1", "iam.amazonaws.com"),
        ("us-gov-west-1", "iam.us-gov.amazonaws.com"),
        ("cn-northwest-1", "iam.cn-north-1.amazonaws.com.cn"),
    ],
)
def test_the_role_is_made_in_the_partition_of_the_fleets_regions(
    aws_region: str, host: str
) -> None:
    session, asked = Session("key", "secret"), []

    def send(request: Any, **_: Any) -> None:
        asked.append(urlsplit(request.url).hostname)
        raise EndpointConnectionError(endpoint_url=request.url)

    session.events.register("before-send.iam", send)
    with pytest.raises(FleetError), asking("the role"):
        identity.role(Aws(session), fleet(aws_regions=[aws_region]))
    assert {*asked} == {host}


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (NoCredentialsError(), "set AWS_PROFILE"),
        (EndpointConnectionError(endpoint_url="https://x"), "AWS can't be reached"),
    ],
)
def test_missing_credentials_and_an_unreachable_aws_are_reported(
    error: Exception, advice: str
) -> None:
    assert advice in message_of(error)
