"""Tests of a region's study: asks and tells exactly once, budgets, reproducibility."""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import BaseStorage, RDBStorage
from optuna.trial import FrozenTrial, TrialState

from tests.unit.optimizer.conftest import Opener
from trialfleet.errors import InputError, OptimizerError, TrialfleetError
from trialfleet.optimizer import region_study
from trialfleet.optimizer.region_study import MOST_REPORTS, RegionStudy
from trialfleet.optimizer.region_types import (
    Abandoned,
    Assignment,
    Complete,
    Failed,
    Refused,
    RegionSettings,
    Stopped,
)
from trialfleet.optimizer.space import SearchSpace
from trialfleet.optimizer.storage import open_storage
from trialfleet.optimizer.storage_url import sqlite_url
from trialfleet.optimizer.stored_trials import FAILURES
from trialfleet.optimizer.trial_rows import TrialStorage

os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch is imported later: as in the service

ENTRIES: dict[str, Any] = {
    "rate": {"type": "float", "low": 1e-5, "high": 1, "log": True},
    "kind": {"type": "categorical", "choices": ["sgd", "adam"]},
    "momentum": {"type": "float", "low": 0, "high": 0.9, "when": {"kind": ["sgd"]}},
    "flag": {"type": "categorical", "choices": [True, False]},
    "units": {"type": "int", "low": 8, "high": 64, "step": 8},
    "epochs": 10,
}
SPACE = SearchSpace.model_validate(ENTRIES)
NAME = "flights/2026-11-20T10-00-00/JFK"


def in_memory() -> TrialStorage:
    return TrialStorage("sqlite://")


def settings(**more: Any) -> RegionSettings:
    given: dict[str, Any] = {"region": "A", "trials": 20, "startup_trials": 20, "max_failures": 3}
    given |= {"hours": None, "seed": 5}
    return RegionSettings(metric="loss", direction="minimize", **{**given, **more})


def make(storage: TrialStorage | None = None, **more: Any) -> RegionStudy:
    return RegionStudy(storage or in_memory(), NAME, SPACE, settings(**more))


def asked(study: RegionStudy, node: str) -> Assignment:
    answer = study.ask(node)
    assert isinstance(answer, Assignment), answer
    return answer


def complete(study: RegionStudy, node: str, loss: float, **more: Any) -> None:
    result = Complete(metrics={"loss": loss, "other": 2.0}, seconds=1.5, device="NVIDIA A100")
    ran: Any = {"attempts": 1} | more
    study.tell(node, result, **ran)


def stored(storage: BaseStorage) -> list[FrozenTrial]:
    return storage.get_all_trials(storage.get_study_id_from_name(NAME))


# ---------------------------------------------------------------- asking


def test_the_first_trial_has_the_defaults() -> None:
    study = make()
    first, second = asked(study, "a"), asked(study, "b")
    assert first.params == SPACE.complete(SPACE.defaults())
    assert first.number == 0
    assert second.number == 1
    assert first.seed != second.seed


@pytest.mark.slow
def test_repeated_asks_return_the_same_until_the_tell_also_from_a_new_object(
    tmp_path: Path, opened: Opener
) -> None:
    storage = opened(sqlite_url(tmp_path / "study.db"))
    study = make(storage)
    first = [asked(study, f"n{i}") for i in range(4)]
    complete(study, "n1", 0.5)
    study.tell("n2", Failed(error="diverged", final=True), attempts=3)
    again = make(opened(sqlite_url(tmp_path / "study.db")))
    for source in (study, again):
        repeated = [source.ask(f"n{i}") for i in range(4)]
        assert repr(repeated) == repr(
            [first[0], Refused("n1 is finished"), Refused("n2 is finished"), first[3]]
        )
    assert len(stored(storage)) == 4


