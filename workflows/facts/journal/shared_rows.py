"""The lease and the journal of a study with two managers, in a PostgreSQL database.

The manager that has the lease works on the study's daily runs, and renews the lease meanwhile. The
other manager may take an expired lease. The lease's token is a number that increases whenever
another manager takes the lease. `write` checks in its transaction that this manager's token is
still valid. So a manager that has lost the lease records nothing (a fencing token, Kleppmann, "How
to do distributed locking", 2016). All times are by the database's clock.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import sqlalchemy
from sqlalchemy import BigInteger, Column, DateTime, Float, Identity, String, Table, Text, func
from sqlalchemy.dialects.postgresql import insert

from trialfleet.optimizer.run_ownership import Owner
from trialfleet.optimizer.storage import SCHEMA_LOCK, open_storage, storage_errors
from trialfleet.workflows.facts.journal.lease import Lease, LeaseLostError

_TABLES = sqlalchemy.MetaData()
_LEASES = Table(
    "trialfleet_leases",
    _TABLES,
    Column("study", String(255), primary_key=True),
    Column("token", BigInteger, nullable=False),
    Column("machine", String(64), nullable=False),
    Column("folder", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("renewed", DateTime(timezone=True), nullable=False),
    Column("seconds", Float, nullable=False),
)
_ROWS = Table(
    "trialfleet_journal",
    _TABLES,
    Column("number", BigInteger, Identity(), primary_key=True),
    Column("study", String(255), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("key", Text, nullable=False),
    Column("content", Text, nullable=False),
    sqlalchemy.UniqueConstraint("study", "kind", "key"),
)
_NOW = func.clock_timestamp()  # now() is when the transaction began, before it waited for locks


@dataclass(frozen=True)
class Row:
    """An unchangeable record of the journal.

    `key` is unique among the records of the same kind.
    """

    kind: str  # attempt, ended, outcome, or sent for an event whose alerts were sent
    key: str
    content: dict[str, Any]


class SharedRows:
    """A study's lease and journal, as one manager uses them; not safe for several threads.

    Methods raise OptimizerError if the database fails.
    """

    def __init__(self, url: str, study: str, own: Owner, lease_duration: timedelta) -> None:
        self.study, self._own, self._seconds = study, own, lease_duration.total_seconds()
        self._token: int | None = None
        self._read_up_to = 0
        self._engine = open_storage(url).engine
        with self._errors(), self._engine.begin() as connection:
            lock = func.pg_advisory_xact_lock(SCHEMA_LOCK)  # else two CREATEs at once may fail
            connection.execute(sqlalchemy.select(lock))
            _TABLES.create_all(connection)

    def close(self) -> None:
        """Close the connections to the database."""
        self._engine.dispose()

    def take(self) -> bool:
        """Take or renew the lease; return whether this manager has it.

        If another manager had the lease since the last call, return False even if this manager has
        taken it again. The caller must then end the work that it began under the earlier lease. The
        next call can return True.
        """
        own = {"machine": self._own.machine, "folder": self._own.folder, "host": self._own.host}
        new = insert(_LEASES).values(
            study=self.study, token=1, renewed=_NOW, seconds=self._seconds, **own
        )
        is_ours = (_LEASES.c.machine == own["machine"]) & (_LEASES.c.folder == own["folder"])
        lasted = func.make_interval(0, 0, 0, 0, 0, 0, _LEASES.c.seconds)
        taken = new.on_conflict_do_update(
            index_elements=["study"],
            set_={
                "token": _LEASES.c.token + sqlalchemy.case((is_ours, 0), else_=1),
                "renewed": _NOW,
                "seconds": self._seconds,
                **own,
            },
            where=is_ours | (_LEASES.c.renewed + lasted <= _NOW),
        ).returning(_LEASES.c.token)
        with self._errors(), self._engine.begin() as connection:
            token = connection.execute(taken).scalar_one_or_none()
        if token is None or self._token not in {None, token}:  # another manager had the lease
            self._token = None
            return False
        self._token = token
        return True

    def give_back(self) -> None:
        """Release the lease, so that another manager may take it at once."""
        ours = (_LEASES.c.study == self.study) & (_LEASES.c.token == self._token)
        with self._errors(), self._engine.begin() as connection:
            given = sqlalchemy.update(_LEASES).where(ours).values(seconds=0.0)
            connection.execute(given)
        self._token = None

    def lease(self) -> Lease | None:
        """Return the study's lease; None if no manager ever had it."""
        age = func.extract("epoch", _NOW - _LEASES.c.renewed)
        query = sqlalchemy.select(_LEASES, age.label("age")).where(_LEASES.c.study == self.study)
        with self._errors(), self._engine.connect() as connection:
            row = connection.execute(query).one_or_none()
        if row is None:
            return None
        is_ours = (row.machine, row.folder) == (self._own.machine, self._own.folder)
        return Lease(row.token, row.host, row.folder, is_ours, float(row.age), row.seconds)

    def write(self, rows: Iterable[Row]) -> None:
        """Write all new records or none; LeaseLostError if this manager has lost the lease."""
        with self._errors(), self._engine.begin() as connection:
            lease = self._lock_lease_row(connection)
            if lease is None or lease.token != self._token:
                by = f"the manager on {lease.host}" if lease else "another manager"
                raise LeaseLostError(f"the daily runs of {self.study!r} were taken over by {by}")
            self._insert(connection, rows)

    def note(self, rows: Iterable[Row]) -> None:
        """Write all new records or none, even if the other manager has the lease."""
        with self._errors(), self._engine.begin() as connection:
            self._lock_lease_row(connection)
            self._insert(connection, rows)

    def news(self) -> list[Row]:
        """Return the records written since the last call, oldest first; the first call gets all."""
        new = (_ROWS.c.study == self.study) & (_ROWS.c.number > self._read_up_to)
        query = sqlalchemy.select(_ROWS).where(new).order_by(_ROWS.c.number)
        with self._errors(), self._engine.connect() as connection:
            found = connection.execute(query).all()
        if found:
            self._read_up_to = found[-1].number
        return [Row(each.kind, each.key, json.loads(each.content)) for each in found]

    def _lock_lease_row(self, connection: sqlalchemy.Connection) -> Any:
        """Return the lease, locked against other writers until the transaction ends.

        All writers take this lock, so rows become visible in the order of their numbers. `news`
        needs this order, because it asks only for rows after the last row that it returned.
        """
        held = sqlalchemy.select(_LEASES.c.token, _LEASES.c.host)
        ours = held.where(_LEASES.c.study == self.study).with_for_update()
        return connection.execute(ours).one_or_none()

    def _insert(self, connection: sqlalchemy.Connection, rows: Iterable[Row]) -> None:
        values = [
            {
                "study": self.study,
                "kind": row.kind,
                "key": row.key,
                "content": json.dumps(row.content, ensure_ascii=False),
            }
            for row in rows
        ]
        if values:
            connection.execute(insert(_ROWS).on_conflict_do_nothing(), values)

    def _errors(self) -> AbstractContextManager[None]:
        return storage_errors(f"the database of the daily runs of {self.study!r}")
