"""A study's trials as its storage holds them, read without Optuna where that is possible.

`trialfleet status` has to answer at once, and Optuna with SQLAlchemy takes a second to import. So a
SQLite file, where studies are by default, is read by the standard library as long as its tables are
those that this module knows (`TABLES`); any other storage, and any other version of the tables, is
read by Optuna. Both give the same `StoredTrial`s. Nothing here writes.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from trialfleet.errors import OptimizerError

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

TABLES = (12, "v3.2.0.a")  # the versions in Optuna's version_info and alembic_version
LOCK_WAIT_SECONDS = 60
FAILURES = "failures"  # the attribute that keeps why attempts at a trial failed, by their number

_NOT_FINITE = {"INF_POS": math.inf, "INF_NEG": -math.inf, "NAN": math.nan}

_HAS_TABLES = "SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'"
_VERSIONS = """
SELECT schema_version FROM version_info UNION ALL SELECT version_num FROM alembic_version
"""
_STUDY = "SELECT study_id FROM studies WHERE study_name = ?"
_TRIALS = """
SELECT trial_id, number, state, datetime_start, datetime_complete
FROM trials WHERE study_id = ? AND trial_id > ? ORDER BY trial_id
"""
_ATTRIBUTES = """
SELECT trial_id, key, value_json FROM trial_user_attributes JOIN trials USING (trial_id)
WHERE study_id = ? AND trial_id > ?
"""
_VALUES = """
SELECT trial_id, value, value_type FROM trial_values JOIN trials USING (trial_id)
WHERE study_id = ? AND trial_id > ?
"""
_STEPS = """
SELECT trial_id, step, intermediate_value, intermediate_value_type
FROM trial_intermediate_values JOIN trials USING (trial_id)
WHERE study_id = ? AND trial_id > ?
"""

Read = Callable[[str], "list[StoredTrial]"]


class TrialState(IntEnum):
    """A trial's state; equal to Optuna's of the same name."""

    RUNNING = 0
    COMPLETE = 1
    PRUNED = 2
    FAIL = 3
    WAITING = 4

    def is_finished(self) -> bool:
        """Whether the trial will never change again."""
        return self not in {TrialState.RUNNING, TrialState.WAITING}


@dataclass(frozen=True, kw_only=True)
class StoredTrial:
    """A trial; the names are those of Optuna's `FrozenTrial`, and so is what they mean."""

    number: int
    state: TrialState
    value: float | None
    datetime_start: datetime | None
    datetime_complete: datetime | None
    user_attrs: dict[str, Any] = field(default_factory=dict)
    intermediate_values: dict[int, float] = field(default_factory=dict)


def is_repeat(trial: FrozenTrial | StoredTrial) -> bool:
    """Tell a trial that the database made twice from one that was given up, which says why."""
    return trial.state == TrialState.PRUNED and "error" not in trial.user_attrs


def reader_of_file(path: Path) -> Read:
    """Return what reads the trials of a study, by the study's name, from a SQLite file.

    Finished trials are read once, however often it is called. A study that the file doesn't have,
    or a file that isn't there yet, has no trials.

    Raises (what is returned, when it is called):
        OptimizerError: the file can't be read.
    """
    return _SqliteFile(path).read


def reader_of_url(url: str) -> Read:
    """Return what reads the trials of a study, by the study's name, from the storage at `url`.

    Raises (what is returned, when it is called):
        OptimizerError: the storage can't be read.
    """
    from trialfleet.optimizer.storage_url import sqlite_file

    file = sqlite_file(url)
    return reader_of_file(file) if file else _OptunaStorage(url).read


