"""ClassAds as plain values, from HTCondor's bindings and tools, without undefined attributes.

For `undefined` the bindings return `classad2.Value.Undefined`, an int enum with the value 2. So for
an ad with `Price = undefined`, `ad.get("Price", 0)` is 2, not 0. In JSON, HTCondor's tools print
`undefined` as null, and expressions as text.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from enum import IntEnum
from typing import Any

_EXPRESSION = "/Expr("  # what the text of an expression begins with in a tool's JSON


class JobStatus(IntEnum):
    """The values of a job's attribute JobStatus."""

    IDLE = 1
    RUNNING = 2
    REMOVED = 3
    COMPLETED = 4
    HELD = 5
    SENDS_OUTPUT = 6
    SUSPENDED = 7
    BLOCKED = 9  # in a slot, while the machine gets the files that the job shares with others


IN_SLOT = frozenset({JobStatus.RUNNING, JobStatus.SENDS_OUTPUT, JobStatus.SUSPENDED})
GONE = frozenset({JobStatus.REMOVED, JobStatus.COMPLETED})  # leaves the queue in a moment


class Universe(IntEnum):
    """The values of a job's attribute JobUniverse."""

    VANILLA = 5
    SCHEDULER = 7  # DAGMans' jobs; they and local jobs need no slot
    LOCAL = 12


HELD_BY_A_PERSON = 1  # HoldReasonCode UserRequest


def plain_attributes(ad: Mapping[str, Any], as_text: Collection[str] = ()) -> dict[str, Any]:
    """Return the values of the defined attributes of `ad`, by name.

    For the names in `as_text`, return the expression as text instead of its value.
    """
    values = {name: (text if name in as_text else value)(ad, name) for name in ad}
    return {name: found for name, found in values.items() if found is not None}


def value(ad: Mapping[str, Any], name: str) -> Any:
    """Return the value of an attribute, or None if it is missing, `undefined` or `error`."""
    import classad2

    found = ad.get(name)
    if isinstance(found, classad2.ExprTree):
        found = found.eval(ad) if isinstance(ad, classad2.ClassAd) else found.eval()
    return None if isinstance(found, classad2.Value) else found


def text(ad: Mapping[str, Any], name: str) -> str | None:
    """Return an attribute's expression as text, or None if missing, `undefined` or `error`."""
    import classad2

    found = ad.get(name)
    return None if found is None or isinstance(found, classad2.Value) else str(found)


def from_json(text: str) -> list[dict[str, Any]]:
    """Return the ads in a tool's JSON output. ValueError if the output is not JSON.

    Leave out attributes whose value is `undefined` or an expression. An empty output has no ads.
    """
    return [
        {
            name: found
            for name, found in ad.items()
            if found is not None and not str(found).startswith(_EXPRESSION)
        }
        for ad in json.loads(text.strip() or "[]")
    ]
