"""An event in a study that may be sent to people as an alert."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any, Literal

from pydantic import TypeAdapter

from trialfleet.workflows.study.notify import EventKind

MOST_SHOWN = 25  # events of one message
TEST: Literal["test"] = "test"  # the event of `trialfleet notify test`, for every channel


@dataclass(frozen=True, kw_only=True)
class Event:
    """An event in a study that may be sent as an alert.

    The same event always has the same `id`, even if it is discovered several times. `title` is one
    line. `text` has more lines: what happened, why, and the command to run next.
    """

    id: str
    kind: EventKind | Literal["test"]
    study: str
    title: str
    text: str = ""
    run: str | None = None
    region: str | None = None
    data: dict[str, Any] = field(default_factory=dict)
    at: datetime = field(default_factory=lambda: datetime.now(UTC))

    def to_json(self) -> dict[str, Any]:
        """Return the event as plain data, which `Event.read` reads."""
        return {
            "schema": 1,
            "id": self.id,
            "event": self.kind,
            "test": self.kind == TEST,
            "study": self.study,
            "run": self.run,
            "region": self.region,
            "at": self.at.isoformat(timespec="seconds"),
            "title": self.title,
            "text": self.text,
            "data": self.data,
        }

    @staticmethod
    def read(content: dict[str, Any]) -> Event:
        """Return the event from `content`, the plain data that `to_json` returned."""
        return _EVENT.validate_python({**content, "kind": content["event"]})


_EVENT = TypeAdapter(Event)


def event_id(*parts: object) -> str:
    """Return an event's id of 24 hexadecimal digits; the same `parts` give the same id."""
    text = "\0".join(map(str, parts))
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:24]


def cut_at_a_line(text: str, max_length: int) -> str:
    """Return `text`, cut at the end of a line if it has more than `max_length` characters.

    The last line of a cut text says how many lines are omitted. If even the first line is too long,
    only its beginning is returned.
    """
    lines = text.splitlines()
    text = "\n".join(lines)  # CRLF, say, has become one character
    if len(text) <= max_length:
        return text
    fit = count_fitting(lines, max_length - len(more_lines(len(lines))) - 1)
    if not fit:
        return f"{text[: max_length - 1]}…"
    return "\n".join([*lines[:fit], more_lines(len(lines) - fit)])


def count_fitting(lines: Sequence[str], room: int) -> int:
    """Return how many of the first lines fit into `room` characters, including line breaks."""
    ends = accumulate(len(line) + 1 for line in lines)
    return sum(end - 1 <= room for end in ends)


def more_lines(count: int) -> str:
    """Return the line that says how many lines are omitted."""
    return f"… and {count:,} more line{'s' * (count > 1)}"


def omitted_events(events: Sequence[Event]) -> list[str]:
    """Return a list with a line that counts the events beyond `MOST_SHOWN`; empty if none is."""
    more = len(events) - MOST_SHOWN
    return [f"… and {more} more"] if more > 0 else []
