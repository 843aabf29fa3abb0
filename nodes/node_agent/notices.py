"""Reads AWS's spot notices and the end of the node's lease from the instance's metadata.

decisions.py decides what the node does about a notice, for example that it drains.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timezone

from trialfleet.instance_aws import AwsError, Imds

ACTION = "meta-data/spot/instance-action"  # {"action": "terminate", "time": "2026-…Z"}
REBALANCE = "meta-data/events/recommendations/rebalance"  # {"noticeTime": "2026-…Z"}
EXPIRES = "meta-data/tags/instance/trialfleet:expires"  # 2026-…Z


@dataclass(frozen=True)
class Notices:
    """The notices in the metadata. A missing or unreadable notice is None."""

    interruption: str | None = None  # what AWS will do, and when
    rebalance: str | None = None  # when AWS recommended to leave
    expires: float | None = None  # end of the lease, UNIX seconds
    problem: str | None = None  # why the metadata, or a part of it, can't be read


def read(metadata: Imds) -> Notices:
    """Return the notices in the metadata. After a failed request, make no further requests."""
    problems: list[str] = []

    def ask(path: str) -> str | None:
        if problems:  # a second timeout would take too long, if AWS ends the machine in two minutes
            return None
        try:
            return metadata.get(path)
        except AwsError as error:
            problems.append(str(error))
            return None

    action, rebalance, lease = ask(ACTION), ask(REBALANCE), ask(EXPIRES)
    expires = moment(lease or "")
    if lease and expires is None:
        problems.append(f"the tag trialfleet:expires is not a time: {lease!r}")
    return Notices(
        interruption=action and format_notice(action, "{action} at {time}"),
        rebalance=rebalance and format_notice(rebalance, "{noticeTime}"),
        expires=expires,
        problem=problems[0] if problems else None,
    )


def format_notice(notice: str, words: str) -> str:
    """Return the template `words`, filled with the fields of the JSON object `notice`.

    If `notice` is not JSON or lacks a field, return the text of `notice` in one line.
    """
    try:
        return words.format_map(json.loads(notice))
    except (ValueError, LookupError, TypeError):
        return " ".join(notice.split())


def moment(text: str) -> float | None:
    """Return a time such as `2026-11-20T12:00:00Z` in UNIX seconds, or None for other text."""
    try:
        then = datetime.strptime(text.strip(), "%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        return None
    return then.replace(tzinfo=timezone.utc).timestamp()  # noqa: UP017  Python 3.10
