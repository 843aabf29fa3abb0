"""moto's IAM, which enforces actions, and resources only in S3 and of roles.

Elsewhere moto asks IAM for the resource `*`, which no least policy grants; here such statements
count by their actions alone. moto passes over conditions. It asks for `s3:HeadBucket`, which is
none of AWS's (it is `s3:ListBucket`), and deletes several objects only for who may delete all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

import boto3
from moto import settings
from moto.core.authorization import ActionAuthenticatorMixin
from moto.iam.access_control import IAMPolicyStatement
from moto.s3.responses import ACTION_MAP

from trialfleet.infra.fleet.aws.clients import Aws

_MATCHES = IAMPolicyStatement._check_element_matches


@contextmanager
def allowed(policy: Mapping[str, Any], user: str = "caller") -> Iterator[Aws]:
    """Give the clients of a user who may do what the policy says, and nothing else.

    Who calls by other keys is refused within; look at what was made afterwards.
    """
    iam = boto3.client("iam", region_name="us-east-1")
    iam.create_user(UserName=user)
    iam.put_user_policy(UserName=user, PolicyName="test", PolicyDocument=json.dumps(policy))
    key = iam.create_access_key(UserName=user)["AccessKey"]
    with repaired(), _enforced():
        yield Aws(boto3.Session(key["AccessKeyId"], key["SecretAccessKey"]))


@contextmanager
def repaired() -> Iterator[None]:
    """Let moto take policies as AWS would where it has no way of knowing better."""
    with (
        mock.patch.object(IAMPolicyStatement, "_check_element_matches", _matches),
        mock.patch.dict(ACTION_MAP["BUCKET"]["HEAD"], {"DEFAULT": "ListBucket"}),
    ):
        yield


@contextmanager
def _enforced() -> Iterator[None]:
    with (
        mock.patch.object(settings, "INITIAL_NO_AUTH_ACTION_COUNT", 0),
        mock.patch.object(ActionAuthenticatorMixin, "request_count", 0),
    ):
        yield


def _matches(statement: Any, element: str, value: str) -> bool:
    if element == "Resource" and value == "*":
        return True
    return bool(_MATCHES(statement, element, value)) or _deletes_some(statement, element, value)


def _deletes_some(statement: Any, element: str, value: str) -> bool:
    """AWS asks again for each object; whoever gives the wrong keys is beyond this test."""
    body = statement._statement
    return (
        element == "Resource"
        and "s3:DeleteObject" in body["Action"]
        and any(arn.startswith(f"{value}/") for arn in body["Resource"])
    )
