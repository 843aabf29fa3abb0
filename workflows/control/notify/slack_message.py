"""Events as a Slack message. Text that is too long for one section continues in the next one.

The limits are Block Kit's: https://docs.slack.dev/reference/block-kit/blocks/section-block
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from trialfleet.workflows.facts.journal.event import (
    MOST_SHOWN,
    Event,
    count_fitting,
    more_lines,
    omitted_events,
)
from trialfleet.workflows.formatting import in_one_line

SECTION = 3_000  # characters of a section
SECTIONS = 50  # of a message
_TEXT = 36_000  # characters of the text without sections; Slack's limit is 40,000
_LINE = 350  # characters of a line; even escaped, it fits into a section with any title


def slack_message(events: Sequence[Event]) -> dict[str, Any]:
    """Return the Slack message about events of one kind, as blocks and as text.

    Slack shows the blocks. Its notifications, and services that don't know blocks, show the text.
    """
    texts = _section_texts(events)
    sections = [{"type": "section", "text": {"type": "mrkdwn", "text": text}} for text in texts]
    return {"text": slack_text(events), "blocks": sections}


def slack_text(events: Sequence[Event]) -> str:
    """Return events of one kind as one text, with bold titles and preformatted details."""
    shown = events[:MOST_SHOWN]
    size = min(SECTION, _TEXT // len(shown))
    parts = [text for event in shown for text in _event_texts(event, 1, size)]
    return "\n".join([*parts, *omitted_events(events)])


def _section_texts(events: Sequence[Event]) -> Iterator[str]:
    shown = events[:MOST_SHOWN]
    for event in shown:
        yield from _event_texts(event, (SECTIONS - 1) // len(shown), SECTION)
    yield from omitted_events(events)


def _event_texts(event: Event, max_texts: int, max_length: int) -> Iterator[str]:
    """Yield an event's title and lines as at most `max_texts` texts.

    Each text has at most `max_length` characters. The last one says how many lines don't fit.
    """
    start, lines = f"{_title(event)}\n", [_line(line) for line in event.text.splitlines()]
    if not lines:
        yield _title(event)
    for number in range(1, max_texts + 1):
        if not lines:
            return
        room = max_length - len(start) - len(_code(""))
        fit = count_fitting(lines, room)
        if number == max_texts and fit < len(lines):
            fit = count_fitting(lines, room - len(more_lines(len(lines))) - 1)
            lines[fit:] = [more_lines(len(lines) - fit)]
            fit += 1
        yield start + _code("\n".join(lines[:fit]))
        start, lines = "", lines[fit:]


def _title(event: Event) -> str:
    return f"*{_escape(in_one_line(event.title))}*"


def _line(text: str) -> str:
    return _escape(text if len(text) <= _LINE else f"{text[: _LINE - 1]}…")


def _code(text: str) -> str:
    return f"```{text}```"


def _escape(text: str) -> str:
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return escaped.replace("```", "'''")
