"""S3 clients for processes on the access point."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trialfleet.errors import ExportError
from trialfleet.workflows.control.secret_files import secret
from trialfleet.workflows.study.sections import S3Keys

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client
    from types_boto3_s3.type_defs import ObjectTypeDef

CONNECT_SECONDS, READ_SECONDS, RETRIES = 5, 60, 3  # of one request to S3


def s3_client(keys: S3Keys | None, region: str | None = None, retries: int = RETRIES) -> S3Client:
    """Return an S3 client, without sending a request.

    If `keys` is None, boto3 finds AWS keys itself. `retries` is the maximum number of attempts
    after the first. To sign URLs, pass the bucket's AWS `region`. Signed URLs then have the host of
    this region, and the bucket in the path. Without `region`, the host begins with the bucket's
    name. A signed URL then fails if the name has dots, because S3's certificate does not cover that
    host. It also fails if the bucket is in another region, because S3 redirects the request.

    Raises:
        ExportError: the keys can't be read, or no client can be created.
    """
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    given = {}
    if keys:
        given = {
            "aws_access_key_id": read_secret(keys.access_key_id_file),
            "aws_secret_access_key": read_secret(keys.secret_access_key_file),
        }
    signing = Config(signature_version="s3v4", s3={"addressing_style": "path"})
    config = Config(
        retries={"mode": "standard", "max_attempts": retries},
        connect_timeout=CONNECT_SECONDS,
        read_timeout=READ_SECONDS,
        user_agent_extra="trialfleet",
    )
    try:
        session = boto3.Session(**given)  # type: ignore[arg-type]
        return session.client(
            "s3",
            region_name=region or session.region_name or "us-east-1",
            config=config.merge(signing) if region else config,
        )
    except BotoCoreError as error:
        raise ExportError(f"no S3 client can be created: {error}") from error


def list_objects(
    client: S3Client, bucket: str, prefix: str, delimiter: str = ""
) -> list[ObjectTypeDef]:
    """Return S3's entries for all objects in a bucket whose keys begin with `prefix`.

    With a `delimiter`, leave out objects whose keys contain it after the prefix.
    """
    pages = client.get_paginator("list_objects_v2").paginate(
        Bucket=bucket, Prefix=prefix, Delimiter=delimiter
    )
    return [one for page in pages for one in page.get("Contents", [])]


def read_secret(file: str | None, variable: str | None = None) -> str | None:
    """Return the secret in a file or environment variable, or None if neither is named.

    ExportError if the secret can't be read or is empty.
    """
    try:
        return secret(file, variable) if file or variable else None
    except ValueError as error:
        raise ExportError(str(error)) from None
