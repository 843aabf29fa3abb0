"""Reading a study's stored trials, if possible without Optuna, and ranking them.

`trialfleet status` must answer at once, but Optuna with SQLAlchemy takes a second to import. So
Python's own sqlite3 reads a SQLite file if its tables have exactly the versions in `TABLES`. Optuna
reads files with other versions, and all other databases. Nothing here writes.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import IntEnum
from itertools import takewhile
from json.scanner import make_scanner
from pathlib import Path
from sys import intern
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import quote

from trialfleet.errors import OptimizerError
from trialfleet.objective import Direction, rank

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

TABLES = (12, "v3.2.0.a")  # the versions in Optuna's version_info and alembic_version
LOCK_WAIT_SECONDS = 60  # SQLite waits this long for another process before "database is locked"
FAILURES = "failures"  # attribute of a trial: its failed attempts and reasons, by number
STOPPED = "stopped"  # attribute of a trial that was stopped early: its stop order

_DECODER = json.JSONDecoder()
_SCAN = make_scanner(_DECODER)  # type: ignore[arg-type]
_NOT_FINITE = {"INF_POS": math.inf, "INF_NEG": -math.inf, "NAN": math.nan}

_HAS_TABLES = "SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'"
_VERSIONS = """
SELECT schema_version FROM version_info UNION ALL SELECT version_num FROM alembic_version
"""
_STUDIES = "SELECT study_name, study_id FROM studies"
_TRIALS = """
SELECT trial_id, number, state, datetime_start, datetime_complete, value, value_type,
(SELECT value_json FROM trial_user_attributes AS a WHERE a.trial_id = t.trial_id AND key = 'node'),
(SELECT value_json FROM trial_user_attributes AS a WHERE a.trial_id = t.trial_id AND key = 'job')
FROM trials AS t LEFT JOIN trial_values USING (trial_id)
WHERE study_id = ? AND trial_id > ? ORDER BY trial_id
"""  # includes the attributes that nearly all trials have: reading them as rows takes twice as long
_ATTRIBUTES = """
SELECT trial_id, key, value_json FROM trial_user_attributes
WHERE trial_id IN ({}) AND key NOT IN ('node', 'job')
"""
_BRIEF = f"{_ATTRIBUTES} AND key IN ('error', 'failures', 'stopped')"
_STEPS = """
SELECT trial_id, step, intermediate_value, intermediate_value_type
FROM trial_intermediate_values WHERE trial_id IN ({})
"""
_AT_ONCE = 5_000  # trials per statement


class Reader(Protocol):
    """A reader of the trials of studies. A study that is missing has no trials.

    Finished trials before the first unfinished one are kept in memory and read only once. Methods
    raise OptimizerError if the database can't be read.
    """

    def read_all(self, studies: Sequence[str]) -> dict[str, list[StoredTrial]]:
        """Return each study's trials by the study's name, if possible from one transaction."""


class TrialState(IntEnum):
    """A trial's state, equal to Optuna's state of the same name."""

    RUNNING = 0
    COMPLETE = 1
    PRUNED = 2
    FAIL = 3
    WAITING = 4

    def is_finished(self) -> bool:
        """Return whether the trial can no longer change."""
        return 0 < self < 4  # neither RUNNING nor WAITING; called for each trial at each read


_STATES = {state.name: state for state in TrialState}


# Not frozen: creating tens of thousands would take three times as long.
@dataclass(kw_only=True)
class StoredTrial:
    """A trial. Its attributes have the names and meanings of Optuna's `FrozenTrial`."""

    number: int
    state: TrialState
    value: float | None
    datetime_start: datetime | None
    datetime_complete: datetime | None
    user_attrs: Mapping[str, Any] = field(default_factory=dict)
    intermediate_values: dict[int, float] = field(default_factory=dict)


class Attributes(Mapping[str, Any]):
    """A trial's attributes. Each is parsed at its first use, because most are never used."""

    def __init__(self, raw: dict[str, str]) -> None:
        self._raw = raw
        self._parsed: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        if key not in self._parsed:
            try:
                self._parsed[key] = _decode_json(self._raw[key])
            except ValueError as error:
                raise OptimizerError(
                    f"the storage has a trial whose attribute {key!r} is not valid JSON"
                ) from error
        return self._parsed[key]

    def get(self, key: str, default: Any = None) -> Any:
        """Return an attribute, or `default` if it is missing."""
        return self[key] if key in self._raw else default

    def __contains__(self, key: object) -> bool:
        return key in self._raw

    def __iter__(self) -> Iterator[str]:
        return iter(self._raw)

    def __len__(self) -> int:
        return len(self._raw)


