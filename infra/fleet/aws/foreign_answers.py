"""Detection of answers that come from a proxy, a portal or a mistyped host instead of AWS.

botocore assumes that each answer is from AWS. On other answers its parsers fail, or find nothing.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

from trialfleet.errors import FleetError

LONGEST_EXCERPT = 160  # characters of a page
ADVICE = "check the proxy (HTTPS_PROXY), AWS_ENDPOINT_URL and aws_regions"
# The first bytes of a body, by botocore's name of the protocol.
_BEGINNINGS: dict[str, bytes | tuple[bytes, ...]] = {
    **dict.fromkeys(("ec2", "query", "rest-xml"), b"<"),
    **dict.fromkeys(("json", "rest-json"), (b"{", b"<")),  # some refusals are XML
}
_HTML = re.compile(rb"\s*(<\?xml[^>]*>\s*)?<(!doctype html|html)", re.IGNORECASE)
_NOT_TEXT = re.compile(r"<(style|script)\b.*?</\1>|<[^>]*>", re.IGNORECASE | re.DOTALL)
_MARK = "NotAnAnswerOfAws"  # a key of botocore's parsed answers
_UNPARSED = 502  # with this status botocore's parsers ignore an empty body


def watch(client: Any) -> None:
    """Make a boto3 client raise FleetError if an answer is not from AWS."""
    client.meta.events.register("before-parse", _before_parse)
    client.meta.events.register("after-call", _after_call)


def _before_parse(
    operation_model: Any,
    response_dict: dict[str, Any],
    customized_response_dict: dict[str, Any],
    **_: Any,
) -> None:
    if _is_foreign(operation_model, response_dict):
        customized_response_dict[_MARK] = response_dict["status_code"]
        response_dict |= {"body": b"", "status_code": _UNPARSED}


def _after_call(http_response: Any, parsed: dict[str, Any], model: Any, **_: Any) -> None:
    if _MARK in parsed:
        service = model.service_model.metadata
        called = service.get("serviceAbbreviation", service["serviceFullName"])
        text = http_response.content.decode(errors="replace")
        excerpt = " ".join((_NOT_TEXT.sub(" ", text).strip() or text).split())
        raise FleetError(
            f"{re.sub('^(Amazon|AWS) ', '', called)} ({model.name}): "
            f"{urlsplit(http_response.url).netloc} gave "
            f"an answer that is not from AWS, with HTTP status {parsed[_MARK]}"
            f"{': ' if excerpt else ''}{excerpt[:LONGEST_EXCERPT]}; {ADVICE}"
        )


def _is_foreign(operation_model: Any, response: dict[str, Any]) -> bool:
    body, refused = response["body"], response["status_code"] >= 300
    if not isinstance(body, bytes) or operation_model.http.get("method") == "HEAD":
        return False  # a stream, or no body
    if not body.strip():
        return refused and "html" in response["headers"].get("content-type", "")
    protocol = operation_model.service_model.resolved_protocol
    if protocol == "rest-xml" and not refused:
        return bool(_HTML.match(body))  # an object's or a document's own bytes
    begins = body.lstrip().startswith(_BEGINNINGS.get(protocol, b""))
    return not begins or bool(_HTML.match(body))
