"""A SQLite file that several processes may read and write."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from trialfleet.errors import TrialfleetError

PATIENCE = 60.0  # seconds for another process's write to end


@contextmanager
def open_database(file: Path, what: str) -> Iterator[sqlite3.Connection]:
    """Yield a connection to the SQLite file `file`, which is created if it is missing.

    After the `with` block, all its changes are on disk. If the block raises an exception, its
    changes are rolled back. TrialfleetError if the file can't be used; `what` describes the file in
    the message.
    """
    try:
        with closing(sqlite3.connect(file, timeout=PATIENCE)) as connection:
            connection.row_factory = sqlite3.Row
            connection.execute("PRAGMA synchronous = FULL")
            with connection:
                yield connection
    except sqlite3.Error as error:
        raise TrialfleetError(f"the {what} {str(file)!r} can't be used: {error}") from error
