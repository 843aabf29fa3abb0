"""boto3's clients, and AWS's refusals in words that a person can act on."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    HTTPClientError,
    NoCredentialsError,
)
from botocore.exceptions import ConnectionError as UnreachableError
from botocore.parsers import ResponseParserError

from trialfleet.errors import FleetError
from trialfleet.infra.fleet.aws import foreign_answers

if TYPE_CHECKING:
    from types_boto3_ec2 import EC2Client
    from types_boto3_iam import IAMClient
    from types_boto3_pricing import PricingClient
    from types_boto3_s3 import S3Client
    from types_boto3_service_quotas import ServiceQuotasClient
    from types_boto3_ssm import SSMClient
    from types_boto3_sts import STSClient
    from types_boto3_sts.type_defs import GetCallerIdentityResponseTypeDef

T = TypeVar("T")
ATTEMPTS = 8  # of one call; throttled ones wait longer each time
LONGEST_REASON = 400  # characters; a proxy's refusal may be a page
DENIED = {
    "AccessDenied",
    "AccessDeniedException",
    "UnauthorizedOperation",
    "Client.UnauthorizedOperation",
}


class Aws:
    """Clients of one account, made when they are first needed."""

    def __init__(self, session: boto3.Session | None = None, *, account: str = "") -> None:
        """Take the credentials; AWS is not asked yet.

        Args:
            session: whose credentials; default: those that boto3 finds.
            account: the only account in which anything is asked; empty: any.
        """
        self._only = account
        with asking("the AWS credentials"):
            self._session = session or boto3.Session()
        self._config = Config(
            retries={"mode": "standard", "max_attempts": ATTEMPTS},
            connect_timeout=10,
            read_timeout=60,
            user_agent_extra="trialfleet",
        )
        self._client = cache(self._make_client)
        self._account = ""

    def ec2(self, aws_region: str) -> EC2Client:
        """EC2 in a region."""
        return cast("EC2Client", self._client("ec2", aws_region))

    def iam(self) -> IAMClient:
        """IAM, which has no regions."""
        return cast("IAMClient", self._client("iam", "us-east-1"))

    def s3(self, aws_region: str) -> S3Client:
        """S3 in a region."""
        return cast("S3Client", self._client("s3", aws_region))

    def ssm(self, aws_region: str) -> SSMClient:
        """Systems Manager's parameters in a region."""
        return cast("SSMClient", self._client("ssm", aws_region))

    def sts(self, aws_region: str) -> STSClient:
        """Who one is."""
        return cast("STSClient", self._client("sts", aws_region))

    def quotas(self, aws_region: str) -> ServiceQuotasClient:
        """The account's limits in a region."""
        return cast("ServiceQuotasClient", self._client("service-quotas", aws_region))

    def pricing(self) -> PricingClient:
        """Prices of all regions, which AWS tells in a few of them."""
        return cast("PricingClient", self._client("pricing", "us-east-1"))

    def account(self, aws_region: str) -> str:
        """Return the account's number, which AWS is asked for once."""
        return self._account or self.caller(aws_region)["Account"]

    def caller(self, aws_region: str) -> GetCallerIdentityResponseTypeDef:
        """Ask AWS who is asking; FleetError without credentials, or where AWS refuses them."""
        with asking("who is asking (sts:GetCallerIdentity)"):
            who = self.sts(aws_region).get_caller_identity()
        self._account = who["Account"]
        return who

    def endpoint(self, aws_region: str) -> str:
        """Return where AWS is asked if the user's settings name a place; empty: AWS's own."""
        url = self.ssm(aws_region).meta.endpoint_url
        host = (urlsplit(url).hostname or "").removesuffix(".cn")
        return "" if host.endswith(".amazonaws.com") else url

    def _make_client(self, service: str, aws_region: str) -> Any:
        if self._only and service != "sts" and (found := self.account(aws_region)) != self._only:
            raise FleetError(
                f"the AWS credentials here are of account {found}, and this fleet is in "
                f"{self._only}: mend ~/.aws, or the profile or role that it names"
            )
        try:
            client = self._session.client(  # type: ignore[call-overload]
                service, region_name=aws_region, config=self._config
            )
        except ValueError as error:
            raise FleetError(f"AWS can't be asked: {error}; {foreign_answers.ADVICE}") from error
        foreign_answers.watch(client)
        return client


def code_of(error: ClientError) -> str:
    """Return AWS's name for what went wrong, such as `InvalidGroup.Duplicate`."""
    return error.response.get("Error", {}).get("Code", "")


def message_of(error: ClientError) -> str:
    """Return AWS's words for it."""
    return error.response.get("Error", {}).get("Message", "")


def or_none(ask: Callable[[], T], *codes: str) -> T | None:
    """Return what AWS answers; None where it refuses for one of these reasons."""
    try:
        return ask()
    except ClientError as error:
        if code_of(error) not in codes:
            raise
        return None


@contextmanager
def asking(what: str) -> Iterator[None]:
    """Tell what was asked when AWS refuses it or can't be reached.

    Raises:
        FleetError: instead of botocore's errors; with the permission's name where one is missing.
    """
    try:
        yield
    except ClientError as error:
        raise FleetError(explained(error, what)) from error
    except NoCredentialsError as error:
        raise FleetError(
            f"{what}: no AWS credentials here: set AWS_PROFILE, run `aws configure`, "
            "or give this machine an instance profile"
        ) from error
    except ResponseParserError as error:
        reason = " ".join(str(error).split())[:LONGEST_REASON]
        raise FleetError(
            f"{what}: what answers isn't AWS: {reason}; {foreign_answers.ADVICE}"
        ) from error
    except (HTTPClientError, UnreachableError) as error:
        raise FleetError(
            f"{what}: AWS can't be asked: {error}; {foreign_answers.ADVICE}"
        ) from error
    except BotoCoreError as error:
        raise FleetError(f"{what}: AWS can't be asked: {error}") from error


def explained(error: ClientError, what: str) -> str:
    """Return one line: what was asked, AWS's reason, and what to do where it's a permission."""
    code, reason = code_of(error), " ".join(message_of(error).split())[:LONGEST_REASON]
    if code in DENIED:
        return (
            f"{what}: the permission {permission(error)} is denied ({reason}); "
            "`trialfleet fleet plan --policy` prints the policy that is needed"
        )
    return f"{what}: AWS refuses: {code}: {reason}"


def permission(error: ClientError) -> str:
    """Return the permission that was missing, such as `ec2:RunInstances`."""
    named = re.search(r"perform: ([a-z0-9-]+:[A-Za-z0-9]+)", message_of(error))
    return named[1] if named else f"to call {error.operation_name}"
