"""Answers that are not AWS's: from a proxy, from another program's port, or none at all."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import boto3
import pytest

from tests.fleet.mock_aws.moto_account import HOME
from trialfleet.errors import FleetError, TrialfleetError
from trialfleet.infra.fleet.aws.clients import ATTEMPTS, Aws, asking

PAGE = "<!DOCTYPE html>\n<html><body><p>Gateway<br>\n error</p></body></html>"
SIGN_IN = "<html><style>p {}</style><body>Sign in</body></html>"
SHOWN = {PAGE: "Gateway error", SIGN_IN: "Sign in"}
ADVICE = "check the proxy (HTTPS_PROXY), AWS_ENDPOINT_URL and aws_regions"
CALLS: dict[str, Callable[[Aws], Any]] = {
    "STS (GetCallerIdentity)": lambda aws: aws.account(HOME),
    "EC2 (DescribeInstances)": lambda aws: aws.ec2(HOME).describe_instances(),
    "IAM (GetRole)": lambda aws: aws.iam("eu-west-1").get_role(RoleName="r"),
    "S3 (ListObjectsV2)": lambda aws: aws.s3(HOME).list_objects_v2(Bucket="b"),
    "SSM (GetParameter)": lambda aws: aws.ssm(HOME).get_parameter(Name="n"),
    "Service Quotas (GetServiceQuota)": lambda aws: aws.quotas(HOME).get_service_quota(
        ServiceCode="ec2", QuotaCode="L-1"
    ),
}


@contextmanager
def answering(status: int, body: str, kind: str) -> Iterator[tuple[str, list[str]]]:
    """Answer every request so; give the address, and the requests as they come."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.path)
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def do_GET(self) -> None:
            self.do_POST()

        def log_message(self, *_: object) -> None:
            """Keep quiet."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}", asked
        server.shutdown()


@pytest.fixture(autouse=True)
def hurry() -> Iterator[None]:
    """Let botocore's pauses between tries take no time."""
    with mock.patch("time.sleep"):
        yield


def error_of(environment: pytest.MonkeyPatch, endpoint: str, call: Callable[[Aws], Any]) -> str:
    environment.setenv("AWS_ENDPOINT_URL", endpoint)
    with pytest.raises(FleetError) as error, asking("a question"):
        call(Aws(boto3.Session("x", "y")))
    return str(error.value)


ANSWERS = [
    (500, PAGE, "text/html"),
    (502, "", "text/html"),
    (503, "upstream connect error", "text/plain"),
    (403, PAGE, "text/html"),
    (403, "blocked by policy", "text/plain"),
    (200, SIGN_IN, "text/html"),
    (200, '<?xml version="1.0"?>\n<!DOCTYPE html PUBLIC "x">\n<html></html>', "text/xml"),
]


@pytest.mark.parametrize(
    ("asked", "status", "body", "kind"),
    [
        *(("EC2 (DescribeInstances)", *answer) for answer in ANSWERS),
        *((asked, *answer) for asked in CALLS for answer in (ANSWERS[0], ANSWERS[5])),
    ],
)
def test_an_answer_that_is_not_from_aws_is_reported_in_one_line(
    monkeypatch: pytest.MonkeyPatch, asked: str, status: int, body: str, kind: str
) -> None:
    with answering(status, body, kind) as (address, _):
        text = error_of(monkeypatch, f"http://{address}", CALLS[asked])
    excerpt = f": {SHOWN.get(body, ' '.join(body.split()))}" if body else ""
    assert text == (
        f"{asked}: {address} gave an answer that is not from AWS, with HTTP status "
        f"{status}{excerpt}; {ADVICE}"
    )


def test_a_long_page_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(500, PAGE + "x" * 10_000, "text/html") as (address, _):
        assert (
            len(error_of(monkeypatch, f"http://{address}", CALLS["STS (GetCallerIdentity)"])) < 500
        )


@pytest.mark.parametrize(("status", "tries"), [(503, ATTEMPTS + 1), (403, 1), (200, 1)])
def test_only_temporary_failures_are_retried(
    monkeypatch: pytest.MonkeyPatch, status: int, tries: int
) -> None:
    with answering(status, PAGE, "text/html") as (address, asked):
        error_of(monkeypatch, f"http://{address}", CALLS["EC2 (DescribeInstances)"])
    assert len(asked) == tries


def test_a_truncated_answer_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(200, "<DescribeInstancesResponse>", "text/xml") as (address, _):
        text = error_of(monkeypatch, f"http://{address}", CALLS["EC2 (DescribeInstances)"])
    assert text.startswith("a question: the answer is not from AWS: ")
    assert text.endswith(ADVICE)
    assert "\n" not in text


@pytest.mark.parametrize(
    ("endpoint", "words"),
    [
        ("https://nowhere.invalid", 'connect to the endpoint URL: "https://nowhere.invalid/"'),
        ("http://127.0.0.1:1", 'connect to the endpoint URL: "http://127.0.0.1:1/"'),
        ("https://{address}", "SSL validation failed for https://{address}/"),
        ("mars", "Invalid endpoint: mars"),
    ],
)
def test_an_unreachable_endpoint_is_reported(
    monkeypatch: pytest.MonkeyPatch, endpoint: str, words: str
) -> None:
    with answering(200, "", "text/plain") as (address, _):
        text = error_of(
            monkeypatch,
            endpoint.format(address=address),
            CALLS["STS (GetCallerIdentity)"],
        )
        assert words.format(address=address) in text
    assert text.endswith(ADVICE)
    assert "\n" not in text


def test_a_profile_that_does_not_exist_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nosuch")
    with pytest.raises(TrialfleetError, match=r"\(nosuch\) could not be found"):
        Aws()
