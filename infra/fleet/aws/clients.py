"""boto3's clients, and errors that explain AWS's refusals and say what to do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, NoCredentialsError
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
ATTEMPTS = 8  # of one call; after throttled attempts, each wait is longer than the last
LONGEST_REASON = 400  # characters; a proxy's refusal may be a page
DENIED = {
    "AccessDenied",
    "AccessDeniedException",
    "UnauthorizedOperation",
    "Client.UnauthorizedOperation",
}
# AWS's refusals by a policy that limits all other policies; some name that policy's kind and ARN.
_LIMITED = re.compile(
    r"explicit deny(?: in an? (?P<denies>[^:.;]*(?:policy|boundary))(?:: (?P<arn>arn:\S*\w))?)?"
    r"|no (?P<lacks>(service control|resource control|session|VPC endpoint) policy"
    r"|permissions boundary) allows"
)
_OF_ORGANIZATION = {"service control policy", "resource control policy"}


class Aws:
    """The boto3 clients of one AWS account, each made when it is first needed."""

    def __init__(self, session: boto3.Session | None = None, *, account: str = "") -> None:
        """Use the credentials of `session` or, without it, the user's default credentials.

        If `account` is given, only this AWS account may be used. If the credentials belong to
        another account, all methods that return a client, except `sts`, raise FleetError.
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
        """Return the client of EC2 in an AWS region."""
        return cast("EC2Client", self._client("ec2", aws_region))

    def iam(self, aws_region: str) -> IAMClient:
        """Return the client of IAM, which is the same in all AWS regions of a partition."""
        return cast("IAMClient", self._client("iam", aws_region))

    def s3(self, aws_region: str) -> S3Client:
        """Return the client of S3 in an AWS region."""
        return cast("S3Client", self._client("s3", aws_region))

    def ssm(self, aws_region: str) -> SSMClient:
        """Return the client of Systems Manager, which stores parameters, in an AWS region."""
        return cast("SSMClient", self._client("ssm", aws_region))

    def sts(self, aws_region: str) -> STSClient:
        """Return the client of STS in an AWS region."""
        return cast("STSClient", self._client("sts", aws_region))

    def quotas(self, aws_region: str) -> ServiceQuotasClient:
        """Return the client of Service Quotas in an AWS region."""
        return cast("ServiceQuotasClient", self._client("service-quotas", aws_region))

    def pricing(self) -> PricingClient:
        """Return the client of the Pricing API, which has the prices of all AWS regions."""
        return cast("PricingClient", self._client("pricing", "us-east-1"))

    def account(self, aws_region: str) -> str:
        """Return the number of the AWS account. Only the first call asks AWS."""
        return self._account or self.caller(aws_region)["Account"]

    def caller(self, aws_region: str) -> GetCallerIdentityResponseTypeDef:
        """Return who owns the credentials. FleetError if they are missing, or AWS refuses them."""
        with asking("the caller's identity (sts:GetCallerIdentity)"):
            who = self.sts(aws_region).get_caller_identity()
        self._account = who["Account"]
        return who

    def endpoint(self, aws_region: str) -> str:
        """Return SSM's URL from the user's AWS settings, or an empty text if they set none."""
        url = self.ssm(aws_region).meta.endpoint_url
        unchanged: Any = {"ignore_configured_endpoint_urls": True}
        own = self._session.client("ssm", region_name=aws_region, config=Config(**unchanged))
        return "" if url == own.meta.endpoint_url else url

    def _make_client(self, service: str, aws_region: str) -> Any:
        if self._only and service != "sts" and (found := self.account(aws_region)) != self._only:
            raise FleetError(
                f"the AWS credentials here belong to account {found}, but this fleet is in account "
                f"{self._only}: use keys, a profile or a role of {self._only}"
            )
        try:
            client = self._session.client(  # type: ignore[call-overload]
                service, region_name=aws_region, config=self._config
            )
        except ValueError as error:
            raise FleetError(f"AWS can't be reached: {error}; {foreign_answers.ADVICE}") from error
        foreign_answers.watch(client)
        return client


def error_code(error: ClientError) -> str:
    """Return AWS's error code, such as `InvalidGroup.Duplicate`."""
    return error.response.get("Error", {}).get("Code", "")


def error_message(error: ClientError) -> str:
    """Return AWS's error message."""
    return error.response.get("Error", {}).get("Message", "")


def or_none(ask: Callable[[], T], *codes: str) -> T | None:
    """Return the result of `ask`, or None if AWS refuses with one of the error codes `codes`."""
    try:
        return ask()
    except ClientError as error:
        if error_code(error) not in codes:
            raise
        return None


@contextmanager
def asking(what: str) -> Iterator[None]:
    """Turn botocore's errors in the `with` block into FleetErrors that begin with `what`."""
    try:
        yield
    except ClientError as error:
        raise FleetError(f"{what}: {explain_error(error)}") from error
    except NoCredentialsError as error:
        raise FleetError(
            f"{what}: there are no AWS credentials here: set AWS_PROFILE, run `aws configure`, "
            "or give this machine an instance profile"
        ) from error
    except ResponseParserError as error:
        reason = " ".join(str(error).split())[:LONGEST_REASON]
        raise FleetError(
            f"{what}: the answer is not from AWS: {reason}; {foreign_answers.ADVICE}"
        ) from error
    except (HTTPClientError, UnreachableError) as error:
        raise FleetError(
            f"{what}: AWS can't be reached: {error}; {foreign_answers.ADVICE}"
        ) from error
    except BotoCoreError as error:  # before a request, such as an expired login or a wrong profile
        raise FleetError(f"{what}: {error}") from error


def explain_error(error: ClientError) -> str:
    """Return a line on why AWS refused a request, with advice if a permission is missing."""
    code, reason = error_code(error), " ".join(error_message(error).split())[:LONGEST_REASON]
    if code in DENIED:
        advice = _denial_advice(error_message(error))
        return f"the permission {permission(error)} is denied ({reason}); {advice}"
    # If the answer has no error code, botocore gives its HTTP status.
    code = f"HTTP {code}" if code.isdigit() else code
    return f"AWS refused: {': '.join(filter(None, (code, reason)))}"


def _denial_advice(message: str) -> str:
    """Return what the user can do if AWS denies a permission with this message.

    `workflows/views/why` searches for the words `overrides every policy` in the result.
    """
    found = _LIMITED.search(message)
    if found is None:
        return "`trialfleet fleet plan --policy` prints the policy that is needed"
    kind = found["denies"] or found["lacks"] or "policy"
    name = " ".join(filter(None, ("the", kind, found["arn"])))
    if kind in _OF_ORGANIZATION:
        return (
            f"{name} of your AWS organization overrides every policy of this account: ask the "
            "organization's administrator to change it"
        )
    return f"{name} overrides every policy that allows the call: ask its author to change it"


def lacks_policy(error: ClientError) -> bool:
    """Return whether AWS denied a permission that an additional policy for the user could grant."""
    return error_code(error) in DENIED and not _LIMITED.search(error_message(error))


def permission(error: ClientError) -> str:
    """Return the missing permission that AWS's message names, such as `ec2:RunInstances`.

    If the message names none, return a text such as `to call RunInstances`.
    """
    named = re.search(r"perform: ([a-z0-9-]+:[A-Za-z0-9]+)", error_message(error))
    return named[1] if named else f"to call {error.operation_name}"
