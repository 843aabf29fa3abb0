"""The last line of an EC2 node's boot log in S3 or, without a log, of the node's console."""

from __future__ import annotations

import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from botocore.exceptions import BotoCoreError, ClientError

from trialfleet.errors import FleetError
from trialfleet.infra.fleet.aws import bucket
from trialfleet.infra.fleet.aws.clients import Aws, asking, or_none
from trialfleet.infra.fleet.spec import names
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.infra.fleet.spec.machines import Instance

MISSING = ("NoSuchKey", "NoSuchBucket")
AT_ONCE = 8  # nodes in parallel
LONGEST = 300  # characters of a line
# A line of the node's own log: its time, as the bootstrap and the user data write it.
OWN_LINE = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z .*")


def last_messages(aws: Aws, fleet: Fleet, instances: Iterable[Instance]) -> dict[str, str]:
    """Return a text with the last line of each instance's boot log, by the instance's id.

    If the log is missing or unreadable, the text has the console's last line. If AWS gives no
    console output either, the text is the error of reading the log. An instance with none of these
    is left out.
    """
    wanted = list(instances)
    if not wanted:
        return {}
    aws.sts(fleet.home)  # boto3 can't make clients in several threads at once
    aws.s3(fleet.home)
    for aws_region in {instance.aws_region for instance in wanted}:
        aws.ec2(aws_region)
    with ThreadPoolExecutor(AT_ONCE) as threads:
        messages = threads.map(lambda i: _message(aws, fleet, i), wanted)
        return {i.id: words for i, words in zip(wanted, messages, strict=True) if words}


def _message(aws: Aws, fleet: Fleet, instance: Instance) -> str:
    try:
        return _log(aws, fleet, instance) or _console(aws, instance)
    except FleetError as error:
        return _console(aws, instance) or str(error)


def _log(aws: Aws, fleet: Fleet, instance: Instance) -> str:
    place = bucket.fleet_bucket(fleet, aws.account(fleet.home))
    s3, key = aws.s3(fleet.home), names.log_key(fleet.full_name, instance.id)
    with asking("its log can't be read"):
        found = or_none(lambda: s3.get_object(Bucket=place, Key=key), *MISSING)
        text = found["Body"].read() if found else b""
    line = last_line(text.decode(errors="replace"))
    return f"its log ends: {line}" if line else ""


def _console(aws: Aws, instance: Instance) -> str:
    """Return a text with the console's last line, or an empty text if AWS gives none."""
    for latest in (True, False):  # EC2 machines before Nitro only have an older output
        try:
            answer = aws.ec2(instance.aws_region).get_console_output(
                InstanceId=instance.id, Latest=latest
            )
        except (ClientError, BotoCoreError):
            continue
        line = last_line(answer.get("Output", ""))
        return f"its console ends: {line}" if line else ""
    return ""


def last_line(text: str) -> str:
    """Return the last line that the node's boot program wrote or, without one, the last line."""
    lines = [line.strip() for line in re.split(r"[\r\n]+", text) if line.strip()]
    own = [match[0] for line in lines if (match := OWN_LINE.search(line))]
    return (own or lines or [""])[-1][:LONGEST]