class _SqliteFile:
    """A SQLite file with Optuna's tables."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._finished: dict[str, dict[int, StoredTrial]] = {}  # by study and id; no gap before
        self._other: Read | None = None  # reads it where the tables are not those of `TABLES`

    def read(self, study: str) -> list[StoredTrial]:
        """Return the trials of a study."""
        if self._other:
            return self._other(study)
        if not self._path.exists():
            return []
        with _errors_of(study), self._transaction() as database:
            if _version(database) == TABLES:
                return self._read(database, study)
        from trialfleet.optimizer.storage_url import sqlite_url

        self._other = _OptunaStorage(sqlite_url(self._path)).read
        return self._other(study)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """All that is read within it is of one moment."""
        url = f"file:{quote(os.fsencode(self._path.absolute()))}?mode=rw"  # makes no file
        opened = sqlite3.connect(url, uri=True, timeout=LOCK_WAIT_SECONDS, isolation_level=None)
        with closing(opened) as database:
            database.execute("BEGIN")
            yield database

    def _read(self, database: sqlite3.Connection, study: str) -> list[StoredTrial]:
        if (row := database.execute(_STUDY, (study,)).fetchone()) is None:
            return []
        known = self._finished.setdefault(study, {})
        others = _trials(database, row[0], after=max(known, default=0))
        trials = [*known.values(), *others.values()]
        for key, trial in others.items():
            if not trial.state.is_finished():
                break
            known[key] = trial
        return trials


def _version(database: sqlite3.Connection) -> tuple[Any, ...]:
    """The versions of the tables; empty where there are none."""
    if not database.execute(_HAS_TABLES).fetchone():
        return ()
    return tuple(value for (value,) in database.execute(_VERSIONS))


def _trials(database: sqlite3.Connection, study: int, *, after: int) -> dict[int, StoredTrial]:
    """The trials of a study by id, those up to the id `after` left out."""
    wanted = (study, after)
    attributes: dict[int, dict[str, Any]] = {}
    for key, name, value in database.execute(_ATTRIBUTES, wanted):
        attributes.setdefault(key, {})[name] = json.loads(value)
    values = {key: _number(*stored) for key, *stored in database.execute(_VALUES, wanted)}
    steps: dict[int, dict[int, float]] = {}
    for key, step, *stored in database.execute(_STEPS, wanted):
        steps.setdefault(key, {})[step] = _number(*stored)
    return {
        key: StoredTrial(
            number=number,
            state=TrialState[state],
            value=values.get(key),
            datetime_start=_time(start),
            datetime_complete=_time(complete),
            user_attrs=attributes.get(key, {}),
            intermediate_values=steps.get(key, {}),
        )
        for key, number, state, start, complete in database.execute(_TRIALS, wanted)
    }


def _number(value: float | None, kind: str) -> float:
    return _NOT_FINITE[kind] if value is None else float(value)


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


@contextmanager
def _errors_of(study: str) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError, ValueError, LookupError) as error:
        raise OptimizerError(f"the storage of study {study!r} can't be used: {error}") from error


class _OptunaStorage:
    """Any storage that Optuna reads."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._storage: BaseStorage | None = None

    def read(self, study: str) -> list[StoredTrial]:
        """Return the trials of a study."""
        from trialfleet.optimizer.storage import storage_errors

        with storage_errors(f"the storage of study {study!r}"):
            self._storage = self._storage or self._open()
            try:
                study_id = self._storage.get_study_id_from_name(study)
            except KeyError:
                return []
            return [_stored(t) for t in self._storage.get_all_trials(study_id, deepcopy=False)]

    def _open(self) -> BaseStorage:
        from optuna.storages import get_storage

        from trialfleet.optimizer.storage import close_storage, open_storage

        opened = open_storage(self._url)
        weakref.finalize(self, close_storage, opened)
        return get_storage(opened)  # wrapped so that finished trials are fetched once


def _stored(trial: FrozenTrial) -> StoredTrial:
    return StoredTrial(
        number=trial.number,
        state=TrialState[trial.state.name],
        value=trial.value if trial.values else None,
        datetime_start=trial.datetime_start,
        datetime_complete=trial.datetime_complete,
        user_attrs=trial.user_attrs,
        intermediate_values=trial.intermediate_values,
    )
