"""Who writes a run's studies: one manager, recorded beside them in their storage.

A run's lock keeps a second service away on one machine. In a database that several machines use,
two managers that planned a run of the same name would write the same studies. So the first to write
records itself, in one transaction, and every write looks whose the run is; a person hands it over.
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
from trialfleet.optimizer.trial_rows import TrialStorage

MACHINE_ID = Path("/etc/machine-id")  # made when the system was installed; reboots keep it

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
    """A manager that writes a run's studies: a run's folder on a machine.

    Attributes:
        machine: what identifies the machine.
        folder: the run's folder there.
        host: the machine's name, for people.
        since: when it was recorded, UTC in ISO 8601.
    """

    machine: str
    folder: str
    host: str
    since: str

    def __str__(self) -> str:
        return f"host {self.host}, folder {self.folder}, since {self.since[:19]} UTC"


def here(folder: Path) -> Owner:
    """Return this machine with the run's folder `folder` as an owner."""
    host = socket.gethostname()
    return Owner(_machine(host), str(folder), host, datetime.now(UTC).isoformat())


def _machine(host: str) -> str:
    """What identifies this machine; its id is nobody else's business, so a digest of it."""
    identity = ""
    with suppress(OSError):
        identity = MACHINE_ID.read_text().strip()
    return hashlib.sha256(f"trialfleet {identity or host}".encode()).hexdigest()


class Ownership:
    """The right to write the studies of one run. Not thread-safe.

    Each method raises OptimizerError where the storage can't be used.
    """

    def __init__(self, storage: TrialStorage, run: str, own: Owner) -> None:
        """Nothing is read or written yet; the run's name is unique in the storage."""
        self._engine = storage.engine
        self._run = run
        self._own = own
        self._has_table = False

    def owner(self) -> Owner:
        """Return who owns the run: we, from now on, if nobody did."""
        with self._storage_errors():
            return self._read() or self._claim()

    def other(self) -> Owner | None:
        """Return who else owns the run; None if we do, from now on if nobody did."""
        owner = self.owner()
        return None if self.is_ours(owner) else owner

    def known_other(self) -> Owner | None:
        """Return who else is known to own the run. Nothing is written."""
        with self._storage_errors():
            if not sqlalchemy.inspect(self._engine).has_table(_OWNERS.name):
                return None
            owner = self._read()
        return None if owner is None or self.is_ours(owner) else owner

    def is_ours(self, owner: Owner) -> bool:
        """Whether that is this folder on this machine, whatever the time and the host's name."""
        return (owner.machine, owner.folder) == (self._own.machine, self._own.folder)

    def take_over(self) -> Owner | None:
        """Become the owner; returns who was it, None if nobody was."""
        with self._storage_errors():
            former = self._read() or self._claim()
            with self._engine.begin() as connection:
                change = sqlalchemy.update(_OWNERS).where(_OWNERS.c.run == self._run)
                connection.execute(change.values(**vars(self._own)))
        return None if former == self._own else former

    def _storage_errors(self) -> AbstractContextManager[None]:
        return storage_errors(f"the storage of run {self._run!r}")

    def _read(self) -> Owner | None:
        self._make_table()
        columns = [_OWNERS.c[name] for name in ("machine", "folder", "host", "since")]
        with self._engine.connect() as connection:
            query = sqlalchemy.select(*columns).where(_OWNERS.c.run == self._run)
            row = connection.execute(query).one_or_none()
        return Owner(*row) if row else None

    def _claim(self) -> Owner:
        """Record ourselves, unless somebody else was faster; returns the owner."""
        with suppress(sqlalchemy.exc.IntegrityError), self._engine.begin() as connection:
            connection.execute(sqlalchemy.insert(_OWNERS).values(run=self._run, **vars(self._own)))
        owner = self._read()
        assert owner, "owners are replaced and never removed"
        return owner

    def _make_table(self) -> None:
        if self._has_table or sqlalchemy.inspect(self._engine).has_table(_OWNERS.name):
            self._has_table = True
            return
        with self._engine.begin() as connection:
            if connection.dialect.name == "postgresql":  # IF NOT EXISTS alone may fail there
                lock = sqlalchemy.func.pg_advisory_xact_lock(SCHEMA_LOCK)
                connection.execute(sqlalchemy.select(lock))
            connection.execute(CreateTable(_OWNERS, if_not_exists=True))
        self._has_table = True
