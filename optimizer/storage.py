"""Where the studies of a run are kept: SQLite by default, any database of Optuna's by URL."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy
from optuna.storages import BaseStorage, RDBStorage
from sqlalchemy.engine import URL

from trialfleet.errors import InputError, OptimizerError
from trialfleet.files import sync

LOCK_WAIT_SECONDS = 60  # how long SQLite waits for another process before "database is locked"
CONNECT_SECONDS = 10
SCHEMA_LOCK = 0x7472_6961_6C66  # PostgreSQL's advisory lock while tables are made: b"trialf"

optuna.logging.set_verbosity(optuna.logging.WARNING)  # or each new study is announced on stderr


def sqlite_url(path: Path) -> str:
    """Return the storage URL of a SQLite file, whatever characters its path has."""
    return URL.create("sqlite", database=str(path.absolute())).render_as_string()


def redacted(url: str) -> str:
    """Return `url` without its password, for messages."""
    try:
        return sqlalchemy.make_url(url).render_as_string(hide_password=True)
    except (sqlalchemy.exc.ArgumentError, ValueError):
        return "(not a URL)"


def open_storage(url: str) -> BaseStorage:
    """Open the storage at `url`; its tables are made where they are missing.

    SQLite is used with a write-ahead log: a reader, even a stopped one, never blocks the service
    and never sees half a transaction, and every commit is on the disk before it returns.

    Args:
        url: `sqlite:///PATH`, `postgresql+psycopg://USER:PASSWORD@HOST/DATABASE`, or another
            database that SQLAlchemy and Optuna know. See `sqlite_url` for paths.

    Raises:
        InputError: not a URL, or of a kind for which no driver is installed.
        OptimizerError: the database can't be reached, opened or used; names the URL.
    """
    try:
        parsed = sqlalchemy.make_url(url)
        dialect = parsed.get_backend_name()
        parsed.get_dialect().import_dbapi()
    except (sqlalchemy.exc.ArgumentError, sqlalchemy.exc.NoSuchModuleError, ValueError) as error:
        raise InputError(
            f"storage: {redacted(url)} is no storage URL; "
            "such are sqlite:///PATH and postgresql+psycopg://USER:PASSWORD@HOST/DATABASE"
        ) from error
    except ImportError as error:
        raise InputError(f"storage: no driver for {redacted(url)} is installed: {error}") from error
    with storage_errors(f"storage {redacted(url)}", secret=parsed.password):
        if dialect == "sqlite":
            return _open_sqlite(parsed)
        if dialect == "postgresql":
            return _open_postgresql(parsed)
        return _open(parsed, pool_pre_ping=True)


def close_storage(storage: BaseStorage) -> None:
    """Close the database's connections; SQLite then folds its log into the file."""
    if isinstance(storage, RDBStorage):
        storage.remove_session()
        storage.engine.dispose()


@contextmanager
def storage_errors(what: str, *, secret: str | None = None) -> Iterator[None]:
    """Turn whatever a database raises into an error for people.

    Args:
        what: beginning of the message.
        secret: a password to leave out, should the database repeat it.

    Raises:
        OptimizerError: in place of a database's error.
    """
    try:
        yield
    except (
        optuna.exceptions.StorageInternalError,
        sqlalchemy.exc.SQLAlchemyError,
        OSError,
    ) as error:
        reason = _reason(error)
        raise OptimizerError(
            f"{what} can't be used: {reason.replace(secret, '***') if secret else reason}"
        ) from error


def _reason(error: BaseException) -> str:
    """Return the first line of what the driver said."""
    if isinstance(error, optuna.exceptions.StorageInternalError) and error.__cause__:
        error = error.__cause__
    original = getattr(error, "orig", None) or error
    return (str(original).strip() or type(original).__name__).splitlines()[0]


def _open(url: URL, **engine_options: Any) -> RDBStorage:
    # percent-encoded: Optuna passes it through str.format(), where a brace would count
    text = url.render_as_string(hide_password=False)
    try:
        return RDBStorage(text, engine_kwargs=engine_options)
    except RuntimeError as error:  # another release of Optuna made the tables
        raise OptimizerError(f"storage {redacted(text)} can't be used: {error}") from error


def _open_sqlite(url: URL) -> BaseStorage:
    if url.database and url.database != ":memory:" and not Path(url.database).exists():
        _create_sqlite(url, Path(url.database))
    return _open(url, connect_args={"timeout": LOCK_WAIT_SECONDS})


def _create_sqlite(url: URL, path: Path) -> None:
    """Make the file with its tables under another name, then give it its own if that is free.

    Two processes that make the tables of one file at a time fail each other, and a crash midway
    leaves half of them.
    """
    beside = path.with_name(f".{secrets.token_hex(6)}.tmp")
    try:
        made = _open(url.set(database=str(beside)), poolclass=sqlalchemy.NullPool)
        with made.engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA journal_mode=WAL")  # kept in the file
        close_storage(made)
        try:
            os.link(beside, path)
        except FileExistsError:
            return  # another process was faster: its file is as good
        sync(path.parent)
    finally:
        for rest in ("", "-wal", "-shm", "-journal"):
            beside.with_name(beside.name + rest).unlink(missing_ok=True)


def _open_postgresql(url: URL) -> BaseStorage:
    options = {"connect_args": {"connect_timeout": CONNECT_SECONDS}}
    engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool, **options)
    with engine.connect() as connection:  # two runs may make the tables of one database at a time
        connection.execute(sqlalchemy.select(sqlalchemy.func.pg_advisory_lock(SCHEMA_LOCK)))
        # a resident service outlives the server's restarts: each connection is tried before use
        return _open(url, pool_pre_ping=True, **options)
