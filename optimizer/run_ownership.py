"""The owner of a run's trials in the database: the one manager machine that may write them.

On one machine, a lock ensures that only one service writes a run's trials. But two managers may use
one database, and plan runs of the same name. So the first manager that writes is recorded as the
run's owner. The owner is checked before every write. `Ownership.take_over` replaces the owner.
"""

from __future__ import annotations

import hashlib
import socket
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import sqlalchemy
from sqlalchemy.schema import CreateTable

from trialfleet.optimizer.storage import SCHEMA_LOCK, storage_errors
from trialfleet.optimizer.storage_transactions import TrialStorage

MACHINE_ID = Path("/etc/machine-id")  # created at the system's installation; unchanged by reboots

_OWNERS = sqlalchemy.Table(
    "trialfleet_owners",
    sqlalchemy.MetaData(),
    sqlalchemy.Column("run", sqlalchemy.String(255), primary_key=True),
    sqlalchemy.Column("machine", sqlalchemy.String(64), nullable=False),
    sqlalchemy.Column("folder", sqlalchemy.Text, nullable=False),
    sqlalchemy.Column("host", sqlalchemy.Text, nullable=False),
    sqlalchemy.Column("since", sqlalchemy.String(64), nullable=False),
)


@dataclass(frozen=True)
class Owner:
    """The manager that may write a run's trials: its machine, and the run's folder there."""

    machine: str  # a digest of the machine's id
    folder: str
    host: str  # the machine's name, for messages
    since: str  # UTC in ISO 8601

    def __str__(self) -> str:
        return f"host {self.host}, folder {self.folder}, since {self.since[:19]} UTC"


def this_owner(folder: Path) -> Owner:
    """Return the `Owner` for this machine and the run's `folder`, without recording it."""
    host = socket.gethostname()
    return Owner(_machine(host), str(folder), host, datetime.now(UTC).isoformat())


def _machine(host: str) -> str:
    identity = ""
    with suppress(OSError):
        identity = MACHINE_ID.read_text().strip()
    return hashlib.sha256(f"trialfleet {identity or host}".encode()).hexdigest()


class Ownership:
    """The database's record of a run's owner. Not thread-safe. Methods may raise OptimizerError."""

    def __init__(self, storage: TrialStorage, run: str, own: Owner) -> None:
        """Take the run's name in the database (STUDY/RUN), and this manager, `own`."""
        self._engine = storage.engine
        self._run = run
        self._own = own
        self._has_table = False

    def owner(self) -> Owner:
        """Return the run's owner. If there is none yet, this manager becomes the owner."""
        with self._storage_errors():
            return self._read() or self._claim()

    def other_owner(self) -> Owner | None:
        """Return the run's owner if it is another manager, else None.

        If there is no owner yet, this manager becomes the owner.
        """
        return self._unless_ours(self.owner())

    def known_other(self) -> Owner | None:
        """Return the run's owner if it is another manager, else None. Nothing is recorded."""
        with self._storage_errors():
            return self._unless_ours(self._read())

    def is_ours(self, owner: Owner) -> bool:
        """Return whether `owner` is this manager. Host names may change, and are not compared."""
        return (owner.machine, owner.folder) == (self._own.machine, self._own.folder)

    def take_over(self) -> Owner | None:
        """Make this manager the owner. Return the other manager that was the owner, or None."""
        with self._storage_errors():
            previous = self._read() or self._claim()
            with self._engine.begin() as connection:
                change = sqlalchemy.update(_OWNERS).where(_OWNERS.c.run == self._run)
                connection.execute(change.values(**vars(self._own)))
        return self._unless_ours(previous)

    def _unless_ours(self, owner: Owner | None) -> Owner | None:
        return None if owner is None or self.is_ours(owner) else owner

    def _storage_errors(self) -> AbstractContextManager[None]:
        return storage_errors(f"the storage of run {self._run!r}")

    def _read(self) -> Owner | None:
        self._has_table = self._has_table or sqlalchemy.inspect(self._engine).has_table(
            _OWNERS.name
        )
        if not self._has_table:
            return None
        columns = [_OWNERS.c[name] for name in ("machine", "folder", "host", "since")]
        with self._engine.connect() as connection:
            query = sqlalchemy.select(*columns).where(_OWNERS.c.run == self._run)
            row = connection.execute(query).one_or_none()
        return Owner(*row) if row else None

    def _claim(self) -> Owner:
        """Record this manager as the owner if there is none yet. Return the recorded owner."""
        self._make_table()
        with suppress(sqlalchemy.exc.IntegrityError), self._engine.begin() as connection:
            connection.execute(sqlalchemy.insert(_OWNERS).values(run=self._run, **vars(self._own)))
        owner = self._read()
        assert owner, "owners are replaced and never removed"
        return owner

    def _make_table(self) -> None:
        with self._engine.begin() as connection:
            if connection.dialect.name == "postgresql":  # where IF NOT EXISTS alone may fail
                lock = sqlalchemy.func.pg_advisory_xact_lock(SCHEMA_LOCK)
                connection.execute(sqlalchemy.select(lock))
            connection.execute(CreateTable(_OWNERS, if_not_exists=True))
