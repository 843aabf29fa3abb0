"""Reading a study's stored trials from Optuna's tables, and ranking them.

`trialfleet status` must answer at once, but Optuna with SQLAlchemy takes a second to import. So
Python's own sqlite3 reads a SQLite file. Only other databases need Optuna. Nothing here writes.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import IntEnum
from functools import partial
from itertools import takewhile
from pathlib import Path
from sys import intern
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from trialfleet.errors import OptimizerError
from trialfleet.objective import Direction, rank

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from trialfleet.optimizer.storage_transactions import TrialStorage

LOCK_WAIT_SECONDS = 60  # SQLite waits this long for another process before "database is locked"
FAILURES = "failures"  # attribute of a trial: its failed attempts and reasons, by number
STOPPED = "stopped"  # attribute of a trial that was stopped early: its stop order

_NOT_FINITE = {"INF_POS": math.inf, "INF_NEG": -math.inf, "NAN": math.nan}

_HAS_TABLES = "SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'"
_STUDIES = "SELECT study_name, study_id FROM studies"
_TRIALS = """
SELECT trial_id, number, state, datetime_start, datetime_complete, value, value_type
FROM trials LEFT JOIN trial_values USING (trial_id) WHERE {} ORDER BY trial_id
"""
_ATTRIBUTES = """
SELECT trial_id, key, value_json FROM trial_user_attributes JOIN trials USING (trial_id) WHERE {}
"""
_BRIEF = f"{_ATTRIBUTES} AND key IN ('node', 'job', 'error', 'failures', 'stopped')"
_STEPS = """
SELECT trial_id, step, intermediate_value, intermediate_value_type
FROM trial_intermediate_values JOIN trials USING (trial_id) WHERE {}
"""

# A function that runs an SQL statement, and returns the rows of its result.
Execute = Callable[[str], Iterable[Any]]


class Reader:
    """A reader of the trials of studies. A study that is missing has no trials.

    Finished trials before the first unfinished one are kept in memory and read only once. Methods
    raise OptimizerError if the database can't be read.
    """

    def __init__(
        self, transaction: Callable[[], AbstractContextManager[Execute]], *, brief: bool
    ) -> None:
        self._transaction, self._brief = transaction, brief
        # by study and id, all trials before the first unfinished one
        self._finished: dict[str, dict[int, StoredTrial]] = {}

    def read_all(self, studies: Sequence[str]) -> dict[str, list[StoredTrial]]:
        """Return each study's trials by the study's name, all from one transaction."""
        known = {study: self._finished.setdefault(study, {}) for study in studies}
        last = {study: max(known[study], default=0) for study in studies}
        with _study_errors(studies), self._transaction() as execute:
            new = _read_trials(execute, last, brief=self._brief)
        found = {}
        for study in studies:
            found[study] = [*known[study].values(), *new[study].values()]
            finished = takewhile(lambda each: each[1].state.is_finished(), new[study].items())
            known[study].update(finished)
        return found


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
                self._parsed[key] = json.loads(self._raw[key])
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
    return Reader(partial(_file_transaction, path), brief=brief)


def reader_of_url(url: str, *, brief: bool = False) -> Reader:
    """Return a reader of the trial database at `url`. `brief` is that of `reader_of_file`."""
    from trialfleet.optimizer.storage_url import sqlite_file

    file = sqlite_file(url)
    return reader_of_file(file, brief=brief) if file else Reader(_Url(url).transaction, brief=brief)


@contextmanager
def _file_transaction(path: Path) -> Iterator[Execute]:
    if not path.exists():
        yield _no_rows
        return
    url = f"file:{quote(os.fsencode(path.absolute()))}?mode=rw"  # mode=rw creates no file
    opened = sqlite3.connect(url, uri=True, timeout=LOCK_WAIT_SECONDS, isolation_level=None)
    with closing(opened) as database:
        database.execute("BEGIN")
        yield database.execute if database.execute(_HAS_TABLES).fetchone() else _no_rows


class _Url:
    """A database that SQLAlchemy reads."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._storage: TrialStorage | None = None

    @contextmanager
    def transaction(self) -> Iterator[Execute]:
        from trialfleet.optimizer.storage import close_storage, open_to_read, url_errors

        if self._storage is None and (opened := open_to_read(self._url)):
            self._storage = opened
            weakref.finalize(self, close_storage, opened)
        if self._storage is None:
            yield _no_rows
            return
        engine = self._storage.engine.execution_options(isolation_level="SERIALIZABLE")
        with url_errors(engine.url), engine.connect() as connection:
            yield connection.exec_driver_sql


def _no_rows(_statement: str) -> Iterable[Any]:
    """Return the result of any statement in a database that does not exist or has no tables."""
    return ()


def _read_trials(
    execute: Execute, last: Mapping[str, int], *, brief: bool
) -> dict[str, dict[int, StoredTrial]]:
    """Return, by id, the trials of each study whose ids come after the study's id in `last`."""
    ids = dict([*execute(_STUDIES)])
    where = {
        study: f"study_id = {ids[study]} AND trial_id > {last[study]}"
        for study in last
        if study in ids
    }
    empty: dict[str, dict[int, StoredTrial]] = {study: {} for study in last}
    return empty | {study: _trials(execute, where[study], brief=brief) for study in where}


def _trials(execute: Execute, where: str, *, brief: bool) -> dict[int, StoredTrial]:
    if not (rows := [*execute(_TRIALS.format(where))]):
        return {}
    attributes: dict[int, dict[str, str]] = {}
    for key, name, text in execute((_BRIEF if brief else _ATTRIBUTES).format(where)):
        attributes.setdefault(key, {})[intern(name)] = text
    steps: dict[int, dict[int, float]] = {}
    for key, step, *stored in () if brief else execute(_STEPS.format(where)):
        steps.setdefault(key, {})[step] = _number(*stored)
    return {
        key: StoredTrial(
            number=number,
            state=_STATES[state],
            value=None if kind is None else _number(value, kind),
            datetime_start=_time(start),
            datetime_complete=_time(complete),
            user_attrs=Attributes(attributes.get(key, {})),
            intermediate_values=steps.get(key, {}),
        )
        for key, number, state, start, complete, value, kind in rows
    }


def _number(value: float | None, kind: str) -> float:
    return _NOT_FINITE[kind] if value is None else float(value)


def _time(stored: str | datetime | None) -> datetime | None:
    """Return a stored time, which is in UTC, in local time without a zone, as Optuna does."""
    if stored is None:
        return None
    time = datetime.fromisoformat(stored) if isinstance(stored, str) else stored
    return time.replace(tzinfo=UTC).astimezone().replace(tzinfo=None)


@contextmanager
def _study_errors(studies: Sequence[str]) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError, ValueError, LookupError) as error:
        named = f"study {studies[0]!r}" if len(studies) == 1 else f"{len(studies)} studies"
        raise OptimizerError(f"the storage of {named} can't be used: {error}") from error
