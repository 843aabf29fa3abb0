"""Tests of crashes: repeating a call repairs a region's study after a kill at any point."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial

from tests.unit.optimizer.region_studies import (
    ENTRIES,
    asked,
    complete,
    in_memory,
    make,
    stored,
)
from trialfleet.optimizer.region_study import RegionStudy
from trialfleet.optimizer.region_types import (
    Abandoned,
    Failed,
    Refused,
)
from trialfleet.optimizer.storage_transactions import TrialStorage
from trialfleet.optimizer.stored_trials import FAILURES

os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch is imported later: as in the service


class Crash(BaseException):
    """A simulated kill -9: nothing in the process handles it."""


class CrashingStorage:
    """A storage that crashes at call number `at`, before or after the call takes effect."""

    def __init__(self, storage: TrialStorage, at: int, *, after: bool) -> None:
        self._storage, self._left, self._after = storage, at, after

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._storage, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            self._left -= 1
            if self._left == 0 and not self._after:
                raise Crash
            try:
                return method(*args, **kwargs)
            finally:
                if self._left == 0:
                    raise Crash

        return call


STEPS: list[Callable[[RegionStudy], object]] = [
    lambda study: study.ask("a"),
    lambda study: study.ask("b"),
    lambda study: complete(study, "a", 0.5),
    lambda study: study.ask("c"),
    lambda study: study.note_failure("b", attempt=1, error="w"),
    lambda study: study.note_failure("b", attempt=2, error="x"),
    lambda study: study.tell("b", Failed(error="x", final=True), attempts=2),
    lambda study: study.ask("d"),
    lambda study: study.tell("c", Abandoned(error="no money is left")),
]


def outcome(storage: BaseStorage) -> list[Any]:
    return [(t.number, t.state, t.values, t.params, untimed(t.user_attrs)) for t in stored(storage)]


def untimed(attributes: dict[str, Any]) -> dict[str, Any]:
    failures = attributes.get(FAILURES, {})
    errors = {attempt: noted["error"] for attempt, noted in failures.items()}
    return {**attributes, **({FAILURES: errors} if failures else {})}


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("reopen", [False, True])
def test_a_crash_at_any_storage_call_is_repaired_by_repeating(after: bool, reopen: bool) -> None:
    undisturbed = in_memory()
    study = make(undisturbed)
    for step in STEPS:
        step(study)
    crashes = 0
    for at in range(1, 200):
        storage = in_memory()
        crashing: Any = CrashingStorage(storage, at, after=after)
        crashed = False
        try:
            study = make(crashing)
        except Crash:
            crashed, study = True, make(storage)
        for step in STEPS:
            try:
                step(study)
            except Crash:
                crashed = True
                study = make(storage) if reopen else study
                step(study)
        assert outcome(storage) == outcome(undisturbed), f"crash at call {at}"
        if not crashed:
            break
        crashes += 1
    assert crashes > 12, "every call of the scenario was a place of a crash"


KILL_EVERY = os.environ.get("TRIALFLEET_TEST_KILL_EVERY", "7")  # 1: minutes, not seconds
KILLED = """
import json, os, signal, sys
import scipy.stats.qmc  # before the forks
import sqlalchemy
from pathlib import Path
from trialfleet.optimizer.region_study import RegionStudy
from trialfleet.optimizer.region_types import Complete, Failed, RegionSettings
from trialfleet.optimizer.space import SearchSpace
from trialfleet.optimizer.storage import open_storage
from trialfleet.optimizer.storage_url import sqlite_url

folder, entries = Path(sys.argv[1]), json.loads(sys.argv[2])
space = SearchSpace.model_validate(entries)
settings = RegionSettings(metric="loss", direction="minimize", region="A", seed=5, trials=20,
    startup_trials=20, max_failures=3, hours=None)

def steps(study):
    study.ask("a")
    study.ask("b")
    study.tell("a", Complete(metrics={"loss": 0.5}, seconds=1.5, device="cpu"), attempts=1)
    study.ask("c")
    study.tell("b", Failed(error="x", final=True), attempts=2)

