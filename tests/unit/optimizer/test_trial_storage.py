"""Tests of trials written in one transaction: Optuna reads the same."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from trialfleet.optimizer.storage import close_storage, open_storage
from trialfleet.optimizer.storage_transactions import TrialStorage
from trialfleet.optimizer.storage_url import sqlite_url


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[TrialStorage]:
    storage = open_storage(sqlite_url(tmp_path / "study.db"))
    assert isinstance(storage, TrialStorage)
    yield storage
    close_storage(storage)


@pytest.fixture
def study(storage: TrialStorage) -> int:
    return storage.create_new_study([StudyDirection.MINIMIZE], "s")


def template() -> FrozenTrial:
    return create_trial(
        state=TrialState.RUNNING,
        params={"rate": 0.1, "layers": 3, "kind": "b"},
        distributions={
            "rate": FloatDistribution(0.01, 1.0, log=True),
            "layers": IntDistribution(1, 9),
            "kind": CategoricalDistribution(("a", "b")),
        },
        user_attrs={"node": "A.l1.t01", "params": {"rate": 0.1}, "pair": (1, 2)},
    )


def test_a_new_trial_equals_the_one_that_optuna_reads(storage: TrialStorage, study: int) -> None:
    for number in range(3):
        trial = storage.begin(study, template())
        assert trial == storage.get_trial(trial._trial_id)
        assert trial.number == number


def test_a_finished_trial_equals_the_one_that_optuna_reads(
    storage: TrialStorage, study: int
) -> None:
    trial = storage.begin(study, template())
    reports = {1: 0.5, 2: math.inf, 3: -math.inf}
    finished = storage.finish(
        trial,
        TrialState.COMPLETE,
        0.25,
        {"metrics": {"loss": 0.25}, "error": None},
        reports,
    )
    assert finished == storage.get_trial(trial._trial_id)
    assert (finished.state, finished.value) == (TrialState.COMPLETE, 0.25)
    assert finished.intermediate_values == reports


def test_a_finished_trial_stays_unchanged(storage: TrialStorage, study: int) -> None:
    trial = storage.begin(study, template())
    storage.finish(trial, TrialState.COMPLETE, 0.25, {}, {})
    with pytest.raises(UpdateFinishedTrialError):
        storage.finish(trial, TrialState.FAIL, None, {"error": "x"}, {})
    assert storage.get_trial(trial._trial_id).state == TrialState.COMPLETE
    assert "error" not in storage.get_trial(trial._trial_id).user_attrs


def test_each_ask_and_tell_is_one_transaction(storage: TrialStorage, study: int) -> None:
    commits: list[object] = []
    sqlalchemy.event.listen(storage.engine, "commit", commits.append)
    trial = storage.begin(study, template())
    assert len(commits) == 1
    reports = {step: 1.0 / step for step in range(1, 51)}
    storage.finish(trial, TrialState.COMPLETE, 0.25, {"seconds": 1.0, "device": "cpu"}, reports)
    assert len(commits) == 2


def test_a_missing_study_gets_no_trial(storage: TrialStorage, study: int) -> None:
    with pytest.raises(KeyError):
        storage.begin(study + 1, template())
