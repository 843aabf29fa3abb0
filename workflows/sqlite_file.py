"""A SQLite file that several processes may read and write; each call opens and closes it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from trialfleet.errors import TrialfleetError

PATIENCE = 60.0  # seconds to wait until another process has written


@contextmanager
def opened(file: Path, what: str) -> Iterator[sqlite3.Connection]:
    """Open a connection; at the end of the block all its changes are saved, or none.

    Args:
        file: is created if it does not exist.
        what: the name of the file in error messages.

    Raises:
        TrialfleetError: the file can't be created, or is not a SQLite file.
    """
    try:
        with closing(sqlite3.connect(file, timeout=PATIENCE)) as connection:
            connection.row_factory = sqlite3.Row
            connection.execute("PRAGMA synchronous = FULL")
            with connection:
                yield connection
    except sqlite3.Error as error:
        raise TrialfleetError(f"the {what} {str(file)!r}: {error}") from error