def test_params_hold_active_parameters_and_constants_in_the_order_of_the_file() -> None:
    study = make()
    kinds = set()
    for i in range(12):
        params = asked(study, f"n{i}").params
        kinds.add(params["kind"])
        assert ("momentum" in params) == (params["kind"] == "sgd")
        assert list(params) == [name for name in ENTRIES if name in params]
        assert params["epochs"] == 10
        assert type(params["flag"]) is bool
        assert type(params["units"]) is int
    assert kinds == {"sgd", "adam"}


def test_the_storage_has_node_seed_baseline_and_only_active_parameters() -> None:
    storage = in_memory()
    study = make(storage)
    answers = [asked(study, f"n{i}") for i in range(6)]
    for answer, trial in zip(answers, stored(storage), strict=True):
        constants_left_out = {k: v for k, v in answer.params.items() if k != "epochs"}
        assert trial.state == TrialState.RUNNING
        assert trial.params == constants_left_out
        assert trial.user_attrs == {
            "node": f"n{answer.number}",
            "params": constants_left_out,
            "seed": answer.seed,
            "baseline": answer.number == 0,
        }


def test_regions_of_one_study_differ_except_in_the_baseline() -> None:
    storage = in_memory()
    left = RegionStudy(storage, "s/r/JFK", SPACE, settings(region="JFK"))
    right = RegionStudy(storage, "s/r/LGA", SPACE, settings(region="LGA"))
    assert asked(left, "a").params == asked(right, "a").params
    assert asked(left, "a").seed != asked(right, "a").seed
    assert asked(left, "b").params != asked(right, "b").params


def test_suggestions_do_not_depend_on_the_run() -> None:
    first, second = (RegionStudy(in_memory(), f"s/{run}/JFK", SPACE, settings()) for run in "ab")
    for node in ("n0", "n1", "n2"):
        assert asked(first, node) == asked(second, node)


@pytest.mark.slow
def test_seed_and_results_determine_every_suggestion() -> None:
    def run(seed: int) -> list[Assignment]:
        study = make(seed=seed, startup_trials=4)
        answers = []
        for i in range(7):
            answers.append(asked(study, f"n{i}"))
            complete(study, f"n{i}", answers[-1].params["rate"])
        return answers

    assert run(1) == run(1)
    assert run(1)[1:] != run(2)[1:]


# ---------------------------------------------------------------- telling


def test_a_result_is_stored_with_all_its_details() -> None:
    storage = in_memory()
    study = make(storage)
    asked(study, "a")
    complete(study, "a", 0.25, attempts=2)
    (trial,) = stored(storage)
    assert (trial.state, trial.value) == (TrialState.COMPLETE, 0.25)
    details = ("metrics", "seconds", "device", "attempts", "error", "job")
    assert {key: value for key, value in trial.user_attrs.items() if key in details} == {
        "metrics": {"loss": 0.25, "other": 2.0},
        "seconds": 1.5,
        "device": "NVIDIA A100",
        "attempts": 2,
    }


def test_a_failure_is_stored_as_a_failure_with_its_error() -> None:
    storage = in_memory()
    study = make(storage)
    asked(study, "a")
    study.tell("a", Failed(error="CUDA out of memory", final=True), attempts=4)
    (trial,) = stored(storage)
    assert (trial.state, trial.values) == (TrialState.FAIL, None)
    assert trial.user_attrs["error"] == "CUDA out of memory"
    assert trial.user_attrs["attempts"] == 4


def test_the_job_and_the_reports_are_stored_whatever_the_outcome() -> None:
    storage = in_memory()
    study = make(storage)
    job = {"machine": "node-1", "wall_seconds": 3.5}
    for node in ("a", "b", "c"):
        asked(study, node)
    complete(study, "a", 0.25, job=job, reports={1: 0.5, 2: math.nan, 3: math.inf, 4: 0.25})
    study.tell("b", Failed(error="x", final=True), attempts=2, job=job, reports={1: 0.5})
    study.tell("c", Abandoned(error="no money is left"), attempts=1, job=job, reports={7: 0.5})
    first, second, third = stored(storage)
    assert [trial.user_attrs["job"] for trial in (first, second, third)] == [job] * 3
    assert first.intermediate_values == pytest.approx(
        {1: 0.5, 2: math.nan, 3: math.inf, 4: 0.25}, nan_ok=True
    )
    assert (second.intermediate_values, third.intermediate_values) == ({1: 0.5}, {7: 0.5})


