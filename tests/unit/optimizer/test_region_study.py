"""Tests of a region's study: asks and results exactly once, budgets, reproducibility."""

from __future__ import annotations

import itertools
import math
import os
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from tests.unit.optimizer.conftest import Opener
from tests.unit.optimizer.region_studies import (
    ENTRIES,
    NAME,
    SPACE,
    asked,
    complete,
    in_memory,
    make,
    settings,
    stored,
)
from trialfleet.errors import TrialfleetError
from trialfleet.optimizer import region_study
from trialfleet.optimizer.learning_curve_points import MOST_STORED
from trialfleet.optimizer.region_study import RegionStudy
from trialfleet.optimizer.region_types import (
    Abandoned,
    Assignment,
    Failed,
    Refused,
    RegionSettings,
    Stopped,
)
from trialfleet.optimizer.storage_url import sqlite_url
from trialfleet.optimizer.stored_trials import FAILURES

os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch is imported later: as in the service


def test_the_first_trial_has_the_defaults() -> None:
    study = make()
    first, second = asked(study, "a"), asked(study, "b")
    assert first.params == SPACE.trial_params(SPACE.defaults())
    assert first.number == 0
    assert second.number == 1
    assert first.seed != second.seed


@pytest.mark.slow
def test_a_repeated_ask_gives_the_same_trial_until_the_tell_even_from_a_new_object(
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
    assert (len(steps), steps[0], steps[-1]) == (MOST_STORED, 1, 1000)
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
    with pytest.raises(TrialfleetError, match=r"has no trial for the node 'ghost'"):
        complete(study, "ghost", 1.0)
    with pytest.raises(TrialfleetError, match=r"has no trial for the node 'ghost'"):
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


def test_new_nodes_get_no_trial_after_the_budget_and_old_nodes_keep_theirs() -> None:
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
        "2 trials failed for good; budget.failures allows 1; the last one was c: out of memory"
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
