"""The outbox of alerts: events, and where each event is still to be sent.

A delivery is one event for one channel. It is first sent and then noted as sent. After a crash
between these two steps, it is sent again with the same event id. So an event arrives once, or
rarely twice, at each channel that works.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from trialfleet.errors import TrialfleetError
from trialfleet.files import lock_file
from trialfleet.workflows.facts.journal.event import Event
from trialfleet.workflows.formatting import local_time
from trialfleet.workflows.sqlite_file import open_database
from trialfleet.workflows.study.notify import Channel

_SCHEMA = """
CREATE TABLE IF NOT EXISTS events (
    id TEXT PRIMARY KEY, content TEXT NOT NULL, number INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS deliveries (
    event TEXT NOT NULL REFERENCES events (id), channel TEXT NOT NULL, title TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('waiting', 'sent', 'abandoned')),
    tries INTEGER NOT NULL DEFAULT 0, due REAL NOT NULL DEFAULT 0, first REAL, error TEXT,
    changed TEXT NOT NULL, PRIMARY KEY (event, channel)
) STRICT;
"""

State = Literal["waiting", "sent", "abandoned"]


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """One event for one channel (where alerts are sent). Times are in Unix seconds."""

    event: Event
    channel: str  # its `channel_key`
    title: str
    state: State
    tries: int  # that failed
    due: float  # when the next try follows
    first: float | None  # when a try first failed
    error: str | None
    changed: datetime


_DELIVERY = TypeAdapter(Delivery)


class Outbox:
    """An outbox, which several processes may use at the same time."""

    def __init__(self, folder: Path) -> None:
        """Open or create the outbox; TrialfleetError if that fails."""
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TrialfleetError(
                f"the folder for alerts {str(folder)!r} can't be created: {error.strerror}"
            ) from error
        with self._open() as connection:
            connection.executescript(_SCHEMA)

    def put(self, events: Iterable[Event], channels: Sequence[Channel], *, is_daily: bool) -> None:
        """Add new events, to be sent to those of `channels` that want them.

        Events that are already in the outbox stay unchanged. `is_daily` says whether the events are
        about daily runs. A channel without a list of `events` gets no `run-done` events of daily
        runs.
        """
        now = _now()
        with self._open() as connection:
            for event in events:
                content = json.dumps(event.to_json(), ensure_ascii=False)
                added = connection.execute(
                    "INSERT INTO events SELECT ?, ?, COALESCE(MAX(number), 0) + 1 FROM events"
                    " WHERE true ON CONFLICT DO NOTHING",
                    (event.id, content),
                )
                if added.rowcount:
                    connection.executemany(
                        "INSERT INTO deliveries (event, channel, title, state, changed)"
                        " VALUES (?, ?, ?, 'waiting', ?) ON CONFLICT DO NOTHING",
                        [
                            (event.id, channel_key(channel), channel.title, now)
                            for channel in channels
                            if event.kind in channel.wanted_kinds(is_daily=is_daily)
                        ],
                    )

    def waiting_deliveries(self) -> list[Delivery]:
        """Return the deliveries that are still to be sent, now or later, oldest event first."""
        return [one for one in self.deliveries() if one.state == "waiting"]

    def deliveries(self) -> list[Delivery]:
        """Return every delivery, oldest event first."""
        with self._open() as connection:
            rows = connection.execute(
                "SELECT * FROM deliveries JOIN events ON events.id = deliveries.event"
                " ORDER BY number, deliveries.rowid"
            ).fetchall()
        return [
            _DELIVERY.validate_python(row | {"event": Event.read(json.loads(row["content"]))})
            for row in map(dict, rows)
        ]

    def has(self, event: str) -> bool:
        """Return whether the event with the id `event` was ever added."""
        with self._open() as connection:
            query = "SELECT 1 FROM events WHERE id = ?"
            return connection.execute(query, (event,)).fetchone() is not None

    def skip(self, events: Collection[str]) -> None:
        """Mark the events with these ids as sent, because another manager has sent them."""
        with self._open() as connection:
            connection.executemany(
                "UPDATE deliveries SET state = 'sent', error = NULL WHERE event = ?"
                " AND state = 'waiting'",
                [(event,) for event in events],
            )
            connection.executemany(
                "INSERT INTO events SELECT ?, '{}', COALESCE(MAX(number), 0) + 1 FROM events"
                " WHERE true ON CONFLICT DO NOTHING",
                [(event,) for event in events],
            )

    def sent_events(self) -> list[str]:
        """Return the ids of the events whose deliveries were all sent."""
        query = "SELECT event FROM deliveries GROUP BY event HAVING SUM(state != 'sent') = 0"
        with self._open() as connection:
            return [row["event"] for row in connection.execute(query)]

    def mark_sent(self, deliveries: Iterable[Delivery]) -> None:
        """Record that these deliveries were sent."""
        self._settle(deliveries, "sent", None)

    def abandon(self, deliveries: Iterable[Delivery], error: str) -> None:
        """Record that these deliveries will never be sent, and `error` as the reason."""
        self._settle(deliveries, "abandoned", error)

    def put_off(self, deliveries: Iterable[Delivery], error: str, now: float, due: float) -> None:
        """Record that sending failed with `error` at `now`; the next try follows at `due`."""
        with self._open() as connection:
            connection.executemany(
                "UPDATE deliveries SET tries = tries + 1, due = ?, first = COALESCE(first, ?),"
                " error = ?, changed = ? WHERE event = ? AND channel = ? AND state = 'waiting'",
                [(due, now, error, _now(), each.event.id, each.channel) for each in deliveries],
            )

    def hurry(self) -> None:
        """Make all waiting deliveries due now."""
        with self._open() as connection:
            connection.execute("UPDATE deliveries SET due = 0 WHERE state = 'waiting'")

    def _settle(self, deliveries: Iterable[Delivery], state: State, error: str | None) -> None:
        with self._open() as connection:
            connection.executemany(
                "UPDATE deliveries SET state = ?, error = ?, changed = ?"
                " WHERE event = ? AND channel = ? AND state = 'waiting'",
                [(state, error, _now(), each.event.id, each.channel) for each in deliveries],
            )

    def hold_lock(self, *, wait: bool) -> AbstractContextManager[bool]:
        """Hold the lock for sending during the `with` block; yield whether this process got it.

        With `wait`, this process waits until it gets the lock.
        """
        return lock_file(self._folder / "lock", wait=wait)

    def _open(self) -> AbstractContextManager[sqlite3.Connection]:
        return open_database(self._folder / "outbox.db", "database of alerts")


def channel_key(channel: Channel) -> str:
    """Return a key made from all settings of a channel except its `events`."""
    kept = channel.model_dump_json(exclude={"events"})
    return hashlib.sha256(kept.encode()).hexdigest()[:16]


def undelivered_lines(folder: Path) -> tuple[str, ...]:
    """Return a message about each error in sending alerts; the messages have no secrets.

    If the outbox in `folder` can't be read, the only message is the reason.
    """
    if not (folder / "outbox.db").exists():
        return ()
    try:
        waiting = [one for one in Outbox(folder).deliveries() if one.error]
    except TrialfleetError as error:
        return (str(error),)
    alike: dict[tuple[str, str | None], list[Delivery]] = defaultdict(list)
    for one in waiting:
        alike[one.title, one.error].append(one)
    return tuple(
        f"alerts by {title}: {error} ({_next_step(those)})"
        for (title, error), those in alike.items()
    )


def _next_step(alike: Sequence[Delivery]) -> str:
    waiting = [one for one in alike if one.state == "waiting"]
    if not waiting:
        return "abandoned"
    again = datetime.fromtimestamp(min(one.due for one in waiting), UTC)
    return f"{len(waiting)} waiting, retried at {local_time(again)}"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
