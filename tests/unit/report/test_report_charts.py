"""Sources of the report's pictures: the data of the page, and its layout."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from datetime import UTC
from importlib.resources import files
from typing import Any

import pytest

from tests.unit.report.report_studies import (
    DEFAULTS,
    START,
    attributes_of,
    many_regions,
    only,
    ran,
    region_facts,
    report_of,
    text_of,
    trial,
    tuned_trials,
)
from trialfleet.optimizer.stored_trials import StoredTrial, TrialState
from trialfleet.workflows.facts.jobs.executions import ExecutionEnd
from trialfleet.workflows.facts.jobs.job_log import Job, PricedExecution
from trialfleet.workflows.rules import states
from trialfleet.workflows.views.report import chart_data as drawing
from trialfleet.workflows.views.report.chart_data import (
    Pictures,
    curve_points,
    overview_data,
    region_data,
)
from trialfleet.workflows.views.report.groups import group_regions
from trialfleet.workflows.views.report.page import render_page
from trialfleet.workflows.views.report.report_types import RegionReport, Report
from trialfleet.workflows.views.report.scales import Scale, choose_scale
from trialfleet.workflows.views.report.terminal_table import summary_table
from trialfleet.workflows.views.report.timeline import build_timeline

pytestmark = pytest.mark.slow


def of_values(values: Sequence[float | None], **facts: Any) -> RegionReport:
    trials = [trial(DEFAULTS, value, at=at) for at, value in enumerate(values)]
    return only(report_of(region_facts("A", trials), **facts))


@pytest.mark.parametrize(
    "values",
    [[0.5], [0.5] * 9, [1e300, -1e300, 0.0], [3e-308, 1.5e308, 5.0], [1e-12, 2e-12], [None, None],
     [1.7e308, -1.7e308]],
)  # fmt: skip
@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_any_values_give_a_page_and_a_table(values: list[float | None], direction: str) -> None:
    trials = [trial(DEFAULTS, value, at=at, baseline=at == 0) for at, value in enumerate(values)]
    report = report_of(region_facts("A", trials), direction=direction)
    assert "region-A" in text_of(report)
    assert summary_table(report).row_count == 1


def test_the_data_of_a_region_are_its_trials_in_columns(tuned: Report) -> None:
    region = tuned.regions[0]
    data = json.loads(json.dumps(region_data(tuned, Pictures(region), 10), allow_nan=False))
    assert data["number"] == [t.trial for t in region.trials]
    assert [value is None for value in data["value"]] == [t.value is None for t in region.trials]
    values = [trial.value or 0.0 for trial in region.trials]
    assert [value or 0.0 for value in data["value"]] == pytest.approx(values, rel=1e-5)
    assert data["state"].count("failed") == 3
    assert (data["best"], data["baseline"]) == (region.best_trial, 0)
    assert data["default"] == pytest.approx(region.objective.default, rel=1e-5)
    by_name = dict(zip((p["name"] for p in data["parameters"]), data["params"], strict=True))
    assert by_name["rate"] == pytest.approx([t.params["rate"] for t in region.trials], rel=1e-4)
    solvers = [["adam", "sgd"].index(t.params["solver"]) for t in region.trials]
    assert by_name["solver"] == solvers
    unused = [t.trial for t in region.trials if t.params["solver"] == "adam"]
    assert [at for at, value in enumerate(by_name["momentum"]) if value is None] == unused
    assert set(data["errors"]) == {"5", "15", "25"}


BULK = [0.5 + at / 100 for at in range(15)]


@pytest.mark.parametrize(
    ("values", "anchor", "chosen", "view"),
    [
        (BULK, 0.64, "linear", None),
        ([], 0.0, "linear", None),
        ([*BULK, -1e6], 0.64, "clipped", (0.5, 0.64)),
        ([*BULK, 1e6], 0.5, "clipped", (0.5, 0.64)),
        ([*BULK, 5.0], 5.0, "linear", None),  # the best is far away itself: it stays in view
        ([1e-3, 1e-2, 0.1, 1.0, 40.0], 1e-3, "log", (1e-3, 0.1)),
        ([0.5] * 9, 0.5, "linear", None),
        ([0.5] * 9 + [1e6], 0.5, "linear", None),
        ([1.7e308, -1.7e308], 1.7e308, "linear", None),
    ],
)
def test_one_wild_value_does_not_flatten_the_others(
    values: list[float], anchor: float, chosen: str, view: tuple[float, float] | None
) -> None:
    scale = choose_scale(values, anchor)
    assert scale.chosen == chosen
    assert scale.view == (None if view is None else pytest.approx(view))
    assert scale.log == (min(values, default=0.0) > 0)


def test_the_scale_keeps_the_best_value_in_view_in_either_direction() -> None:
    down = Pictures(of_values([*BULK, 1e6], direction="minimize")).scale
    up = Pictures(of_values([*BULK, 1e6], direction="maximize")).scale
    assert down == Scale("clipped", log=True, view=(0.5, 0.64))
    assert up is not None
    assert up.view is None


def test_the_overview_has_a_row_per_region_that_has_a_value() -> None:
    def pair(default: float, tuned: float) -> list[StoredTrial]:
        return [
            trial(DEFAULTS, v, at=at, baseline=at == 0, metrics={"test": v})
            for at, v in enumerate([default, tuned])
        ]

    report = report_of(
        region_facts("small", pair(0.5, 0.6)),
        region_facts("none", [trial(DEFAULTS, None, baseline=True)]),
        region_facts("no default", [trial(DEFAULTS, 0.7, metrics={"test": 0.7})]),
    )
    rows = overview_data(report)["rows"]
    assert [(row["region"], row["name"]) for row in rows] == [(0, "small"), (2, "no default")]
    assert [(row["default"], row["tuned"]) for row in rows] == [(0.5, 0.6), (None, 0.7)]
    assert [row["gain"] for row in rows] == [pytest.approx(0.1), None]
    assert [row["gain_text"] for row in rows] == ["+0.1000", ""]


def test_without_any_result_there_is_no_overview() -> None:
    report = report_of(region_facts("A", [trial(DEFAULTS, None)]))
    assert overview_data(report)["rows"] == []
    assert "No region has a completed trial yet" in text_of(report)


@pytest.mark.parametrize(
    ("names", "trials", "kind"),
    [
        (["rate", "layers"], 12, "contour"),
        (["rate", "layers"], 11, "scatter"),
        (["rate", "solver"], 30, "scatter"),
        (["rate", "layers"], 2, None),
        (["rate"], 30, None),
    ],
)
def test_trials_and_parameter_types_decide_how_two_parameters_are_drawn(
    names: list[str], trials: int, kind: str | None
) -> None:
    done = [
        trial({n: t.user_attrs["params"][n] for n in names}, t.value, at=at)
        for at, t in enumerate(t for t in tuned_trials(40) if t.value is not None)
    ][:trials]
    report = report_of(region_facts("A", done))
    assert Pictures(only(report)).pair.kind == kind
    page = text_of(report)
    assert (f'data-picture="{kind}"' in page) == (kind is not None)
    if kind is None:
        assert "Needs two searched parameters that at least 3 completed trials have." in page


def test_a_trial_without_steps_draws_no_curve() -> None:
    plain = report_of(region_facts("A", tuned_trials(5)))
    assert "Learning curves" not in text_of(plain)
    one = [trial(DEFAULTS, 0.5, reports={1: 0.5})]
    assert "Learning curves" not in text_of(report_of(region_facts("A", one)))
    two = report_of(region_facts("A", [trial(DEFAULTS, 0.5, reports={3: 0.4, 9: 0.5})]))
    assert region_data(two, Pictures(only(two)), 10)["curves"] == {0: [[3, 9], [0.4, 0.5]]}
    assert "Learning curves" in text_of(two)


def test_many_curves_keep_fewer_points_each(monkeypatch: pytest.MonkeyPatch) -> None:
    report = report_of(region_facts("A", ran(tuned_trials(20))))
    assert curve_points(report) == 100
    monkeypatch.setattr(drawing, "CURVE_POINTS", 18 * 20)
    assert curve_points(report) == 20


def test_a_machine_has_as_many_rows_as_jobs_ran_on_it_at_once() -> None:
    trials = ran(tuned_trials(24), slots=3)
    for at, each in enumerate(trials):  # dynamic slots: each job has its own name, or another's
        each.user_attrs["job"]["slot"] = f"slot1_{1 + 5 * at % 7}@node-1"
    for each in trials[21:]:
        attributes_of(each)["job"] |= {"machine": "node-10", "slot": "slot1_1@node-10"}
    trials[20].user_attrs["job"]["machine"] = "node-2"
    timeline = build_timeline(report_of(region_facts("A", trials)))
    assert timeline.rows == ("node-1",) * 3 + ("node-2",) + ("node-10",) * 3
    assert [bar.row for bar in timeline.bars if bar.trial in {0, 3, 20, 21}] == [0, 0, 3, 4]
    assert timeline.regions == {0}
    for row in range(7):
        bars = sorted((b.start, b.end) for b in timeline.bars if b.row == row)
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(bars))


def test_the_timeline_has_the_number_of_its_jobs_and_the_runs_pauses() -> None:
    begin = START.replace(tzinfo=UTC).timestamp()
    trials = ran(tuned_trials(12), slots=3)
    ran(trials[6:], slots=3, begin=8 * 3600)
    active = [(begin, begin + 115), (begin + 8 * 3600, begin + 8 * 3600 + 120)]
    report = report_of(region_facts("A", trials), active=active)
    assert drawing.timeline_data(build_timeline(report))["pauses"] == [[115, 8 * 3600]]
    page = text_of(report)
    assert "12 jobs on 1 machine: a machine has as many rows as jobs ran on it at once." in page


def test_short_concurrent_jobs_get_separate_rows() -> None:
    trials = ran(tuned_trials(2), slots=2)
    for at, each in enumerate(trials):
        job = each.user_attrs["job"]
        job |= {"started": job["started"] + 0.2 * at, "last_wall_seconds": 0.6}
        job["ended"] = job["started"] + 0.6
    assert len(build_timeline(report_of(region_facts("A", trials))).rows) == 2


def test_every_execution_is_drawn_and_those_that_were_lost_are_marked() -> None:
    trials = ran([trial(DEFAULTS, 0.5), trial(DEFAULTS, None, state=TrialState.RUNNING, at=1)])
    begin = trials[0].user_attrs["job"]["started"]

    def stay(machine: str, began: float, ended: float, end: ExecutionEnd) -> PricedExecution:
        return PricedExecution(
            machine=machine,
            instance=None,
            began=begin + began,
            ended=begin + ended,
            end=end,
            usd=None,
        )

    unfinished = {trials[1].user_attrs["node"]: states.TrialState.RUNNING}
    cut = [
        stay("b", 0, 5, ExecutionEnd.EVICTED),
        stay("a", 6, 9, ExecutionEnd.FAILED),
        stay("b", 20, 30, ExecutionEnd.DONE),
    ]
    source = region_facts(
        "A",
        trials,
        unfinished=unfinished,
        stays={0: cut, 1: [stay("a", 20, 25, ExecutionEnd.RUNNING)]},
        final_job=Job(started=begin + 40, attempts=2),
        final_stays=[stay("a", 40, 50, ExecutionEnd.FAILED), stay("a", 60, 70, ExecutionEnd.DONE)],
    )
    report = report_of(source)
    timeline = build_timeline(report)
    drawn = [
        (bar.trial, bar.state, bar.start - begin, timeline.rows[bar.row]) for bar in timeline.bars
    ]
    assert sorted(drawn, key=lambda each: each[2:]) == [
        (0, "cut off", 0, "b"),
        (0, "failed attempt", 6, "a"),
        (1, "running", 20, "a"),
        (0, "complete", 20, "b"),
        (None, "failed attempt", 40, "a"),
        (None, "full training", 60, "a"),
    ]
    assert report.finished
    assert [b.end for b in timeline.bars if b.trial == 1] == [report.finished.timestamp()]
    page = text_of(report)
    assert "3 jobs on 2 machines" in page
    assert "3 executions failed or were interrupted; they have a dashed edge." in page


def test_trials_without_job_times_have_no_timeline(tuned: Report) -> None:
    assert build_timeline(tuned).bars == ()
    assert "Timeline" not in text_of(tuned)


def test_an_outlier_takes_no_decimals_off_the_trials_table() -> None:
    trials = [trial(DEFAULTS, v, at=at) for at, v in enumerate([*BULK, -1234567.0])]
    report = report_of(region_facts("A", trials))
    assert region_data(report, Pictures(only(report)), 8)["decimals"] == 4


def test_regions_are_grouped_by_their_outcome() -> None:
    report = many_regions(20, 10)
    groups = {group.title: [at for at, _ in group.regions] for group in group_regions(report)}
    assert groups["Failed or stopped"] == [9, 19]
    assert groups["No result"] == [7]
    assert len(groups["Published"]) == 17
    assert list(groups) == ["Published", "Failed or stopped", "No result"]


@pytest.mark.parametrize(
    ("regions", "trials", "size"),
    [(3, 20, 800_000), pytest.param(50, 50, 3_000_000, marks=pytest.mark.thorough)],
)
def test_the_page_is_small(regions: int, trials: int, size: int) -> None:
    assert len(render_page(many_regions(regions, trials)).encode()) < size


def test_the_libraries_are_those_that_are_pinned_and_each_has_its_licence() -> None:
    vendor = files("trialfleet.templates") / "report" / "vendor"
    pinned = dict(re.findall(r"([\w-]+)@([\d.]+)$", (vendor / "packages.sha256").read_text(), re.M))
    code = {name: (vendor / file).read_text() for name, file in
            [("d3", "d3.min.js"), ("plot", "plot.umd.min.js")]}  # fmt: skip
    for name, text in code.items():
        assert f" v{pinned[name]} Copyright" in text.splitlines()[0]
    licenses = {name for name in pinned if (vendor / f"{name}.LICENSE").is_file()}
    assert licenses == set(pinned)


def test_the_page_holds_the_licence_of_every_library(tuned: Report) -> None:
    page = text_of(tuned)
    for holder in ("Mike Bostock", "Observable, Inc.", "Mikola Lysenko", "Mapbox"):
        assert re.search(rf"Copyright.*{re.escape(holder)}", page), holder
