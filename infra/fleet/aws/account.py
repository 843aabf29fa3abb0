"""The AWS settings that a run's autoscaler needs to use the right AWS account.

The autoscaler is an HTCondor job. It can read the user's home, but does not get the shell's
environment variables. So the variables that it needs, except AWS keys, are stored in the run's
folder. The job takes the keys from ~/.aws, or from the machine's role.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import boto3
import botocore.session

from trialfleet.errors import FleetError, InputError
from trialfleet.files import read_json
from trialfleet.infra.fleet.aws.clients import Aws

KEPT = {
    *("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION"),
    *("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"),
    *("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "AWS_USE_FIPS_ENDPOINT", "AWS_USE_DUALSTACK_ENDPOINT"),
    *("AWS_ROLE_ARN", "AWS_ROLE_SESSION_NAME", "AWS_WEB_IDENTITY_TOKEN_FILE"),
    *("AWS_EC2_METADATA_DISABLED", "AWS_EC2_METADATA_SERVICE_ENDPOINT"),
    *("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE",),
    *("AWS_REQUEST_CHECKSUM_CALCULATION", "AWS_RESPONSE_CHECKSUM_VALIDATION"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
}
ENDPOINTS = "AWS_ENDPOINT_URL"  # also a prefix, as in AWS_ENDPOINT_URL_S3
FILES = ("_FILE", "_BUNDLE")  # suffixes of variables that hold a path
SECRETS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_PROVIDERS = ("env", "container-role")  # botocore's sources of keys that need the environment


@dataclass(frozen=True, kw_only=True)
class AwsEnvironment:
    """An AWS account's number, and the environment variables that are needed to use the account."""

    account: str
    variables: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """Return the settings as JSON data, which may contain a proxy's password."""
        return {"schema": 1, **asdict(self)}

    def enter(self) -> Aws:
        """Set the environment variables in this process. Return clients for this account only."""
        os.environ.update(self.variables)
        return Aws(account=self.account)


def snapshot(aws_region: str) -> AwsEnvironment:
    """Return the AWS settings for a run's autoscaler, read from this process's environment.

    AWS is asked in `aws_region` for the account's number. InputError if the account needs AWS keys
    from environment variables, because the autoscaler does not get these keys.
    """
    account = Aws().account(aws_region)
    if (secrets := _secrets()) and (found := _account_of_a_job(aws_region)) != account:
        instead = (
            f"it would act in account {found}, not in {account}" if found else "it can't use AWS"
        )
        raise InputError(
            f"{secrets}: the run's autoscaler is a job and does not see these variables, because "
            f"secrets are not written into a run's files; without them {instead}. Put the keys "
            "into ~/.aws/credentials, give this machine an instance profile, or set "
            "`autoscale: off` and keep `trialfleet fleet autoscale` running yourself"
        )
    return AwsEnvironment(account=account, variables=variables())


def variables() -> dict[str, str]:
    """Return this process's environment variables for AWS and proxies, without AWS keys.

    A proxy's URL may contain a password, so keep the result private. Relative paths are made
    absolute, because a job runs in another folder.
    """
    kept = {}
    for name, value in sorted(os.environ.items()):
        if name.upper() in KEPT or name.startswith(ENDPOINTS):
            is_path = name.upper().endswith(FILES) and value
            kept[name] = str(Path(value).expanduser().absolute()) if is_path else value
    return kept


def check_found_by_jobs(whose: str) -> None:
    """Raise InputError if AWS keys are only in environment variables, which jobs don't get.

    Other keys that jobs can use, such as those in ~/.aws, are not tested. The error names `whose`
    as the program that needs the keys.
    """
    if (secrets := _secrets()) and _session_of_a_job().get_credentials() is None:
        raise InputError(
            f"{secrets}: {whose} runs in the background and does not see these variables, because "
            "secrets are not written into a run's files. Put the keys into ~/.aws/credentials or "
            "into the files that the study's `s3:` names, or give this machine an instance profile"
        )


def _secrets() -> str:
    return ", ".join(name for name in SECRETS if os.environ.get(name))


def _account_of_a_job(aws_region: str) -> str:
    try:
        return Aws(_session_of_a_job()).account(aws_region)
    except FleetError:
        return ""


def _session_of_a_job() -> boto3.Session:
    """Return a session that ignores AWS keys in environment variables, as a job would."""
    session = botocore.session.Session()
    chain = session.get_component("credential_provider")
    for name in _PROVIDERS:
        if name in (provider.METHOD for provider in chain.providers):
            chain.remove(name)
    return boto3.Session(botocore_session=session)


def read(path: Path) -> AwsEnvironment:
    """Return the AWS settings stored in the file `path`. InputError if it is missing or damaged."""
    try:
        value = read_json(path)
        return AwsEnvironment(account=str(value["account"]), variables=dict(value["variables"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"can't read the run's AWS settings in {path} ({error!r}): plan the study again"
        ) from error
