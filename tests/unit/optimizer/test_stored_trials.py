"""Tests of reading trials without Optuna: they equal those that Optuna reads."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import FloatDistribution
from optuna.storages import BaseStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, create_trial

from tests.conftest import MakeRun
from tests.job_logs import JobLog
from trialfleet.errors import OptimizerError
from trialfleet.optimizer.storage import close_storage, open_storage
from trialfleet.optimizer.storage_url import sqlite_url
from trialfleet.optimizer.stored_trials import (
    STOPPED,
    StoredTrial,
    TrialState,
    is_own,
    reader_of_file,
    reader_of_url,
)
from trialfleet.workflows.control.models.latest import promote
from trialfleet.workflows.facts.jobs.trial_parts import note_log
from trialfleet.workflows.facts.run_folder.folder import RunFolder

pytestmark = pytest.mark.slow


NAME = 'flüge/2026-11-20T10-00-00/it\'s a "name"'
FIELDS = [name for name in StoredTrial.__dataclass_fields__ if name != "value"]
BEGAN = datetime(2026, 11, 20, 10, 0, 0)
ATTRIBUTES = {"node": "A.l1.t01", "params": {"x": 0.1 + 0.2, "kind": "é\n\x1b"}, "error": None}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "a folder? with # 100%" / "study.db"


@pytest.fixture
def storage(file: Path) -> Iterator[BaseStorage]:
    file.parent.mkdir()
    opened = open_storage(sqlite_url(file))
    yield opened
    close_storage(opened)


def trial(state: str, value: float | None = None, **more: object) -> FrozenTrial:
    made = create_trial(
        state=optuna.trial.TrialState[state],
        value=value,
        params={"x": 0.25},
        distributions={"x": FloatDistribution(0, 1)},
        user_attrs={**ATTRIBUTES, **more},
        intermediate_values={1: 0.5, 7: 1 / 3, 8: math.inf, 9: -math.inf},
    )
    made.datetime_start = BEGAN
    made.datetime_complete = BEGAN + timedelta(seconds=1.5) if made.state.is_finished() else None
    return made


def fill(storage: BaseStorage, name: str = NAME) -> int:
    """Add trials of every kind and return the study's id."""
    study = storage.create_new_study([StudyDirection.MINIMIZE], name)
    for made in (
        trial("COMPLETE", 0.1 + 0.2),
        trial("RUNNING"),
        trial("FAIL", error="out of memory"),
        trial("COMPLETE", math.inf),
        trial("PRUNED"),
        trial("WAITING"),
        trial("COMPLETE", -math.inf),
    ):
        storage.create_new_trial(study, made)
    return study


def fields(trials: list[StoredTrial] | list[FrozenTrial]) -> list[tuple[object, ...]]:
    return [tuple(getattr(t, name) for name in FIELDS) for t in trials]


@pytest.fixture(params=["UTC", "America/New_York", "Asia/Kolkata"])
def _zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", request.param)
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("_zone")
@pytest.mark.parametrize("of_url", [False, True])
def test_a_file_is_read_as_optuna_reads_it(
    storage: BaseStorage, file: Path, *, of_url: bool
) -> None:
    study = fill(storage)
    reader = reader_of_url(sqlite_url(file)) if of_url else reader_of_file(file)
    read = reader.read_all([NAME])[NAME]
    by_optuna = storage.get_all_trials(study)
    assert fields(read) == fields(by_optuna)
    assert [t.value for t in read] == [t.values and t.values[0] for t in by_optuna]
    assert [t.state.is_finished() for t in read] == [t.state.is_finished() for t in by_optuna]
    assert reader.read_all(["a third"])["a third"] == []


def test_the_trial_states_equal_optunas() -> None:
    assert {s.name: int(s) for s in TrialState} == {s.name: int(s) for s in optuna.trial.TrialState}


def test_a_missing_file_has_no_trials_and_is_not_created(tmp_path: Path) -> None:
    assert reader_of_file(tmp_path / "study.db").read_all([NAME])[NAME] == []
    assert reader_of_url(sqlite_url(tmp_path / "study.db")).read_all([NAME])[NAME] == []
    assert list(tmp_path.iterdir()) == []