def test_many_reports_are_stored_downsampled_with_the_first_and_the_last() -> None:
    storage = in_memory()
    study = make(storage)
    asked(study, "a")
    complete(study, "a", 0.25, reports={step: step / 1000 for step in range(1, 1001)})
    (trial,) = stored(storage)
    steps = sorted(trial.intermediate_values)
    assert (len(steps), steps[0], steps[-1]) == (MOST_REPORTS, 1, 1000)
    gaps = {after - before for before, after in itertools.pairwise(steps)}
    assert max(gaps) - min(gaps) <= 1
    assert all(trial.intermediate_values[step] == step / 1000 for step in steps)


def test_the_first_tell_wins() -> None:
    storage = in_memory()
    study = make(storage)
    for node in ("a", "b"):
        asked(study, node)
    complete(study, "a", 0.25)
    study.tell("b", Failed(error="x", final=True), attempts=1)
    before = repr(stored(storage))
    complete(study, "a", 9.0)
    study.tell("a", Failed(error="late", final=True), attempts=2)
    complete(study, "b", 9.0)
    assert repr(stored(storage)) == before


def test_an_abandoned_trial_is_finished_but_not_failed() -> None:
    storage = in_memory()
    study = make(storage, max_failures=0)
    for node in ("a", "b", "c"):
        asked(study, node)
    complete(study, "a", 0.25)
    for node in ("a", "b", "b", "ghost"):
        study.tell(node, Abandoned(error="no money is left"))
    assert study.stopped() is None
    assert study.ask("b") == Refused("b is finished")
    assert study.ask("c") == asked(study, "c")
    complete(study, "b", 0.1)
    assert [(t.state, t.value) for t in stored(storage)] == [
        (TrialState.COMPLETE, 0.25),
        (TrialState.PRUNED, None),
        (TrialState.RUNNING, None),
    ]
    assert stored(storage)[1].user_attrs["error"] == "no money is left"


def test_a_trial_that_another_program_added_is_ignored() -> None:
    storage = in_memory()
    ours, undisturbed = make(storage), make()
    for study in (ours, undisturbed):
        asked(study, "a")
        complete(study, "a", 1.0)
    optuna.load_study(study_name=NAME, storage=storage).ask()
    again = make(storage)
    assert asked(again, "b").params == asked(undisturbed, "b").params
    assert [trial.state for trial in stored(storage)][1] is TrialState.RUNNING


def test_telling_a_node_that_was_never_asked_is_an_error() -> None:
    study = make()
    with pytest.raises(TrialfleetError, match=r"'ghost'.*never asked"):
        complete(study, "ghost", 1.0)
    with pytest.raises(TrialfleetError, match=r"'ghost'.*never asked"):
        study.tell("ghost", Failed(error="x", final=True), attempts=1)


def test_best_is_the_best_complete_trial_and_the_earliest_among_equals() -> None:
    for direction, expected in (("minimize", 1), ("maximize", 3)):
        study = RegionStudy(
            in_memory(),
            NAME,
            SPACE,
            RegionSettings(
                metric="loss",
                direction=direction,  # type: ignore[arg-type]
                region="A",
                seed=1,
                trials=9,
                startup_trials=9,
                max_failures=9,
                hours=None,
            ),
        )
        assert study.best() is None
        for i, loss in enumerate([0.5, 0.25, 0.25, 0.75]):
            answer = asked(study, f"n{i}")
            complete(study, f"n{i}", loss)
            if i == expected:
                wanted = answer
        asked(study, "failed")
        study.tell("failed", Failed(error="x", final=True), attempts=1)
        asked(study, "running")
        assert study.best() == wanted


