"""Studies in a real PostgreSQL server, which these tests start and end."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState

from tests.conftest import MakeRun
from tests.postgresql import Server, private_server, psycopg
from tests.unit.optimizer.conftest import Opener
from trialfleet.errors import InputError, OptimizerError
from trialfleet.optimizer.region_study import RegionStudy
from trialfleet.optimizer.region_types import (
    Assignment,
    Complete,
    Failed,
    Refused,
    RegionSettings,
    TrialExecution,
)
from trialfleet.optimizer.run_ownership import Owner, Ownership
from trialfleet.optimizer.space import SearchSpace
from trialfleet.optimizer.storage import open_storage
from trialfleet.optimizer.storage_transactions import TrialStorage
from trialfleet.optimizer.storage_url import sqlite_url
from trialfleet.optimizer.stored_trials import reader_of_url
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.views.serve.optuna_routes import copy_study

pytestmark = pytest.mark.postgres

SPACE = SearchSpace.model_validate(
    {
        "rate": {"type": "float", "low": 1e-5, "high": 1, "log": True},
        "drop": {"type": "float", "low": 0, "high": 0.5, "step": 0.1},
        "flag": {"type": "categorical", "choices": [True, False, "é", 0.25]},
        "units": {"type": "int", "low": 1, "high": 2**53, "when": {"flag": [True, "é"]}},
        "epochs": 10,
    }
)
SETTINGS = RegionSettings(
    metric="loss",
    direction="minimize",
    region="A",
    seed=3,
    trials=30,
    startup_trials=30,
    max_failures=3,
    hours=None,
)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    yield from private_server()


NO_TIMES: dict[str, Any] = {"datetime_start": None, "datetime_complete": None}


def make(storage: TrialStorage, name: str) -> RegionStudy:
    return RegionStudy(storage, name, SPACE, SETTINGS)


JOB = {"machine": "node-é", "wall_seconds": 12.5, "memory_mb": None}
REPORTS = {0: math.nan, 1: math.inf, 2: -math.inf, 3: 5e-324, 4: -1.7e308, 2**31 - 1: 0.1}


def scenario(study: RegionStudy) -> list[Any]:
    """Ask and tell in every way, and return the replies."""
    answers = [study.ask(f"n{i}") for i in range(8)]
    ran: TrialExecution = {"attempts": 2, "job": JOB, "reports": REPORTS}
    study.tell("n0", Complete(metrics={"loss": 0.1 + 0.2}, seconds=1.5, device="GPU é"), **ran)
    study.tell("n1", Failed(error="out of memory\nat step 3", final=True), attempts=3)
    return [*answers, study.best()]


def test_a_study_gives_the_same_replies_with_postgresql_and_sqlite(
    server: Server, tmp_path: Path, opened: Opener
) -> None:
    storage = opened(server.url())
    here = scenario(make(storage, "same"))
    there = scenario(make(opened(sqlite_url(tmp_path / "study.db")), "same"))
    assert repr(here) == repr(there)
    again = make(opened(server.url()), "same")
    assert [again.ask("n0"), again.ask("n1")] == [
        Refused("n0 is finished"),
        Refused("n1 is finished"),
    ]
    assert repr([*(again.ask(f"n{i}") for i in range(2, 8)), again.best()]) == repr(here[2:])
    trials = storage.get_all_trials(storage.get_study_id_from_name("same"))
    assert [t.number for t in trials] == list(range(8))
    assert (trials[0].state, trials[0].value) == (TrialState.COMPLETE, 0.1 + 0.2)
    assert trials[0].user_attrs["device"] == "GPU é"
    assert trials[0].user_attrs["job"] == JOB
    assert trials[0].intermediate_values == pytest.approx(REPORTS, nan_ok=True, abs=0, rel=0)
    assert (trials[1].state, trials[1].user_attrs["error"]) == (
        TrialState.FAIL,
        "out of memory\nat step 3",
    )


def test_runs_that_start_at_once_share_a_database_without_tables(
    server: Server, opened: Opener
) -> None:
    admin = server.url().replace("+psycopg", "")
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute("CREATE DATABASE fresh")
    url = server.url().replace("/postgres", "/fresh")
    barrier, errors = threading.Barrier(6), []

    def begin(number: int) -> None:
        try:
            barrier.wait()
            make(opened(url), f"run {number}").ask("a")
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=begin, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    names = {study.study_name for study in opened(url).get_all_studies()}
    assert names == {f"run {i}" for i in range(6)}


def test_only_one_of_several_managers_that_begin_at_once_owns_the_run(
    server: Server, opened: Opener
) -> None:
    admin = server.url().replace("+psycopg", "")
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute("CREATE DATABASE owned")
    url = server.url().replace("/postgres", "/owned")
    storages = [opened(url) for _ in range(6)]
    managers = [Owner(f"id{i}", "/runs/r1", f"host{i}", "now") for i in range(6)]
    barrier, seen = threading.Barrier(6), dict[int, Owner | None]()

    def begin(i: int) -> None:
        barrier.wait()
        seen[i] = Ownership(storages[i], "demo/r1", managers[i]).other_owner()

    threads = [threading.Thread(target=begin, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (owner,) = (managers[i] for i, other in seen.items() if other is None)
    assert list(seen.values()).count(owner) == 5
    heir = Ownership(opened(url), "demo/r1", managers[0])
    assert heir.take_over() == (None if owner == managers[0] else owner)
    assert heir.other_owner() is None
    assert Ownership(opened(url), "demo/r1", managers[1]).other_owner() == managers[0]
    assert Ownership(opened(url), "demo/r2", managers[1]).other_owner() is None
    again = replace(managers[0], since="later")
    assert Ownership(opened(url), "demo/r1", again).take_over() is None


def test_managers_that_divide_the_regions_write_one_database_at_once(
    server: Server, opened: Opener
) -> None:
    url, barrier, errors = server.url(), threading.Barrier(4), []

    def manage(number: int) -> None:
        try:
            study = make(opened(url), f"of manager {number}")
            barrier.wait()
            for i in range(8):
                study.ask(f"n{i}")
                result = Complete(metrics={"loss": number + i}, seconds=1.0, device=None)
                study.tell(f"n{i}", result, attempts=1)
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=manage, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    storage = opened(url)
    for number in range(4):
        trials = storage.get_all_trials(storage.get_study_id_from_name(f"of manager {number}"))
        assert [(t.number, t.value) for t in trials] == [(i, number + i) for i in range(8)]


@pytest.mark.parametrize("end", ["stop", "crash"])
def test_a_resident_study_continues_after_the_servers_restart(
    server: Server, opened: Opener, end: str
) -> None:
    study = make(opened(server.url()), f"restart {end}")
    first = study.ask("a")
    assert isinstance(first, Assignment)
    if end == "stop":
        server.stop("fast")
        with pytest.raises(OptimizerError, match=r"study 'restart stop'.*refused"):
            study.ask("b")
        server.start()
    else:
        server.crash()
    # a tell first: Optuna itself repeats an ask after a lost connection
    study.tell("a", Complete(metrics={"loss": 1.0}, seconds=None, device=None), attempts=1)
    second = study.ask("b")
    assert isinstance(second, Assignment)
    assert (study.ask("a"), second.number) == (Refused("a is finished"), 1)
    assert study.best() == first


def test_a_wrong_password_is_refused_without_showing_it(server: Server) -> None:
    with pytest.raises(OptimizerError, match="password authentication failed") as caught:
        open_storage(server.url("geheim"))
    assert "geheim" not in str(caught.value)
    assert "fleet:***@127.0.0.1" in str(caught.value)


def test_the_same_trials_are_read_from_postgresql_and_sqlite(
    server: Server, tmp_path: Path, opened: Opener
) -> None:
    urls = [server.url(), sqlite_url(tmp_path / "study.db")]
    read = []
    for url in urls:
        scenario(make(opened(url), "read"))
        found = reader_of_url(url).read_all(["read"])["read"]
        read.append([replace(t, user_attrs=dict(t.user_attrs), **NO_TIMES) for t in found])
        assert reader_of_url(url).read_all(["another"])["another"] == []
    texts = [[json.dumps(asdict(t), sort_keys=True, default=str) for t in own] for own in read]
    assert texts[0] == texts[1]  # NaN, which isn't equal to itself, among them
    assert [trial.state.name for trial in read[0][:3]] == ["COMPLETE", "FAIL", "RUNNING"]


def test_the_dashboard_shows_a_copy_of_only_the_runs_studies(
    server: Server, tmp_path: Path, opened: Opener, make_run: MakeRun
) -> None:
    run = make_run(run="pg", storage=server.url())
    with pytest.raises(InputError, match="has no trials yet"):
        copy_study(RunFolder(run.folder), tmp_path / "early.db")
    storage = opened(server.url())
    scenario(make(storage, "demo/pg/A"))
    scenario(make(storage, "demo/another/A"))
    copy_study(RunFolder(run.folder), tmp_path / "copy.db")
    copy = opened(sqlite_url(tmp_path / "copy.db"))
    assert [study.study_name for study in copy.get_all_studies()] == ["demo/pg/A"]
    trials = copy.get_all_trials(copy.get_study_id_from_name("demo/pg/A"))
    theirs = storage.get_all_trials(storage.get_study_id_from_name("demo/pg/A"))
    assert [(t.state, t.values, t.params) for t in trials] == [
        (t.state, t.values, t.params) for t in theirs
    ]


def test_reading_a_database_without_tables_creates_none(server: Server) -> None:
    with psycopg.connect(server.url().replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("CREATE DATABASE empty")
    url = server.url().replace("/postgres", "/empty")
    assert reader_of_url(url).read_all(["A"])["A"] == []
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        tables = connection.execute("SELECT * FROM pg_tables WHERE schemaname = 'public'")
        assert tables.fetchall() == []
