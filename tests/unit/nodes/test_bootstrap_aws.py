from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import quote

import pytest
from botocore import auth, awsrequest
from botocore.credentials import Credentials as BotocoreCredentials
from hypothesis import given
from hypothesis import strategies as st

from tests.node_stand_ins import (
    HANG_UP,
    INSTANCE,
    SILENCE,
    SILENT_SECONDS,
    ImdsStandIn,
    playing_imds,
    serving,
)
from trialfleet.instance_aws import (
    Aws,
    AwsError,
    Credentials,
    Imds,
    RefusedError,
    credentials,
    refusal,
    signed_headers,
)

KEYS = Credentials(
    "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "FwoGZXIvYXdzEXAMPLE//=="
)
NOW = datetime(2026, 11, 20, 10, 11, 12, tzinfo=UTC)
NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF), min_size=1, max_size=20)


@pytest.fixture
def imds() -> Iterator[ImdsStandIn]:
    with playing_imds(ImdsStandIn()) as stand_in:
        yield stand_in


def botocores(
    method: str, url: str, headers: dict[str, str], body: bytes, scope: tuple[str, str]
) -> str:
    request: Any = awsrequest.AWSRequest(method=method, url=url, data=body, headers=headers)
    keys = BotocoreCredentials(KEYS.key, KEYS.secret, KEYS.session)
    kind = auth.S3SigV4Auth if scope[0] == "s3" else auth.SigV4Auth
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(auth, "get_current_datetime", lambda: NOW)
        kind(keys, *scope).add_auth(request)
    return str(request.headers["Authorization"])


@pytest.mark.parametrize("scope", [("ssm", "eu-west-1"), ("ssm", "cn-north-1")])
def test_a_call_of_ssm_is_signed_byte_for_byte_as_botocore_does(scope: tuple[str, str]) -> None:
    url = f"https://ssm.{scope[1]}.amazonaws.com/"
    headers = {
        "Content-Type": "application/x-amz-json-1.1",
        "X-Amz-Target": "AmazonSSM.GetParameter",
    }
    body = json.dumps({"Name": "/trialfleet/demo/node-token", "WithDecryption": True}).encode()
    ours = signed_headers("POST", url, headers, body, scope, KEYS, NOW)["Authorization"]
    assert ours == botocores("POST", url, headers, body, scope)


@pytest.mark.slow
@given(st.sampled_from(["GET", "PUT"]), NAMES, st.binary(max_size=50))
def test_a_request_for_an_s3_object_is_signed_byte_for_byte_as_botocore_does(
    method: str, key: str, body: bytes
) -> None:
    url = f"https://s3.eu-west-1.amazonaws.com/bucket/fleet/{quote(key)}"
    body = body if method == "PUT" else b""
    ours = signed_headers(method, url, {}, body, ("s3", "eu-west-1"), KEYS, NOW)
    assert ours["Authorization"] == botocores(method, url, {}, body, ("s3", "eu-west-1"))
    assert ours["X-Amz-Security-Token"] == KEYS.session


def test_metadata_requests_share_one_token(imds: ImdsStandIn) -> None:
    client = Imds(imds.address)
    assert client.get("meta-data/instance-id") == INSTANCE["meta-data/instance-id"]
    assert client.get("/meta-data/instance-type") == "g5.xlarge"
    assert imds.tokens == 1


def test_missing_metadata_are_none(imds: ImdsStandIn) -> None:
    assert Imds(imds.address).get("meta-data/spot/instance-action") is None


def test_a_token_that_ran_out_is_replaced_once(imds: ImdsStandIn) -> None:
    client = Imds(imds.address)
    client.get("meta-data/instance-id")
    imds.expired = 1
    assert client.get("meta-data/instance-type") == "g5.xlarge"
    assert imds.tokens == 2
    imds.expired = 99
    with pytest.raises(AwsError, match="HTTP 401"):
        client.get("meta-data/instance-type")


def test_metadata_that_cannot_be_reached_is_an_error_with_its_path() -> None:
    with pytest.raises(AwsError, match=r"metadata meta-data/x: .*refused"):
        Imds("http://127.0.0.1:9").get("meta-data/x")


@pytest.mark.parametrize("trouble", [429, 500, 503, HANG_UP])
def test_temporary_failures_of_the_metadata_are_retried(imds: ImdsStandIn, trouble: int) -> None:
    imds.troubles = [trouble, trouble]
    client = Imds(imds.address, waits=(0, 0))
    assert client.get("meta-data/instance-type") == "g5.xlarge"
    assert imds.troubles == []
    imds.troubles = [trouble] * 4
    with pytest.raises(AwsError, match="metadata meta-data/instance-type: "):
        client.get("meta-data/instance-type")
    assert len(imds.troubles) == 1


@pytest.mark.slow
def test_requests_for_metadata_are_retried_after_a_timeout(imds: ImdsStandIn) -> None:
    imds.troubles = [SILENCE]
    client = Imds(imds.address, timeout=SILENT_SECONDS / 2, waits=(0, 0))
    assert client.get("meta-data/instance-type") == "g5.xlarge"
    assert imds.troubles == []