# ---------------------------------------------------------------- budgets


def test_after_the_budget_new_nodes_get_no_trial_and_old_ones_their_own() -> None:
    study = make(trials=3)
    answers = [asked(study, f"n{i}") for i in range(3)]
    assert study.ask("n3") == Refused("the budget of 3 trials is used up")
    assert [study.ask(f"n{i}") for i in range(3)] == answers


def test_hours_count_from_the_first_ask() -> None:
    clock = [0.0]
    study = RegionStudy(in_memory(), NAME, SPACE, settings(hours=2), now=lambda: clock[0])
    first = asked(study, "a")
    (trial,) = study._trials()
    assert trial.datetime_start is not None
    clock[0] = trial.datetime_start.timestamp() + 2 * 3600 - 1
    asked(study, "b")
    clock[0] += 2
    assert study.ask("c") == Refused("the budget of 2 hours is used up")
    assert study.ask("a") == first


def test_one_failure_more_than_allowed_stops_the_region_with_a_reason() -> None:
    study = make(max_failures=1)
    for node in ("a", "b", "c"):
        asked(study, node)
    study.tell("a", Failed(error="first", final=True), attempts=1)
    asked(study, "d")
    study.tell("c", Failed(error="out of memory", final=True), attempts=1)
    answer = study.ask("e")
    assert isinstance(answer, Stopped)
    assert answer.reason == (
        "2 trials failed for good; budget.failures allows 1; the last, c: out of memory"
    )
    asked(study, "b")
    complete(study, "b", 1.0)


# ---------------------------------------------------------------- asking ahead


@pytest.mark.slow
def test_asking_ahead_changes_no_suggestion_and_is_repeated_after_results() -> None:
    ahead, plain = (make(startup_trials=3, trials=7) for _ in range(2))
    for i in range(7):
        assert ahead.ask_ahead() == (i > 0)  # the defaults need no computation
        if i > 0:
            complete(ahead, f"n{i - 1}", 0.1 * i)  # arrives after a suggestion was computed
            complete(plain, f"n{i - 1}", 0.1 * i)
            ahead.ask_ahead()
            assert not ahead.ask_ahead(), "there is nothing left to do"
        assert ahead.ask(f"n{i}") == plain.ask(f"n{i}")
    assert not ahead.ask_ahead(), "the budget is spent"


def test_an_ask_after_asking_ahead_computes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    study = make()
    asked(study, "a")
    assert study.ask_ahead()
    monkeypatch.setattr(region_study, "suggest", _never)
    asked(study, "b")


def _never(*_: Any, **__: Any) -> Any:
    raise AssertionError("no suggestion should be computed")


# ---------------------------------------------------------------- crashes


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


# ---------------------------------------------------------------- storages


def test_a_study_of_another_direction_is_refused() -> None:
    storage = in_memory()
    storage.create_new_study([optuna.study.StudyDirection.MAXIMIZE], NAME)
    with pytest.raises(TrialfleetError, match="direction is maximize, not minimize"):
        make(storage)


