"""The report's figures of a region: best trial, gain, importance, failures, costs."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from typing import Any

import pytest

from tests.unit.report.report_studies import (
    DEFAULTS,
    only,
    region_facts,
    report_of,
    text_of,
    trial,
    tuned_trials,
)
from trialfleet.optimizer.stored_trials import StoredTrial, TrialState
from trialfleet.workflows.facts.jobs.job_log import Job
from trialfleet.workflows.rules import states as state_words
from trialfleet.workflows.status.unfinished_trials import RunningTrial
from trialfleet.workflows.views.report.chart_data import Pictures, region_data
from trialfleet.workflows.views.report.page_tables import region_columns, region_rows
from trialfleet.workflows.views.report.page_texts import header
from trialfleet.workflows.views.report.report_types import RegionReport, Report
from trialfleet.workflows.views.report.terminal_table import summary_table


@pytest.mark.slow
def test_the_best_trial_is_compared_with_the_default_settings_trial(tuned: Report) -> None:
    region = tuned.regions[0]
    best = max((t for t in region.trials if t.value is not None), key=lambda t: t.value or 0)
    assert region.best_trial == best.trial != 0
    assert region.objective.tuned == best.value
    assert region.objective.default == region.trials[0].value
    assert region.report.tuned == best.metrics["test"]
    assert region.report.default == region.trials[0].metrics["test"]
    assert region.report.gain == pytest.approx(
        best.metrics["test"] - region.trials[0].metrics["test"]
    )
    assert region.report.gain is not None
    assert region.report.gain > 0
    assert region.final_metric == 0.81


def test_trials_are_counted_by_state_and_their_time_is_summed(tuned: Report) -> None:
    region = tuned.regions[0]
    assert (region.done, region.failed, region.running) == (27, 3, 0)
    assert (tuned.complete, tuned.failed, tuned.budget_trials) == (38, 4, 42)
    assert region.compute_seconds == 75.0
    assert region.wall_seconds == 39.0
    assert tuned.compute_seconds == 105.0
    assert tuned.wall_seconds == 3660.0


def test_importance_names_the_parameter_that_decides(tuned: Report) -> None:
    region = tuned.regions[0]
    shares = [item.share for item in region.importance]
    assert region.importance[0].parameter == "rate"
    assert sum(shares) == pytest.approx(1.0)
    assert shares == sorted(shares, reverse=True)
    assert region.importance_note is None
    had = {item.parameter: item.trials for item in region.importance}
    with_momentum = sum(t.state == "complete" and "momentum" in t.params for t in region.trials)
    assert had == {"rate": 27, "layers": 27, "solver": 27, "momentum": with_momentum}


def some_sgd(sgd: int, of: int) -> list[StoredTrial]:
    """Trials in which the rate decides; `sgd` of them, the best, have a momentum of no effect."""
    rng = random.Random(5)  # noqa: S311
    trials = []
    for at in range(of):
        params: dict[str, Any] = {"rate": 10 ** rng.uniform(-4, -1), "solver": "adam"}
        if at < sgd:
            params |= {"solver": "sgd", "momentum": rng.uniform(0, 0.9)}
        value = -abs(math.log10(params["rate"]) + 2.5) + (10 if at < sgd // 2 else 0)
        trials.append(trial(params, value, at=at))
    return trials


@pytest.mark.slow
def test_a_parameter_that_few_trials_had_has_no_importance() -> None:
    region = only(report_of(region_facts("A", some_sgd(sgd=3, of=30))))
    assert {item.parameter for item in region.importance} == {"rate", "solver"}
    assert region.importance_note == (
        "too few trials for momentum, which 3 of 30 trials had, among them 2 of the best 10"
    )
    assert "momentum, which 3 of 30" in text_of(report_of(region_facts("B", some_sgd(3, 30))))


@pytest.mark.slow
def test_the_importance_of_a_conditional_parameter_comes_from_trials_that_had_it() -> None:
    region = only(report_of(region_facts("A", some_sgd(sgd=14, of=30))))
    assert {item.parameter: item.trials for item in region.importance} == {
        "rate": 30,
        "solver": 30,
        "momentum": 14,
    }
    assert region.importance_note is None


@pytest.mark.slow
def test_importance_follows_the_direction_of_the_study() -> None:
    # rate decides among small values, layers among great ones: a wrong sign names the wrong one
    rng = random.Random(3)  # noqa: S311
    trials = []
    for at in range(40):
        params = {"rate": 10 ** rng.uniform(-4, -1), "layers": rng.randint(1, 4)}
        bad = 10.0 * params["layers"] if params["rate"] > 1e-3 else 0.0
        trials.append(trial(params, bad + rng.random(), at=at))
    source = region_facts("A", trials)
    down = only(report_of(source, direction="minimize")).importance
    up = only(report_of(source, direction="maximize")).importance
    assert down[0].parameter == "rate"
    assert up[0].parameter == "layers"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trials", "reason"),
    [
        ([], "too few completed trials: 0 of"),
        (tuned_trials(9), "too few completed trials: 8 of"),
        ([trial(DEFAULTS, 0.5, at=at) for at in range(12)], "every trial reached the same value"),
        ([trial({}, at / 10, at=at) for at in range(12)], "the study has no parameters"),
    ],
)
def test_the_report_gives_the_reason_for_missing_importance(
    trials: list[StoredTrial], reason: str
) -> None:
    region = only(report_of(region_facts("A", trials)))
    assert region.importance == ()
    assert region.importance_note is not None
    assert region.importance_note.startswith(reason)


@pytest.mark.slow
def test_minimising_takes_the_lowest_and_counts_a_decrease_as_gain() -> None:
    trials = tuned_trials(20, "minimize", "loss")
    source = region_facts("A", trials)
    report = report_of(source, metric="loss", direction="minimize", report_metric="loss")
    region = only(report)
    values = [t.value for t in trials if t.state is TrialState.COMPLETE]
    assert region.objective.tuned == min(v for v in values if v is not None)
    assert region.objective.gain == pytest.approx((trials[0].value or 0) - region.objective.tuned)
    assert region.report == region.objective


def test_the_report_metric_may_have_the_opposite_direction_of_the_objective() -> None:
    trials = [
        trial(DEFAULTS, 0.5, at=0, baseline=True, metrics={"loss": 0.5, "accuracy": 0.7}),
        trial(DEFAULTS, 0.4, at=1, metrics={"loss": 0.4, "accuracy": 0.9}),
    ]
    source = region_facts("A", trials)
    facts: dict[str, Any] = {"metric": "loss", "direction": "minimize", "report_metric": "accuracy"}
    assert only(report_of(source, **facts)).report.gain == pytest.approx(-0.2)
    right = report_of(source, **facts, report_direction="maximize")
    assert only(right).report.gain == pytest.approx(0.2)
    assert only(right).objective.gain == pytest.approx(0.1)


def test_the_report_says_that_tuned_settings_are_worse_than_default() -> None:
    trials = [
        trial(DEFAULTS, 0.5, at=0, baseline=True, metrics={"test": 0.71}),
        trial(DEFAULTS, 0.6, at=1, metrics={"test": 0.7}),
    ]
    better = report_of(region_facts("A", trials[:1]))
    assert (only(better).worse, better.advice) == (None, "")
    value = json.loads(report_of(region_facts("A", trials)).to_json())
    assert value["regions"][0]["worse"] == (
        "By test, tuned settings reach 0.7000 and default ones 0.7100 (−0.0100), "  # noqa: RUF001
        "although tuned ones gained +0.1 by auc, the objective."
    )
    assert value["advice"].startswith("auc, by which the settings were chosen, and test disagree.")
    assert "Don't choose settings by the test rows" in value["advice"]


def test_a_negligible_difference_does_not_count_as_worse() -> None:
    trials = [
        trial(DEFAULTS, 0.5, at=0, baseline=True, metrics={"test": 165.0}),
        trial(DEFAULTS, 0.6, at=1, metrics={"test": 164.8}),
    ]
    report = report_of(region_facts("A", trials))
    assert only(report).report.gain == pytest.approx(-0.2)
    assert (only(report).worse, report.advice) == (None, "")


def test_the_notice_names_a_report_metric_that_no_trial_reported() -> None:
    trials = [
        trial(DEFAULTS, 0.5, at=0, baseline=True, metrics={"tset": 0.7}),
        trial(DEFAULTS, 0.6, at=1, metrics={"tset": 0.8}),
    ]
    report = report_of(region_facts("A", trials), notice="Money is short.")
    expected = (
        "no trial reported the report_metric 'test' (did you mean 'tset'?); reported metrics: tset."
    )
    assert report.notice == f"Money is short. No comparison: {expected}"
    assert expected in " ".join(str(summary_table(report).caption).split())
    assert "told" not in report_of(region_facts("B", trials), report_metric="tset").notice
    assert report_of(region_facts("C", [trial(DEFAULTS, None, at=0)])).notice == ""


def test_of_equal_trials_the_first_is_best() -> None:
    source = region_facts("A", [trial(DEFAULTS, 0.5, at=at) for at in range(3)])
    assert only(report_of(source)).best_trial == 0


def test_settings_show_default_best_and_their_place_in_the_range() -> None:
    best = {"rate": 0.0999, "layers": 2, "solver": "sgd", "momentum": 0.3}
    source = region_facts("A", [trial(DEFAULTS, 0.5), trial(best, 0.6, at=1)])
    settings = {item.name: item for item in only(report_of(source)).settings}
    assert list(settings) == ["rate", "layers", "solver", "momentum"]
    assert [item.changed for item in settings.values()] == [True, False, True, True]
    assert [item.edge for item in settings.values()] == ["high", None, None, None]
    assert settings["rate"].range is not None
    assert settings["rate"].range.place(1e-3) == pytest.approx(1 / 3)  # of three decades
    assert not settings["momentum"].default_active
    assert settings["solver"].range is not None
    assert settings["solver"].range.choices == ("adam", "sgd")


def test_a_true_and_a_one_are_different_settings() -> None:
    trials = [trial(DEFAULTS, 0.5, params={"flag": 1})]
    source = region_facts("A", trials, defaults={"flag": True})
    (flag, *_) = only(report_of(source)).settings
    assert flag.changed
    same = region_facts("A", [trial(DEFAULTS, 0.5, params={"x": 1.0})], defaults={"x": 1})
    assert not only(report_of(same)).settings[0].changed


def test_failures_are_grouped_by_error_most_frequent_first() -> None:
    errors = ["rare", "often", "often", None, "often"]
    source = region_facts(
        "A", [trial(DEFAULTS, None, at=at, error=e) for at, e in enumerate(errors)]
    )
    failures = only(report_of(source)).failures
    assert [(item.error, item.trials) for item in failures] == [
        ("often", (1, 2, 4)),
        ("rare", (0,)),
        ("no error was recorded", (3,)),
    ]


RUNNING = trial(DEFAULTS, None, state=TrialState.RUNNING)


@pytest.mark.parametrize("stage", state_words.Stage)
def test_a_region_has_the_status_that_all_views_have(stage: state_words.Stage) -> None:
    report = report_of(region_facts("A", [trial(DEFAULTS, 0.5)], stage=stage))
    assert only(report).stage == stage
    assert f">{stage}<" in text_of(report)


@pytest.mark.parametrize("state", ["running", "queued", "interrupted"])
def test_a_trial_that_is_not_finished_has_the_state_that_all_views_have(state: str) -> None:
    word = state_words.TrialState(state)
    source = region_facts("A", [trial(DEFAULTS, 0.5), RUNNING], unfinished={"R.l0.t00": word})
    region = only(report_of(source))
    assert [item.state for item in region.trials] == ["complete", state]
    assert region.running == (state == "running")
    assert (region.done, region.finished) == (1, 1)


def test_json_is_plain_complete_and_has_the_documented_keys(tuned: Report) -> None:
    text = tuned.to_json()
    value = json.loads(text)
    assert list(value)[:4] == ["schema", "study", "run", "metric"]
    assert value["schema"] == 3
    assert value["finished"] == "2026-11-20T03:01:00+00:00"
    region = value["regions"][0]
    assert set(region) == {field.name for field in dataclasses.fields(RegionReport)}
    assert region["published"] == "/models/JFK/r"
    assert region["report"]["gain"] == tuned.regions[0].report.gain
    assert len(region["trials"]) == 30
    assert region["trials"][0]["params"] == DEFAULTS
    assert region["failures"][0]["trials"] == [5, 15, 25]
    assert "sqlite" not in text


def test_control_characters_in_errors_are_removed_or_replaced() -> None:
    error = "\x1b[31mred\x1b[0m\r\nbell\x07 half \ud800 tab\t"
    source = region_facts("A", [trial(DEFAULTS, None, error=error)])
    report = report_of(source)
    assert only(report).failures[0].error == "red\nbell\ufffd half \ufffd tab"
    text_of(report).encode()
    report.to_json().encode()


def test_garbage_in_a_trials_notes_is_left_out() -> None:
    notes: dict[str, Any] = {
        "metrics": {"test": float("nan"), "x": "y", "huge": 10**400, "b": True, "ok": 1},
        "seconds": -1,
        "attempts": "many",
        "device": None,
        "params": None,
    }
    source = region_facts("A", [trial(DEFAULTS, 0.5, **notes)], final={"test": float("inf")})
    region = only(report_of(source))
    assert region.trials[0].metrics == {"ok": 1}
    assert (region.trials[0].seconds, region.trials[0].attempts) == (None, 0)
    assert region.final == {}
    report_of(source).to_json()


JOB: dict[str, Any] = {
    "started": 1_800_000_000.5,
    "ended": 1_800_000_020.5,
    "wall_seconds": 15.0,
    "last_wall_seconds": 8.0,
    "cpu_seconds": 11.0,
    "memory_mb": 812.5,
    "machine": "node-1",
    "slot": "slot1_1@node-1",
    "usd": 0.25,
    "lost_usd": 0.05,
}


def test_the_cost_of_jobs_has_a_column_if_prices_are_known() -> None:
    paid = region_facts("A", [trial(DEFAULTS, 0.5, job=JOB)], usd=1.5)
    free = region_facts("B", [trial(DEFAULTS, 0.5)])
    report = report_of(paid, free)
    assert report.usd == 1.5
    assert ("Cost", "1.50 USD", "of all jobs") in header(report)
    place = [column.title for column in region_columns(report)].index("USD")
    assert [cells[place].text for _, cells in region_rows(report)] == ["1.50", ""]
    assert region_data(report, Pictures(report.regions[0]), 8)["jobs"]["usd"] == [0.25]
    unpriced = report_of(free)
    assert unpriced.usd is None
    assert "USD" not in [column.title for column in region_columns(unpriced)]
    assert "Cost" not in [title for title, *_ in header(unpriced)]


def test_a_trial_has_htcondors_figures_of_its_job() -> None:
    reported = trial(DEFAULTS, 0.5, job=JOB, attempts=2, seconds=3.0)
    before = trial(DEFAULTS, 0.4, at=1, seconds=3.0)  # recorded before jobs were
    region = only(report_of(region_facts("A", [reported, before])))
    first, second = region.trials
    assert {name: getattr(first, name) for name in JOB} == JOB
    assert first.attempts == 2
    assert {getattr(second, name) for name in JOB} == {None}
    assert region.compute_seconds == 18.0  # the trainer's own figure, in the absence of others


def test_the_compute_time_of_a_region_includes_its_full_training() -> None:
    source = region_facts("A", [trial(DEFAULTS, 0.5, job=JOB)], final_job=Job(**JOB))
    region = only(report_of(source))
    assert region.final_job is not None
    assert region.final_job.machine == "node-1"
    assert region.compute_seconds == 30.0


def test_a_trials_reports_are_its_learning_curve() -> None:
    reported = trial(DEFAULTS, 0.5, reports={3: 0.5, 1: 0.25, 2: float("nan")})
    region = only(report_of(region_facts("A", [reported])))
    assert region.trials[0].curve == ((1, 0.25), (3, 0.5))


def test_json_has_no_number_that_is_not_finite() -> None:
    running = RunningTrial(node="A.l1.t02", slot=None, started=None, step=1, value=math.nan)
    source = region_facts("A", [trial(DEFAULTS, 0.5)], best=math.inf, running_trials=(running,))
    region = json.loads(report_of(source).to_json())["regions"][0]
    assert (region["best"], region["running_trials"]) == (0.5, [])
