"""Best settings at the ends of their ranges are told in a line, where many regions have them."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import optuna
import pytest
from rich.console import Console

from tests.unit.report.report_studies import DEFAULTS, Fleet, trial
from trialfleet.workflows.report import RegionSource, Report, fitted_summary, render_page
from trialfleet.workflows.report.timeline import timeline_of
from trialfleet.workflows.report.views import attention, header, log_of, timeline_note
from trialfleet.workflows.status.states import Stage

pytestmark = pytest.mark.slow


def printed(report: Report, width: int) -> str:
    console = Console(file=(file := io.StringIO()), width=width)
    console.print(fitted_summary(report))
    return file.getvalue()


def test_the_end_of_a_range_in_half_of_the_regions_is_told_with_what_to_do(fleet: Fleet) -> None:
    def tuned(rate: float, layers: int) -> list[optuna.trial.FrozenTrial]:
        others = [trial(DEFAULTS, 0.5, at=at, baseline=at == 0) for at in range(4)]
        return [*others, trial({**DEFAULTS, "rate": rate, "layers": layers}, 0.9, at=4)]

    regions = [
        fleet.region("A", tuned(1e-1, 4)),
        fleet.region("B", tuned(1e-1, 2)),
        fleet.region("C", tuned(1e-1, 4)),
        fleet.region("D", tuned(1e-2, 2)),
    ]
    report = fleet.report(*regions)
    assert report.edges == (
        "The best rate is at the upper end of its range in 3 of 4 regions and layers at the upper "
        "one in 2 of 4 regions: widen these ranges."
    )
    assert report.edges in render_page(report)
    assert report.edges in " ".join(printed(report, 100).split())
    assert fleet.report(*regions[:1]).edges == (
        "The best layers is at the upper end of its range and rate at the upper one: widen these "
        "ranges."
    )
    assert fleet.report(regions[3], regions[1]).edges.endswith(
        "in 1 of 2 regions: widen this range."
    )
    assert fleet.report(regions[3]).edges == ""


def test_few_trials_or_the_default_itself_say_nothing_of_a_range(fleet: Fleet) -> None:
    few = [trial({**DEFAULTS, "rate": 1e-1}, 0.9, at=at) for at in range(4)]
    default = [trial(DEFAULTS, 0.9 - 0.1 * at, at=at, baseline=at == 0) for at in range(5)]
    assert fleet.report(fleet.region("A", few)).edges == ""
    assert fleet.report(fleet.region("A", default, defaults=DEFAULTS)).edges == ""


def test_best_settings_that_are_no_better_than_the_default_say_nothing_of_a_range(
    fleet: Fleet,
) -> None:
    def tuned(default: float, best: float) -> list[optuna.trial.FrozenTrial]:
        first = trial(DEFAULTS, 0.5, at=0, baseline=True, metrics={"test": default})
        others = [trial({**DEFAULTS, "rate": 1e-2}, 0.5, at=at) for at in range(1, 4)]
        last = trial({**DEFAULTS, "rate": 1e-1}, 0.501, at=4, metrics={"test": best})
        return [first, *others, last]

    worse, better = fleet.region("A", tuned(0.8, 0.7998)), fleet.region("B", tuned(0.7, 0.8))
    assert fleet.report(worse).regions[0].report.gain == pytest.approx(-0.0002)
    assert fleet.report(worse).edges == ""
    assert fleet.report(fleet.region("C", tuned(0.8, 0.8))).edges == ""
    assert fleet.report(better).edges.startswith("The best rate is at the upper end of its range")
    assert "in 1 of 2 regions: widen this range" in fleet.report(worse, better).edges


@pytest.mark.parametrize(
    ("width", "titles"),
    [
        (60, ["region", "trials", "tuned", "default", "gain", "state"]),
        (72, ["region", "trials", "tuned", "default", "gain", "time", "state"]),
        (100, ["region", "trials", "best", "tuned", "default", "gain", "time", "state"]),
    ],
)
def test_the_summary_drops_columns_before_it_cuts_anything(
    fleet: Fleet, width: int, titles: list[str]
) -> None:
    trials = [
        trial(DEFAULTS, 0.5, at=0, baseline=True, metrics={"test": 136.1}),
        trial({**DEFAULTS, "rate": 1e-2}, 0.6, at=1, metrics={"test": 150.9}),
    ]
    report = fleet.report(
        fleet.region("New Haven", trials, published=Path("/m")),
        fleet.region("Zürich", trials, published=Path("/m")),
    )
    lines = printed(report, width).splitlines()
    assert lines[0].startswith("tuned, default: test (higher is better)")
    assert [cell.strip() for cell in lines[2].strip("┃").split("┃")] == titles
    rows = [line for line in lines if line.startswith("│")]
    assert [row[1:12].strip() for row in rows] == ["New Haven", "Zürich"]
    assert all(row.rstrip("│ ").endswith("published") for row in rows)


@pytest.mark.parametrize("page", ["README.md", "docs/first-study.md"])
def test_pages_show_the_summary_as_it_is_printed(fleet: Fleet, page: str) -> None:
    trials = [trial(DEFAULTS, 0.5, at=0, baseline=True, metrics={"test": 0.5})]
    lines = printed(fleet.report(fleet.region("A", trials)), 100).splitlines()
    shown = (Path(__file__).parents[3] / page).read_text(encoding="utf-8").splitlines()
    at = next(i for i, line in enumerate(shown) if line.startswith("tuned, default: "))
    for here, there in zip(shown[at + 1 : at + 3], lines[1:3], strict=True):
        assert re.sub("━+", "━", here).split() == re.sub("━+", "━", there).split()


def test_the_median_gain_is_in_percent_where_defaults_are_away_from_zero(fleet: Fleet) -> None:
    def region(default: float, tuned: float) -> RegionSource:
        pair = enumerate((default, tuned))
        trials = [
            trial(DEFAULTS, 0.5 + at, at=at, baseline=at == 0, metrics={"test": value})
            for at, value in pair
        ]
        return fleet.region("A", trials)

    def median(*regions: RegionSource) -> tuple[str, str]:
        tiles = {label: rest for label, *rest in header(fleet.report(*regions))}
        value, under = tiles["Median gain, test"]
        return value, under

    fourfold = [region(100.0, 150.0), region(400.0, 440.0), region(40.0, 50.0)]
    assert median(*fourfold) == ("+25%", "of default · 3 of 3 better")
    assert median(region(-200.0, -195.0)) == ("+2.5%", "of default · 1 of 1 better")
    assert median(region(0.01, 0.5))[0] == "+0.4900"
    assert median(region(0.0, 0.5), region(1.0, 2.0))[1] == "2 of 2 regions better"


def test_a_failed_region_has_its_whole_reason_its_log_and_the_next_step(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = "no trial can succeed: " + "a long message, " * 30
    folder = tmp_path / "runs" / "my run" / "regions" / "A"
    log = folder / "trials" / "A.l0.t00" / "err"
    failed = fleet.region(
        "A", [trial(DEFAULTS, None, error="x")], stage=Stage.FAILED, folder=folder,
        stopped=f"{reason}; see {log}",
    )  # fmt: skip
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder.parent.parent)  # where the run's own report is written
    report = fleet.report(failed)
    ((words, (region,)),) = attention(report)
    assert words == f"failed: {reason}"
    assert log_of(region) == str(log)
    assert region.why_command == f"trialfleet why A --run '{tmp_path}/runs/my run'"
    page = render_page(report)
    assert f"log <code>{log}</code>" in page
    assert "next <code>trialfleet why A --run" in page


def test_the_timeline_of_a_blink_says_no_share_and_how_many_attempts_there_were(
    fleet: Fleet,
) -> None:
    def notes(seconds: float) -> dict[str, Any]:
        return {
            "job": {"started": 1e9, "ended": 1e9 + seconds, "machine": "m"},
            "attempts": 3,
        }

    short = fleet.report(fleet.region("A", [trial(DEFAULTS, None, error="x", **notes(0.2))]))
    note = timeline_note(timeline_of(short))
    assert note.endswith("Of some jobs each job's last is drawn, without 2 attempts before it.")
    long = fleet.report(fleet.region("A", [trial(DEFAULTS, 0.5, **notes(60.0))]))
    assert "Busy 100%" in timeline_note(timeline_of(long))
