"""The trial database of a run: a SQLite file by default, or a PostgreSQL database.

Functions raise two errors:

- InputError: the URL is invalid, or no driver for its database is installed
- OptimizerError, which names the URL: the database can't be reached, opened or used
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy
from sqlalchemy.engine import URL

from trialfleet.errors import InputError, OptimizerError
from trialfleet.files import sync
from trialfleet.optimizer.storage_transactions import TrialStorage
from trialfleet.optimizer.storage_url import (
    STORAGE_FORMS,
    parse_storage,
    redact,
    sqlite_url,
    url_secrets,
)
from trialfleet.optimizer.stored_trials import LOCK_WAIT_SECONDS

CONNECT_SECONDS = 10
SCHEMA_LOCK = 0x7472_6961_6C66  # PostgreSQL's advisory lock while tables are created: b"trialf"

# Otherwise Optuna logs each new study to stderr.
optuna.logging.set_verbosity(optuna.logging.WARNING)


def open_storage(url: str) -> TrialStorage:
    """Open the trial database at `url`, and create its tables if they are missing.

    A SQLite file that is created here uses a write-ahead log. So a reader, even a suspended one,
    never blocks the process that writes. A method that writes returns once the data is on the disk.
    """
    parsed = _parse_url(url)
    is_sqlite = parsed.get_backend_name() == "sqlite"
    with url_errors(parsed):
        return _open_sqlite(parsed) if is_sqlite else _open_postgresql(parsed)


def open_to_read(url: str) -> TrialStorage | None:
    """Open an existing trial database, or return None if the database or its tables are missing."""
    parsed = _parse_url(url)
    waits = {"connect_args": {"timeout": LOCK_WAIT_SECONDS}}
    options = waits if parsed.get_backend_name() == "sqlite" else {"pool_pre_ping": True}
    with url_errors(parsed):
        return _open(parsed, skip_table_creation=True, **options) if _has_tables(parsed) else None


def copy_sqlite(source: Path, target: Path) -> None:
    """Make a consistent copy of a SQLite file, even while other processes write to it.

    Without a source, or with an empty one, which has no tables yet, `target` stays as it is. The
    function raises sqlite3.Error, unlike the other functions.
    """
    if not source.exists() or source.stat().st_size == 0:
        return
    read, write = sqlite3.connect(source), sqlite3.connect(target)
    with closing(read), closing(write):
        read.backup(write)


def copy_studies(url: str, names: Iterable[str], target: Path) -> bool:
    """Copy the existing studies among `names` to the new SQLite file `target`.

    If none of these studies exists, the function makes no file and returns False.
    """
    source = open_to_read(url)
    if source is None:
        return False
    with ExitStack() as stack:
        stack.enter_context(url_errors(_parse_url(url)))
        stack.callback(close_storage, source)
        there = {study.study_name for study in source.get_all_studies()}
        found = sorted(there.intersection(names))
        if not found:
            return False
        copy = open_storage(sqlite_url(target))
        for name in found:
            optuna.copy_study(from_study_name=name, from_storage=source, to_storage=copy)
        close_storage(copy)
    return True


def close_storage(storage: TrialStorage) -> None:
    """Close the database's connections. SQLite then merges its write-ahead log into the file."""
    storage.remove_session()
    storage.engine.dispose()


@contextmanager
def storage_errors(subject: str, *, secrets: Iterable[str] = ()) -> Iterator[None]:
    """Convert a database's error in the block to an OptimizerError about the `subject`.

    The texts in `secrets` are removed from the message. The error has no `__cause__`, because the
    text of the database's own error may contain the secrets.
    """
    try:
        yield
    except (
        optuna.exceptions.StorageInternalError,
        sqlalchemy.exc.SQLAlchemyError,
        UnicodeError,
        OSError,
    ) as error:
        raise OptimizerError(f"{subject} can't be used: {_reason(error, secrets)}") from None


def url_errors(url: URL) -> AbstractContextManager[None]:
    """Convert a database's error in the block to an OptimizerError about the `url`."""
    return storage_errors(f"storage {redact(url)}", secrets=url_secrets(url))


def _reason(error: BaseException, secrets: Iterable[str]) -> str:
    """Return the first line of the database driver's message, with `***` in place of `secrets`."""
    if isinstance(error, optuna.exceptions.StorageInternalError) and error.__cause__:
        error = error.__cause__
    original = getattr(error, "orig", None) or error
    message = str(original).strip()
    for secret in sorted(secrets, key=len, reverse=True):
        message = message.replace(secret, "***")
    return (message or type(original).__name__).splitlines()[0]


def _parse_url(url: str) -> URL:
    try:
        parsed = parse_storage(url)
    except ValueError as error:
        raise InputError(f"storage: {error}") from None
    try:
        parsed.get_dialect().import_dbapi()
    except sqlalchemy.exc.NoSuchModuleError:
        raise InputError(
            f"storage: {parsed.drivername}:// is not supported; write {STORAGE_FORMS}"
        ) from None
    except ImportError as error:
        raise InputError(
            f"storage: the Python driver for {redact(parsed)} can't be imported: {error}; "
            "install it for trialfleet's Python"
        ) from error
    return parsed


def _has_tables(url: URL) -> bool:
    """Return whether Optuna's tables exist, without creating them as Optuna itself would."""
    if url.get_backend_name() == "sqlite" and not Path(url.database or "").is_file():
        return False
    engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)
    try:
        return sqlalchemy.inspect(engine).has_table("trials")
    finally:
        engine.dispose()


def _open(url: URL, *, skip_table_creation: bool = False, **engine_options: Any) -> TrialStorage:
    # Optuna passes the text through str.format(): braces must be escaped
    text = url.render_as_string(hide_password=False).replace("{", "{{").replace("}", "}}")
    try:
        return TrialStorage(
            text, engine_kwargs=engine_options, skip_table_creation=skip_table_creation
        )
    except RuntimeError as error:  # another release of Optuna created the tables
        raise OptimizerError(f"storage {redact(url)} can't be used: {error}") from None


def _open_sqlite(url: URL) -> TrialStorage:
    if url.database and url.database != ":memory:" and not Path(url.database).exists():
        _create_sqlite(url, Path(url.database))
    return _open(url, connect_args={"timeout": LOCK_WAIT_SECONDS})


def _create_sqlite(url: URL, path: Path) -> None:
    """Create a SQLite file with tables under a temporary name, then link it to `path`.

    If `path` already exists, it stays. Without the temporary name, two processes that create the
    tables at once could both fail, and a crash could leave only some of the tables.
    """
    temporary = path.with_name(f".{secrets.token_hex(6)}.tmp")
    try:
        made = _open(url.set(database=str(temporary)), poolclass=sqlalchemy.NullPool)
        with made.engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA journal_mode=WAL")  # the file keeps this mode
        close_storage(made)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return  # another process was faster: its file is used
        sync(path.parent)
    finally:
        for rest in ("", "-wal", "-shm", "-journal"):
            temporary.with_name(temporary.name + rest).unlink(missing_ok=True)


def _open_postgresql(url: URL) -> TrialStorage:
    options: dict[str, Any] = {"connect_args": {"connect_timeout": CONNECT_SECONDS}}
    engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool, **options)
    # two runs may create the tables of one database at the same time
    with engine.connect() as connection:
        connection.execute(sqlalchemy.select(sqlalchemy.func.pg_advisory_lock(SCHEMA_LOCK)))
        # the resident service outlives restarts of the server: each connection is tested before use
        return _open(url, pool_pre_ping=True, **options)