def test_refused_requests_for_metadata_are_not_retried(imds: ImdsStandIn) -> None:
    imds.troubles = [403, 403]
    with pytest.raises(AwsError, match="HTTP 403"):
        Imds(imds.address, waits=(0, 0)).get("meta-data/instance-type")
    assert imds.troubles == [403]


def test_metadata_are_requested_once_by_default(imds: ImdsStandIn) -> None:
    imds.troubles = [503, 503]
    with pytest.raises(AwsError, match="HTTP 503"):
        Imds(imds.address).get("meta-data/instance-type")
    assert imds.troubles == [503]


@pytest.mark.parametrize("expected", ['{"Code": "AssumeRoleUnauthorizedAccess"}', "<html>"])
def test_a_role_without_keys_is_reported_with_the_services_answer(
    imds: ImdsStandIn, expected: str
) -> None:
    imds.paths["meta-data/iam/security-credentials/trialfleet-demo"] = expected
    with pytest.raises(AwsError, match=f"role trialfleet-demo gives no keys: {expected}"):
        credentials(Imds(imds.address))


def test_metadata_requests_bypass_a_proxy(
    imds: ImdsStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert Imds(imds.address).get("meta-data/instance-type") == "g5.xlarge"


def test_an_instance_without_a_role_is_reported(imds: ImdsStandIn) -> None:
    del imds.paths["meta-data/iam/security-credentials/"]
    with pytest.raises(AwsError, match="no IAM role"):
        credentials(Imds(imds.address))


def test_the_roles_keys_are_those_of_the_metadata(imds: ImdsStandIn) -> None:
    assert credentials(Imds(imds.address)).key == "AKIDEXAMPLE"


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("<Error><Code>NoSuchKey</Code><Message>gone</Message></Error>", "NoSuchKey", "gone"),
        ('{"__type":"com.x#ParameterNotFound","message":"no"}', "ParameterNotFound", "no"),
        ('{"__type":"AccessDeniedException","Message":"not you"}', "AccessDeniedException", "not"),
        ('{"message":"Internal Server Error"}', "HTTP 503", "HTTP 503: Internal Server Error"),
        ('{"fault": {"code": 7}}', "HTTP 503", 'HTTP 503: {"fault": {"code": 7}}'),
        ("<html>a proxy's page</html>", "HTTP 503", "HTTP 503: <html>a proxy's page</html>"),
        ('{"__type": "broken o', "HTTP 503", 'HTTP 503: {"__type": "broken o'),
    ],
)
def test_a_refusal_has_aws_name_and_reason(text: str, code: str, words: str) -> None:
    error = refusal(503, text)
    assert error.code == code
    assert words in str(error)


class Answers:
    """Answers requests with these statuses and bodies in turn, the last one for ever."""

    def __init__(self, *answers: tuple[int, str]) -> None:
        self.answers = list(answers)
        self.seen: list[str] = []

    def handler(self) -> type[BaseHTTPRequestHandler]:
        answers = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answers.seen.append(f"{self.command} {self.path}")
                left = answers.answers
                status, body = left.pop(0) if len(left) > 1 else left[0]
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body.encode())

            do_POST = do_GET  # noqa: N815

            def log_message(self, *_words: object) -> None:
                pass

        return Handler


SLOW_DOWN = "<Error><Code>SlowDown</Code><Message>later</Message></Error>"


def test_a_temporary_failure_of_a_call_is_retried(imds: ImdsStandIn) -> None:
    answers = Answers((503, SLOW_DOWN), (403, SLOW_DOWN), (200, "content"))
    with serving(answers.handler()) as address:
        aws = Aws(Imds(imds.address), "eu-west-1", address, waits=(0, 0, 0))
        assert aws.get_object("bucket", "fleet/x y") == b"content"
    assert answers.seen == ["GET /bucket/fleet/x%20y"] * 3


def test_a_call_fails_after_its_last_attempt(imds: ImdsStandIn) -> None:
    answers = Answers((503, SLOW_DOWN))
    with serving(answers.handler()) as address:
        aws = Aws(Imds(imds.address), "eu-west-1", address, waits=(0,))
        with pytest.raises(AwsError, match=r"s3: GET .*/bucket/k: SlowDown: later"):
            aws.get_object("bucket", "k")
    assert len(answers.seen) == 2


def test_a_missing_parameter_is_not_requested_again(imds: ImdsStandIn) -> None:
    answers = Answers((400, '{"__type":"ParameterNotFound"}'))
    with serving(answers.handler()) as address:
        aws = Aws(Imds(imds.address), "eu-west-1", address, waits=(0, 0, 0))
        with pytest.raises(AwsError, match="ParameterNotFound"):
            aws.parameter("/trialfleet/demo/node-token")
    assert len(answers.seen) == 1


def test_each_service_has_its_regional_address() -> None:
    imds = Imds("http://127.0.0.1:9")
    assert Aws(imds, "eu-west-1")._host("s3") == "https://s3.eu-west-1.amazonaws.com"
    assert Aws(imds, "cn-north-1")._host("ssm") == "https://ssm.cn-north-1.amazonaws.com.cn"


def test_a_refusal_is_an_error_of_aws() -> None:
    assert isinstance(RefusedError("NoSuchKey", ""), AwsError)
