"""The report's pictures, judged by plotly and by what they must show."""

from __future__ import annotations

import json
from collections.abc import Iterator

import optuna
import plotly.graph_objects as go
import pytest

from tests.unit.report_studies import DEFAULTS, Fleet, only, open_fleet, trial, two_regions
from trialfleet.workflows.report import Report, render_page, summary_table
from trialfleet.workflows.report.figures import overview, region_figures

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with open_fleet(tmp_path_factory.mktemp("fleet")) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def tuned(fleet: Fleet) -> Report:
    return two_regions(fleet)


@pytest.mark.parametrize(
    "values",
    [[0.5], [0.5] * 9, [1e300, -1e300, 0.0], [3e-308, 1.5e308, 5.0], [1e-12, 2e-12], [None, None]],
)
@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_a_page_and_a_table_come_of_any_values(
    fleet: Fleet, values: list[float | None], direction: str
) -> None:
    trials = [trial(DEFAULTS, value, at=at, baseline=at == 0) for at, value in enumerate(values)]
    report = fleet.report(fleet.region("A", trials), direction=direction)
    assert "region-A" in render_page(report)
    check_figures(report)
    assert summary_table(report).row_count == 1


def check_figures(report: Report) -> int:
    """Let plotly itself judge every picture: it refuses properties and values it doesn't know."""
    figures = [overview(report), *(f for r in report.regions for f in region_figures(r).values())]
    for figure in filter(None, figures):
        text = json.dumps(figure, allow_nan=False)
        for role in ("tuned", "default", "failed", "muted", "surface"):
            text = text.replace(f'"@{role}"', '"#123456"')
        go.Figure(json.loads(text))
    return len(figures)


def test_pictures_are_valid_plotly_figures(tuned: Report) -> None:
    assert check_figures(tuned) == 1 + 2 * (2 + 4)


def test_the_history_holds_every_completed_trial_and_the_best_so_far(tuned: Report) -> None:
    region = tuned.regions[0]
    points, best, default, failed = region_figures(region)["history"]["data"]
    assert points["x"] == [t.number for t in region.trials if t.state == "complete"]
    assert points["y"] == pytest.approx([t.objective for t in region.trials if t.objective])
    assert best["y"] == sorted(best["y"])
    assert best["y"][-1] == pytest.approx(region.objective.tuned)
    assert default["y"] == pytest.approx([region.objective.default] * 2)
    assert failed["x"] == [5, 15, 25]


def test_the_best_so_far_falls_when_minimising(fleet: Fleet) -> None:
    source = fleet.region("A", [trial(DEFAULTS, v, at=at) for at, v in enumerate([3.0, 1.0, 2.0])])
    region = only(fleet.report(source, direction="minimize"))
    assert region_figures(region)["history"]["data"][1]["y"] == [3.0, 1.0, 1.0]


def test_one_wild_value_does_not_flatten_the_history(fleet: Fleet) -> None:
    values = [0.5 + at / 100 for at in range(15)]
    trials = [trial(DEFAULTS, v, at=at) for at, v in enumerate([*values, -1e6])]
    layout = region_figures(only(fleet.report(fleet.region("A", trials))))["history"]["layout"]
    low, high = layout["yaxis"]["range"]
    assert 0.4 < low < 0.5
    assert 0.64 < high < 0.7
    lucky = [trial(DEFAULTS, v, at=at) for at, v in enumerate([*values, 5.0])]
    layout = region_figures(only(fleet.report(fleet.region("B", lucky))))["history"]["layout"]
    assert "range" not in layout["yaxis"]  # the best is always in view


def test_a_positive_value_over_many_orders_is_drawn_on_a_logarithmic_axis(fleet: Fleet) -> None:
    trials = [trial(DEFAULTS, v, at=at) for at, v in enumerate([1e-3, 0.5, 40.0])]
    figure = region_figures(only(fleet.report(fleet.region("A", trials))))["history"]
    assert figure["layout"]["yaxis"]["type"] == "log"
    assert "0.001" in figure["layout"]["yaxis"]["ticktext"]


def test_the_overview_has_a_row_per_region_greatest_gain_first(fleet: Fleet) -> None:
    def pair(default: float, tuned: float) -> list[optuna.trial.FrozenTrial]:
        return [
            trial(DEFAULTS, v, at=at, baseline=at == 0, metrics={"test": v})
            for at, v in enumerate([default, tuned])
        ]

    report = fleet.report(
        fleet.region("small", pair(0.5, 0.6)),
        fleet.region("none", [trial(DEFAULTS, None, baseline=True)]),
        fleet.region("great", pair(0.5, 0.9)),
        fleet.region("no default", [trial(DEFAULTS, 0.7, metrics={"test": 0.7})]),
    )
    figure = overview(report)
    assert figure is not None
    assert figure["layout"]["yaxis"]["ticktext"] == ["great", "small", "no default"]
    default, tuned = figure["data"][2:]
    assert default["x"] == [0.5, 0.5, None]
    assert tuned["x"] == [0.9, 0.6, 0.7]


def test_without_any_result_there_is_no_overview(fleet: Fleet) -> None:
    report = fleet.report(fleet.region("A", [trial(DEFAULTS, None)]))
    assert overview(report) is None
    assert "No region has a completed trial yet" in render_page(report)