# takes half the time of `json.loads`, which first skips surrounding whitespace
def _decode_json(text: str) -> Any:
    try:
        value, end = _SCAN(text, 0)
    except StopIteration:
        end = -1
    return value if end == len(text) else _DECODER.decode(text)


def is_own(trial: FrozenTrial | StoredTrial) -> bool:
    """Return whether a trial was created for a DAG node, and is not a duplicate.

    Trials of other programs lack the attribute `node`. If two managers store a trial of the same
    node, `RegionStudy` sets one of the two to PRUNED. Other PRUNED trials have an error, if they
    were abandoned, or a stop order, if they were stopped early.
    """
    attributes = trial.user_attrs
    is_closed = trial.state == TrialState.PRUNED
    return "node" in attributes and (
        not is_closed or not attributes.keys().isdisjoint(("error", STOPPED))
    )


AnyTrial = TypeVar("AnyTrial", bound="StoredTrial | FrozenTrial")


def best_first(trials: Iterable[AnyTrial], direction: Direction) -> list[AnyTrial]:
    """Return the complete trials, the best first. Equally good ones are in order of number."""
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    complete.sort(key=lambda trial: trial.number)
    return rank(complete, direction, lambda trial: trial.value)


def best_trial(trials: Iterable[AnyTrial], direction: Direction) -> AnyTrial | None:
    """Return the complete trial with the best value (the first among equals), or None."""
    return next(iter(best_first(trials, direction)), None)


def count_cut_off(trials: Iterable[StoredTrial | FrozenTrial]) -> int:
    """Return the number of unfinished trials that have a failed attempt."""
    return sum(bool(t.user_attrs.get(FAILURES)) and not t.state.is_finished() for t in trials)


def is_stopped_early(trial: FrozenTrial | StoredTrial) -> bool:
    """Return whether a trial was stopped early. Its value is then the predicted result."""
    return trial.state == TrialState.PRUNED and bool(trial.user_attrs.get(STOPPED))


def reader_of_file(path: Path, *, brief: bool = False) -> Reader:
    """Return a reader of a SQLite file, which need not exist yet.

    With `brief`, trials may lack their intermediate values, and all attributes that are not about
    their DAG node, their job, their failures or their stop order.
    """
    return _SqliteFile(path, brief=brief)


def reader_of_url(url: str, *, brief: bool = False) -> Reader:
    """Return a reader of the trial database at `url`. `brief` is that of `reader_of_file`."""
    from trialfleet.optimizer.storage_url import sqlite_file

    file = sqlite_file(url)
    return reader_of_file(file, brief=brief) if file else _OptunaStorage(url)


class _SqliteFile:
    def __init__(self, path: Path, *, brief: bool) -> None:
        self._path, self._brief = path, brief
        # by study and id, all trials before the first unfinished one
        self._finished: dict[str, dict[int, StoredTrial]] = {}
        self._other: Reader | None = None  # used if the tables have another version than `TABLES`

    def read_all(self, studies: Sequence[str]) -> dict[str, list[StoredTrial]]:
        if self._other:
            return self._other.read_all(studies)
        if not self._path.exists():
            return {study: [] for study in studies}
        with _study_errors(studies), self._transaction() as database:
            if _version(database) == TABLES:
                return self._read(database, studies)
        return self._switch_to_optuna().read_all(studies)

    def _switch_to_optuna(self) -> Reader:
        from trialfleet.optimizer.storage_url import sqlite_url

        self._other = _OptunaStorage(sqlite_url(self._path))
        return self._other

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        url = f"file:{quote(os.fsencode(self._path.absolute()))}?mode=rw"  # mode=rw creates no file
        opened = sqlite3.connect(url, uri=True, timeout=LOCK_WAIT_SECONDS, isolation_level=None)
        with closing(opened) as database:
            database.execute("BEGIN")
            yield database

    def _read(
        self, database: sqlite3.Connection, studies: Sequence[str]
    ) -> dict[str, list[StoredTrial]]:
        ids = dict(database.execute(_STUDIES).fetchall())
        known = {study: self._finished.setdefault(study, {}) for study in studies}
        rows = {
            study: database.execute(_TRIALS, (ids[study], max(known[study], default=0))).fetchall()
            for study in studies
            if study in ids
        }
        others = _trials(database, [row for of in rows.values() for row in of], brief=self._brief)
        found = {}
        for study in studies:
            new = [(row[0], others[row[0]]) for row in rows.get(study, ())]
            found[study] = [*known[study].values(), *(trial for _, trial in new)]
            known[study].update(takewhile(lambda each: each[1].state.is_finished(), new))
        return found


