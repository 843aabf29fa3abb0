"""Times at which a region's data in S3 was written."""

from __future__ import annotations

from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING

from trialfleet.workflows.control.export.published_models import ExportError
from trialfleet.workflows.control.export.s3_client import s3_client
from trialfleet.workflows.study.sections import S3Keys

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client


class DataInS3:
    """Reader of S3 objects' write times; needs s3:ListBucket. Without `keys`, boto3 finds keys."""

    def __init__(self, keys: S3Keys | None) -> None:
        self._keys = keys

    @cached_property
    def _client(self) -> S3Client | None:
        try:
            return s3_client(self._keys)
        except ExportError:
            return None

    def write_times(self, url: str) -> dict[str, datetime] | None:
        """Return the time of the last write of an object, or of each object in a folder, by URL.

        {} if there is no object. None if S3 is unreachable or refuses, or the keys can't be read.
        """
        from botocore.exceptions import BotoCoreError, ClientError

        if self._client is None:
            return None
        bucket, _, key = url.removeprefix("s3://").partition("/")
        try:
            listed = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=bucket, Prefix=key
            )
            objects = [one for page in listed for one in page.get("Contents", [])]
        except (BotoCoreError, ClientError):
            return None
        folder = f"{key.rstrip('/')}/"
        return {
            f"s3://{bucket}/{one['Key']}": one["LastModified"]
            for one in objects
            if one["Key"] == key or one["Key"].startswith(folder)
        }
