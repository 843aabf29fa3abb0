"""Tests of a study's storage: any file name, failures, several threads at once."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import RDBStorage

from tests.unit.optimizer.conftest import Opener
from tests.unit.optimizer.region_studies import (
    NAME,
    SPACE,
    asked,
    complete,
    in_memory,
    make,
    settings,
    stored,
)
from trialfleet.errors import InputError, OptimizerError, TrialfleetError
from trialfleet.optimizer.region_study import RegionStudy
from trialfleet.optimizer.storage import copy_sqlite, open_storage
from trialfleet.optimizer.storage_url import sqlite_url

os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch is imported later: as in the service


def test_a_study_of_another_direction_is_refused() -> None:
    storage = in_memory()
    storage.create_new_study([optuna.study.StudyDirection.MAXIMIZE], NAME)
    with pytest.raises(TrialfleetError, match=r"maximize, but objective\.direction is minimize"):
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
def test_opening_a_new_sqlite_file_leaves_no_temporary_file(tmp_path: Path, opened: Opener) -> None:
    opened(sqlite_url(tmp_path / "study.db"))
    left = {path.name for path in tmp_path.iterdir()}
    assert left <= {"study.db", "study.db-wal", "study.db-shm"}


@pytest.mark.slow
def test_threads_that_create_one_file_at_once_share_it(tmp_path: Path, opened: Opener) -> None:
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
        ("study.db", InputError, "storage: must be the URL of a database"),
        ("nosuch://x", InputError, "storage: nosuch:// is not supported"),
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


@pytest.mark.parametrize("exists", [True, False])
def test_a_copy_stays_as_it_is_if_its_source_has_no_tables(tmp_path: Path, exists: bool) -> None:
    source, target = tmp_path / "study.db", tmp_path / "copy.db"
    target.write_bytes(b"what was copied before")
    if exists:
        source.touch()
    copy_sqlite(source, target)
    assert target.read_bytes() == b"what was copied before"
    assert source.exists() == exists
