"""Calls of an EC2 node to AWS without boto3: its metadata (IMDSv2), S3 objects, SSM parameters.

The instance's boot script (user data) contains this file's code. So this file imports nothing from
trialfleet, and no boto3: a booting node has only the standard library.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import http.client
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any
from urllib.parse import quote, urlsplit

# An environment variable of the AWS SDKs, with their meaning.
ENDPOINT = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
IMDS = "http://169.254.169.254"
TOKEN_SECONDS = 21_600  # a token's maximum lifetime
WAITS = (1, 2, 4, 8, 16)  # seconds between attempts; AWS knows a new role only after a while
PASSING = {429, 500, 502, 503, 504}  # the metadata service's answers to too many requests
NO_ANSWER = (OSError, http.client.HTTPException)  # HTTPException: a truncated answer
# Refusals for which a retry is useless.
LASTING = {"NoSuchBucket", "NoSuchKey", "ParameterNotFound", "ValidationException"}


class AwsError(Exception):
    """AWS or the instance's metadata service refused a request, or couldn't be reached."""


class Imds:
    """The instance's metadata, by version 2 of AWS's service IMDS (with a session token)."""

    def __init__(self, base: str = "", timeout: float = 5, waits: Sequence[float] = ()) -> None:
        """Set the service's URL and the `timeout` in seconds.

        If `base` is empty, the URL comes from the SDKs' environment variable (see ENDPOINT), or is
        AWS's own. A request that gets no answer, 429 or 5xx is repeated after each wait in `waits`
        (seconds).
        """
        self._base = (base or os.environ.get(ENDPOINT) or IMDS).rstrip("/")
        self._timeout, self._waits = timeout, waits
        self._token = ""
        # Ignore a proxy of the environment, because no proxy can reach this machine's metadata.
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open

    def get(self, path: str) -> str | None:
        """Return the value at a path such as `meta-data/instance-id`. AwsError on failure.

        The result is None if the value does not exist, as with a tag that the instance lacks.
        """
        for wait in (*self._waits, None):
            try:
                return self._read(path)
            except urllib.error.HTTPError as error:
                error.close()
                if error.code == 404:
                    return None
                reason, passing = f"HTTP {error.code}", error.code in PASSING
            except NO_ANSWER as error:
                reason, passing = str(error) or type(error).__name__, True
            if wait is None or not passing:
                raise AwsError(f"can't read the instance metadata {path}: {reason}")
            time.sleep(wait)
        raise AssertionError

    def _read(self, path: str) -> str:
        for fresh in (False, True):
            if fresh or not self._token:
                seconds = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_SECONDS)}
                self._token = self._ask("PUT", "api/token", seconds)
            try:
                return self._ask("GET", path, {"X-aws-ec2-metadata-token": self._token})
            except urllib.error.HTTPError as error:
                if fresh or error.code != 401:
                    raise
                error.close()  # the token ran out
        raise AssertionError

    def _ask(self, method: str, path: str, headers: dict[str, str]) -> str:
        url = f"{self._base}/latest/{path.lstrip('/')}"
        request = urllib.request.Request(url, headers=headers, method=method)  # noqa: S310
        with self._open(request, timeout=self._timeout) as answer:
            text: str = answer.read().decode(errors="replace")
            return text


@dataclass(frozen=True)
class Credentials:
    """Keys of the instance's IAM role, valid for some hours."""

    key: str
    secret: str
    session: str


def credentials(imds: Imds) -> Credentials:
    """Return the keys of the instance's IAM role. AwsError if AWS gives none."""
    place = "meta-data/iam/security-credentials/"
    role = (imds.get(place) or "").strip()
    found = imds.get(place + role.splitlines()[0]) if role else None
    if not found:
        raise AwsError("this instance has no IAM role: no instance profile is attached (yet)")
    try:
        keys = json.loads(found)
        return Credentials(keys["AccessKeyId"], keys["SecretAccessKey"], keys["Token"])
    except (ValueError, KeyError) as error:  # such as {"Code": "AssumeRoleUnauthorizedAccess", …}
        answer = " ".join(found.split())[:200]
        raise AwsError(f"this instance's role {role} gives no keys: {answer}") from error


