"""moto's server in this process: AWS to whoever gets its address."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.request import Request, urlopen

import boto3
from moto.server import ThreadedMotoServer

if TYPE_CHECKING:
    import pytest
    from types_boto3_s3 import S3Client


@contextmanager
def moto_server() -> Iterator[str]:
    """Give the address of a server of AWS's APIs, which is there until the block has ended."""
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def s3_with_bucket(address: str, bucket: str, monkeypatch: pytest.MonkeyPatch) -> S3Client:
    """Return a client of an empty account's only bucket; boto3 finds it until the patch ends."""
    empty_account(address)
    for name, value in {
        "AWS_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3")
    client.create_bucket(Bucket=bucket)
    return client


def empty_account(address: str) -> None:
    """Forget all that was made there."""
    with urlopen(Request(f"{address}/moto-api/reset", method="POST")):  # noqa: S310 - our own
        pass