@pytest.mark.slow
def test_a_failing_storage_gives_one_clear_error_and_works_again_afterwards(
    tmp_path: Path, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = opened(sqlite_url(tmp_path / "study.db"))
    study = make(storage)
    asked(study, "a")
    with monkeypatch.context() as broken:
        broken.setattr(storage, "begin", _disk_full)
        with pytest.raises(OptimizerError, match=rf"study '{NAME}'.*disk is full"):
            study.ask("b")
    assert asked(study, "b").number == 1


def _disk_full(*_: Any) -> Any:
    raise optuna.exceptions.StorageInternalError from OSError("database or disk is full")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a b.db", "a?b#c%20d.db", "{x}'\".db", "é\n.db"])
def test_a_sqlite_file_may_have_any_path(tmp_path: Path, opened: Opener, name: str) -> None:
    asked(make(opened(sqlite_url(tmp_path / name))), "a")
    assert sorted(p.name for p in tmp_path.glob("*.db")) == [name]


@pytest.mark.slow
def test_opening_a_new_sqlite_file_leaves_no_other_file_behind(
    tmp_path: Path, opened: Opener
) -> None:
    opened(sqlite_url(tmp_path / "study.db"))
    left = {path.name for path in tmp_path.iterdir()}
    assert left <= {"study.db", "study.db-wal", "study.db-shm"}


@pytest.mark.slow
def test_two_processes_that_create_one_file_at_once_share_it(
    tmp_path: Path, opened: Opener
) -> None:
    url = sqlite_url(tmp_path / "study.db")
    barrier = threading.Barrier(4)
    names, errors = [], []

    def create(number: int) -> None:
        try:
            barrier.wait()
            RegionStudy(opened(url), f"study {number}", SPACE, settings()).ask("a")
            names.append(f"study {number}")
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=create, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    found = {study.study_name for study in opened(url).get_all_studies()}
    assert found == set(names) == {f"study {i}" for i in range(4)}


@pytest.mark.slow
def test_a_reader_suspended_during_a_read_does_not_block_the_writer(
    tmp_path: Path, opened: Opener
) -> None:
    url = sqlite_url(tmp_path / "study.db")
    study, reader = make(opened(url)), opened(url)
    asked(study, "a")
    assert isinstance(reader, RDBStorage)
    with reader.engine.connect() as connection:
        connection.exec_driver_sql("BEGIN")
        seen = connection.exec_driver_sql("SELECT count(*) FROM trials").scalar()
        asked(study, "b")
        complete(study, "a", 1.0)
        assert connection.exec_driver_sql("SELECT count(*) FROM trials").scalar() == seen
    assert len(stored(reader)) == 2


@pytest.mark.parametrize(
    ("url", "error", "message"),
    [
        ("study.db", InputError, "storage: is not the URL of a database"),
        ("nosuch://x", InputError, "nosuch://x is not a storage URL"),
        ("sqlite:////nosuch/folder/x.db", OptimizerError, "/nosuch/folder/x.db can't be used"),
        (
            "postgresql+psycopg://me:geheim@127.0.0.1:1/db",
            OptimizerError,
            r"me:\*\*\*@127.0.0.1:1/db can't be used: .*refused",
        ),
    ],
)
def test_a_storage_that_cant_be_opened_is_named_without_its_password(
    url: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        open_storage(url)
    assert "geheim" not in str(caught.value)


def test_a_file_that_is_not_a_database_is_named_and_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database, " * 100)
    before = path.read_bytes()
    with pytest.raises(OptimizerError, match=r"notes\.txt can't be used: file is not a database"):
        open_storage(sqlite_url(path))
    assert path.read_bytes() == before


def test_each_failed_attempt_is_recorded_once_and_none_after_the_tell() -> None:
    storage = in_memory()
    study = make(storage)
    asked(study, "a")
    for attempt, error in ((1, "w"), (1, "w"), (2, "x")):
        study.note_failure("a", attempt=attempt, error=error)
    first = stored(storage)[0].user_attrs[FAILURES]
    assert {attempt: noted["error"] for attempt, noted in first.items()} == {"1": "w", "2": "x"}
    study.note_failure("a", attempt=1, error="w")
    assert stored(storage)[0].user_attrs[FAILURES] == first, "its time stays, too"
    complete(study, "a", 0.25)
    study.note_failure("a", attempt=3, error="late")
    study.note_failure("never asked", attempt=1, error="x")
    assert stored(storage)[0].user_attrs[FAILURES] == first