def life(url, left):
    storage = open_storage(url)
    for event in ("before_cursor_execute", "commit"):
        def die(*_):
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        sqlalchemy.event.listen(storage.engine, event, die)
    steps(RegionStudy(storage, "s/r/JFK", space, settings))

def in_child(url, left):
    child = os.fork()
    if not child:
        try:
            life(url, left)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]

def outcome(url):
    storage = open_storage(url)
    trials = storage.get_all_trials(storage.get_study_id_from_name("s/r/JFK"))
    return repr([(t.number, t.state, t.values, t.params, t.user_attrs) for t in trials])

made = open_storage(sqlite_url(folder / "template.db"))
made.remove_session()
made.engine.dispose()
empty = (folder / "template.db").read_bytes()

def new(name):
    (folder / name).write_bytes(empty)
    return sqlite_url(folder / name)

plain = new("plain.db")
assert in_child(plain, 0) == 0
expected = outcome(plain)
kills, at = 0, 1
while True:
    url = new(f"killed-{at}.db")
    status = in_child(url, at)
    if status == 0:
        break
    assert os.WIFSIGNALED(status), status
    assert in_child(url, 0) == 0
    assert outcome(url) == expected, f"killed at statement {at}"
    kills, at = kills + 1, at + int(sys.argv[3])
print(kills)
"""


@pytest.mark.slow
def test_kill_9_at_any_sql_statement_is_repaired_by_repeating(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), json.dumps(ENTRIES), KILL_EVERY],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) >= 4


def test_a_trial_that_two_managers_asked_for_at_once_counts_once() -> None:
    """The other manager took the run over after this one had checked that it owns the run."""
    storage = in_memory()
    former, new = make(storage, trials=3), make(storage, trials=3)
    asked(former, "a")
    new.trials()  # it has read them
    asked(former, "b")
    second = asked(new, "b")
    assert second == asked(former, "b")
    complete(new, "b", 0.5)
    assert [trial.user_attrs["node"] for trial in make(storage, trials=3).trials()] == ["a", "b"]
    assert [trial.state.name for trial in stored(storage)] == ["RUNNING", "COMPLETE", "PRUNED"]


def create_twice(storage: TrialStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Create trials twice, as Optuna does if the connection breaks after a commit."""
    begin = storage.begin

    def lose_the_answer(study_id: int, trial: FrozenTrial) -> FrozenTrial:
        begin(study_id, trial)
        return begin(study_id, trial)

    monkeypatch.setattr(storage, "begin", lose_the_answer)


@pytest.mark.parametrize("reopen", [False, True])
@pytest.mark.parametrize("told_first", [False, True])
def test_a_trial_that_the_database_created_twice_counts_once(
    monkeypatch: pytest.MonkeyPatch, *, reopen: bool, told_first: bool
) -> None:
    storage = in_memory()
    study = make(storage, trials=3)
    asked(study, "a")
    with monkeypatch.context() as broken:
        create_twice(storage, broken)
        second = asked(study, "b")
    if told_first:
        complete(study, "b", 0.5)
    if reopen:
        study = make(storage, trials=3)
    if not told_first:
        assert asked(study, "b") == second
        complete(study, "b", 0.5)
    assert study.ask("b") == Refused("b is finished")
    third = asked(study, "c")
    complete(study, "a", 1.0)
    complete(study, "c", 1.0)
    assert isinstance(study.ask("d"), Refused)
    assert study.best() == second
    undisturbed = make(trials=3)
    expected = [asked(undisturbed, node) for node in "abc"]
    assert [(a.params, a.seed) for a in (second, third)] == [
        (a.params, a.seed) for a in expected[1:]
    ]
    states = [trial.state for trial in stored(storage)]
    assert sorted(state.name for state in states) == ["COMPLETE"] * 3 + ["PRUNED"]