def _version(database: sqlite3.Connection) -> tuple[Any, ...]:
    if not database.execute(_HAS_TABLES).fetchone():
        return ()
    return tuple(value for (value,) in database.execute(_VERSIONS))


_Row = tuple[Any, ...]  # a row of `_TRIALS`


def _trials(
    database: sqlite3.Connection, rows: Sequence[_Row], *, brief: bool
) -> dict[int, StoredTrial]:
    ids = [row[0] for row in rows]
    attributes: dict[int, dict[str, str]] = {}
    for key, name, text in _query_trials(database, _BRIEF if brief else _ATTRIBUTES, ids):
        attributes.setdefault(key, {})[intern(name)] = text
    steps: dict[int, dict[int, float]] = {}
    for key, step, *stored in () if brief else _query_trials(database, _STEPS, ids):
        steps.setdefault(key, {})[step] = _number(*stored)
    found = {}
    for key, number, state, start, complete, value, kind, node, job in rows:
        raw = attributes.get(key, {})
        if node is not None:
            raw["node"] = node
        if job is not None:
            raw["job"] = job
        found[key] = StoredTrial(
            number=number,
            state=_STATES[state],
            value=None if kind is None else _number(value, kind),
            datetime_start=_time(start),
            datetime_complete=_time(complete),
            user_attrs=Attributes(raw),
            intermediate_values=steps.get(key, {}),
        )
    return found


def _query_trials(database: sqlite3.Connection, words: str, ids: Sequence[int]) -> Iterator[Any]:
    for first in range(0, len(ids), _AT_ONCE):
        chosen = ",".join(str(int(key)) for key in ids[first : first + _AT_ONCE])
        yield from database.execute(words.format(chosen))


def _number(value: float | None, kind: str) -> float:
    return _NOT_FINITE[kind] if value is None else float(value)


def _time(text: str | None) -> datetime | None:
    """Return a stored time, which is in UTC, in local time without a zone, as Optuna does."""
    if text is None:
        return None
    return datetime.fromisoformat(text).replace(tzinfo=UTC).astimezone().replace(tzinfo=None)


@contextmanager
def _study_errors(studies: Sequence[str]) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError, ValueError, LookupError) as error:
        named = f"study {studies[0]!r}" if len(studies) == 1 else f"{len(studies)} studies"
        raise OptimizerError(f"the storage of {named} can't be used: {error}") from error


class _OptunaStorage:
    def __init__(self, url: str) -> None:
        self._url = url
        self._storage: BaseStorage | None = None

    def read_all(self, studies: Sequence[str]) -> dict[str, list[StoredTrial]]:
        return {study: self._read(study) for study in studies}

    def _read(self, study: str) -> list[StoredTrial]:
        from trialfleet.optimizer.storage import storage_errors

        with storage_errors(f"the storage of study {study!r}"):
            self._storage = self._storage or self._open()
            if self._storage is None:
                return []
            try:
                study_id = self._storage.get_study_id_from_name(study)
            except KeyError:
                return []
            return [_stored(t) for t in self._storage.get_all_trials(study_id, deepcopy=False)]

    def _open(self) -> BaseStorage | None:
        from optuna.storages import get_storage

        from trialfleet.optimizer.storage import close_storage, open_to_read

        if opened := open_to_read(self._url):
            weakref.finalize(self, close_storage, opened)
        # the wrapper fetches finished trials only once
        return get_storage(opened) if opened else None


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