class Aws:
    """The few calls to AWS that a node makes, signed with the keys of the instance's IAM role."""

    def __init__(
        self,
        imds: Imds,
        aws_region: str,
        endpoint: str = "",
        waits: Sequence[float] = WAITS,
        timeout: float = 60,
    ) -> None:
        """Set the AWS region, and the endpoint if it is not AWS's own.

        A failed call is repeated after each wait, unless AWS's error code is in `LASTING`. The
        waits and `timeout` are in seconds.
        """
        self._imds, self._region, self._waits, self._timeout = imds, aws_region, waits, timeout
        self._endpoint = endpoint.rstrip("/")

    def get_object(self, bucket: str, key: str) -> bytes:
        """Return the content of an object in S3. AwsError if that fails."""
        return self._call("s3", "GET", self._object(bucket, key))

    def put_object(self, bucket: str, key: str, body: bytes) -> None:
        """Write an object to S3. AwsError if that fails."""
        self._call("s3", "PUT", self._object(bucket, key), body, {"Content-Type": "text/plain"})

    def parameter(self, name: str) -> str:
        """Return the decrypted value of a parameter in SSM. AwsError if that fails."""
        body = json.dumps({"Name": name, "WithDecryption": True}).encode()
        headers = {
            "Content-Type": "application/x-amz-json-1.1",
            "X-Amz-Target": "AmazonSSM.GetParameter",
        }
        answer = self._call("ssm", "POST", self._host("ssm") + "/", body, headers)
        value: str = json.loads(answer)["Parameter"]["Value"]
        return value

    def _host(self, service: str) -> str:
        china = ".cn" if self._region.startswith("cn-") else ""
        return self._endpoint or f"https://{service}.{self._region}.amazonaws.com{china}"

    def _object(self, bucket: str, key: str) -> str:
        return f"{self._host('s3')}/{bucket}/{quote(key)}"

    def _call(
        self,
        service: str,
        method: str,
        url: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        for wait in (*self._waits, None):
            try:
                # Sign each attempt, because a signature is valid for minutes.
                keys = credentials(self._imds)
                now = datetime.now(timezone.utc)  # noqa: UP017  a node may have Python 3.10
                scope = (service, self._region)
                signed = signed_headers(method, url, headers or {}, body, scope, keys, now)
                return fetch(method, url, signed, body, self._timeout)
            except (AwsError, *NO_ANSWER) as error:
                if wait is None or getattr(error, "code", None) in LASTING:
                    raise AwsError(f"{service}: {method} {url}: {error}") from error
                time.sleep(wait)
        raise AssertionError


class RefusedError(AwsError):
    """AWS answered with an error. `code` is AWS's error code."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(f"{code}: {reason}" if reason else code)
        self.code = code


def fetch(
    method: str, url: str, headers: Mapping[str, str], body: bytes, timeout: float = 60
) -> bytes:
    """Return the body of the answer to a request.

    RefusedError if the answer is an error. An exception of NO_ANSWER if there is no answer.
    """
    data = body if method != "GET" else None
    request = urllib.request.Request(url, data, dict(headers), method=method)  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:  # noqa: S310
            content: bytes = answer.read()
            return content
    except urllib.error.HTTPError as error:
        with error:
            raise refusal(error.code, error.read().decode(errors="replace")) from error


def refusal(status: int, text: str) -> RefusedError:
    """Return the error that an answer of AWS describes in XML (S3) or JSON (SSM).

    If the answer has no error code, the HTTP status is used, as in `HTTP 403`.
    """
    values: dict[str, Any] = {}
    with contextlib.suppress(ValueError):
        values = json.loads(text) if text.startswith("{") else {}
    parts = [text.partition(f"<{tag}>")[2].partition("<")[0] for tag in ("Code", "Message")]
    code = str(values.get("__type") or parts[0]).rpartition("#")[2]
    reason = str(values.get("message") or values.get("Message") or parts[1])
    if not code:  # perhaps a proxy's answer
        return RefusedError(f"HTTP {status}", reason or " ".join(text.split())[:200])
    return RefusedError(code, reason)


def signed_headers(
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    scope: tuple[str, str],
    keys: Credentials,
    now: datetime,
) -> dict[str, str]:
    """Return the headers of a request together with AWS's signature, version 4.

    `headers` are included in the result. `url` has no query, and its path is already
    percent-encoded. `scope` is AWS's name of the service, and the AWS region. `now` is in UTC,
    within 5 minutes of AWS's clock.
    """
    parts, moment = urlsplit(url), now.strftime("%Y%m%dT%H%M%SZ")
    digest = hashlib.sha256(body).hexdigest()
    named = {**headers, "Host": parts.netloc, "X-Amz-Date": moment}
    named["X-Amz-Security-Token"] = keys.session
    if scope[0] == "s3":
        named["X-Amz-Content-SHA256"] = digest
    lines = {name.lower(): value for name, value in named.items()}
    names = ";".join(sorted(lines))
    listed = "".join(f"{name}:{lines[name]}\n" for name in sorted(lines))
    request = "\n".join([method, parts.path or "/", "", listed, names, digest])
    where = f"{moment[:8]}/{scope[1]}/{scope[0]}/aws4_request"
    hashed = hashlib.sha256(request.encode()).hexdigest()
    signature = sign(keys.secret, where, f"AWS4-HMAC-SHA256\n{moment}\n{where}\n{hashed}")
    named["Authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={keys.key}/{where}, "
        f"SignedHeaders={names}, Signature={signature}"
    )
    return named


def sign(secret: str, where: str, text: str) -> str:
    """Return the signature of `text`, made with a key derived from `secret` and `where`.

    `where` is the credential scope: date, region, service and `aws4_request`.
    """
    key = f"AWS4{secret}".encode()
    for part in where.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.new(key, text.encode(), "sha256").hexdigest()