def test_changes_are_seen_and_finished_trials_are_read_once(
    storage: BaseStorage, file: Path
) -> None:
    study = fill(storage)
    reader = reader_of_file(file)
    before = reader.read_all([NAME])[NAME]
    running = storage.get_all_trials(study)[1]
    storage.set_trial_user_attr(running._trial_id, "seconds", 2.5)
    storage.set_trial_state_values(running._trial_id, optuna.trial.TrialState.COMPLETE, [0.5])
    after = reader.read_all([NAME])[NAME]
    assert (after[1].value, after[1].user_attrs["seconds"]) == (0.5, 2.5)
    assert fields(after) == fields(storage.get_all_trials(study))
    assert [old is new for old, new in zip(before, after, strict=True)] == [True] + [False] * 6
    storage.create_new_trial(study, trial("RUNNING"))
    last = reader.read_all([NAME])[NAME]
    assert fields(last) == fields(storage.get_all_trials(study))
    until_one_waits = [True] * 5
    same = [old is new for old, new in zip(after, last, strict=False)]
    assert same == [*until_one_waits, False, False]


def test_a_file_without_tables_has_no_trials(tmp_path: Path) -> None:
    (tmp_path / "study.db").touch()
    assert reader_of_file(tmp_path / "study.db").read_all([NAME])[NAME] == []


@pytest.mark.parametrize("content", [b"no database" * 1000, b"SQLite format 3\0" + bytes(84)])
def test_an_unreadable_file_gives_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "study.db").write_bytes(content)
    with pytest.raises(OptimizerError, match="the storage of study 'one' can't be used"):
        reader_of_file(tmp_path / "study.db").read_all(["one"])["one"]


# -- imports ---------------------------------------------------------------------------------------

HEAVY = {"alembic", "boto3", "jinja2", "numpy", "optuna", "plotly", "scipy", "sqlalchemy", "torch"}
LOADED = """
import sys
from trialfleet.__main__ import main
try:
    main()
finally:
    print("loaded:", *{name.partition(".")[0] for name in sys.modules}, file=sys.stderr)
"""


@pytest.mark.parametrize(
    "words",
    [
        *(["status"], ["status", "--json"], ["runs"], ["best"], ["trials", "--csv"], ["cost"]),
        ["--help"],
    ],
)
def test_frequent_commands_import_nothing_slow(
    make_run: MakeRun, work: Path, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run()
    monkeypatch.delenv("CONDOR_CONFIG")  # no queue query: it loads HTCondor's library
    lane = JobLog(run.folder / "regions/A/trials/A.l1/log")
    lane.submitted(0)
    lane.executes(1)
    lane.terminated(2)
    note_log(run.folder / "regions/A/trials/A.l1/log")
    storage = open_storage(sqlite_url(run.folder / "study.db"))
    study = storage.create_new_study([StudyDirection.MINIMIZE], "demo/r1/A")
    storage.create_new_trial(study, trial("COMPLETE", 0.5, metrics={"loss": 0.5}))
    close_storage(storage)
    given = words if words in (["--help"], ["runs"]) else [*words, str(run.folder)]
    assert not loaded_by(given, work) & (HEAVY | {"classad2", "htcondor2"})


@pytest.mark.parametrize(
    ("words", "also"),
    [
        (["rollback", "A"], {"rich"}),
        (["promote", "models/demo/A/r1"], {"pydantic", "rich"}),
        (["promote", "r2/A"], set()),
        (["models"], set()),
        (["models", "A"], set()),
    ],
)
def test_the_model_commands_import_nothing_slow(
    make_run: MakeRun, work: Path, words: list[str], also: set[str]
) -> None:
    for name in ("r1", "r2"):
        run = make_run(run=name, out=work / "runs" / "demo" / name)
        model = work / "models" / "demo" / "A" / name
        model.mkdir(parents=True)
        provenance = {"study": "demo", "run": name, "region": "A"}
        (model / "provenance.json").write_text(json.dumps(provenance))
        published = RunFolder(run.folder).region("A").published
        published.parent.mkdir(parents=True, exist_ok=True)
        published.write_text(json.dumps({"path": str(model)}))
        promote(model)
    assert not loaded_by(words, work) & (HEAVY | also)


def loaded_by(words: list[str], here: Path) -> set[str]:
    """Return the packages that a command imports."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *words], cwd=here, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    loaded = set(done.stderr.rpartition("loaded:")[2].split())
    assert "trialfleet" in loaded
    return loaded


@pytest.mark.parametrize(
    ("notes", "own"), [({"error": ""}, True), ({STOPPED: {}}, True), ({}, False)]
)
def test_only_an_abandoned_trial_without_a_record_is_a_duplicate(
    notes: dict[str, Any], own: bool
) -> None:
    trial = StoredTrial(
        number=0, state=TrialState.PRUNED, value=None, datetime_start=None,
        datetime_complete=None, user_attrs={"node": "A.l1.t01", **notes},
    )  # fmt: skip
    assert is_own(trial) is own
