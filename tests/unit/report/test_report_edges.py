"""Notes of the report: best values at the end of a range, the summary's width, failed regions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.report.report_studies import (
    DEFAULTS,
    region_facts,
    report_of,
    text_of,
    trial,
)
from tests.unit.terminal import printed
from trialfleet.optimizer.stored_trials import StoredTrial
from trialfleet.workflows.rules.states import Stage
from trialfleet.workflows.views.report.page_texts import (
    attention,
    header,
    region_log,
)
from trialfleet.workflows.views.report.report_numbers import RegionFacts
from trialfleet.workflows.views.report.terminal_table import fitted_summary

pytestmark = pytest.mark.slow


def test_the_report_advises_to_widen_ranges_with_best_values_at_their_end() -> None:
    def tuned(rate: float, layers: int) -> list[StoredTrial]:
        others = [trial(DEFAULTS, 0.5, at=at, baseline=at == 0) for at in range(4)]
        return [*others, trial({**DEFAULTS, "rate": rate, "layers": layers}, 0.9, at=4)]

    regions = [
        region_facts("A", tuned(1e-1, 4)),
        region_facts("B", tuned(1e-1, 2)),
        region_facts("C", tuned(1e-1, 4)),
        region_facts("D", tuned(1e-2, 2)),
    ]
    report = report_of(*regions)
    assert report.edges == (
        "Best values at the end of a range: rate (upper end, 3 of 4 regions), layers (upper end, "
        "2 of 4 regions). Widen these ranges."
    )
    assert report.edges in text_of(report)
    assert report.edges in " ".join(printed(fitted_summary(report), 100).split())
    assert report_of(*regions[:1]).edges == (
        "Best values at the end of a range: layers (upper end), rate (upper end). Widen these "
        "ranges."
    )
    assert report_of(regions[3], regions[1]).edges.endswith("1 of 2 regions). Widen this range.")
    assert report_of(regions[3]).edges == ""


def test_few_trials_or_a_best_default_give_no_advice_on_ranges() -> None:
    few = [trial({**DEFAULTS, "rate": 1e-1}, 0.9, at=at) for at in range(4)]
    default = [trial(DEFAULTS, 0.9 - 0.1 * at, at=at, baseline=at == 0) for at in range(5)]
    assert report_of(region_facts("A", few)).edges == ""
    assert report_of(region_facts("A", default, defaults=DEFAULTS)).edges == ""


def test_best_settings_no_better_than_the_default_give_no_advice_on_ranges() -> None:
    def tuned(default: float, best: float) -> list[StoredTrial]:
        first = trial(DEFAULTS, 0.5, at=0, baseline=True, metrics={"test": default})
        others = [trial({**DEFAULTS, "rate": 1e-2}, 0.5, at=at) for at in range(1, 4)]
        last = trial({**DEFAULTS, "rate": 1e-1}, 0.501, at=4, metrics={"test": best})
        return [first, *others, last]

    worse, better = region_facts("A", tuned(0.8, 0.7998)), region_facts("B", tuned(0.7, 0.8))
    assert report_of(worse).regions[0].report.gain == pytest.approx(-0.0002)
    assert report_of(worse).edges == ""
    assert report_of(region_facts("C", tuned(0.8, 0.8))).edges == ""
    assert report_of(better).edges.startswith("Best values at the end of a range: rate (upper end)")
    assert "1 of 2 regions). Widen this range." in report_of(worse, better).edges


@pytest.mark.parametrize(
    ("width", "titles"),
    [
        (60, ["region", "trials", "tuned", "default", "gain", "state"]),
        (72, ["region", "trials", "tuned", "default", "gain", "time", "state"]),
        (100, ["region", "trials", "best", "tuned", "default", "gain", "time", "state"]),
    ],
)
def test_the_summary_drops_columns_before_it_cuts_anything(width: int, titles: list[str]) -> None:
    trials = [
        trial(DEFAULTS, 0.5, at=0, baseline=True, metrics={"test": 136.1}),
        trial({**DEFAULTS, "rate": 1e-2}, 0.6, at=1, metrics={"test": 150.9}),
    ]
    report = report_of(
        region_facts("New Haven", trials, published="/m"),
        region_facts("Zürich", trials, published="/m"),
    )
    lines = printed(fitted_summary(report), width).splitlines()
    assert lines[0].startswith("tuned, default: test (higher is better)")
    assert [cell.strip() for cell in lines[2].strip("┃").split("┃")] == titles
    rows = [line for line in lines if line.startswith("│")]
    assert [row[1:12].strip() for row in rows] == ["New Haven", "Zürich"]
    assert all(row.rstrip("│ ").endswith("published") for row in rows)


@pytest.mark.parametrize("page", ["docs/first-study.md"])
def test_pages_show_the_summary_as_it_is_printed(page: str) -> None:
    trials = [trial(DEFAULTS, 0.5, at=0, baseline=True, metrics={"test": 0.5})]
    lines = printed(fitted_summary(report_of(region_facts("A", trials))), 100).splitlines()
    shown = (Path(__file__).parents[3] / page).read_text(encoding="utf-8").splitlines()
    at = next(i for i, line in enumerate(shown) if line.startswith("tuned, default: "))
    for here, there in zip(shown[at + 1 : at + 3], lines[1:3], strict=True):
        assert re.sub("━+", "━", here).split() == re.sub("━+", "━", there).split()


def test_the_median_gain_is_in_percent_where_defaults_are_away_from_zero() -> None:
    def pair_of(default: float, tuned: float) -> RegionFacts:
        pair = enumerate((default, tuned))
        trials = [
            trial(DEFAULTS, 0.5 + at, at=at, baseline=at == 0, metrics={"test": value})
            for at, value in pair
        ]
        return region_facts("A", trials)

    def median(*regions: RegionFacts) -> tuple[str, str]:
        tiles = {label: rest for label, *rest in header(report_of(*regions))}
        value, under = tiles["Median gain, test"]
        return value, under

    fourfold = [pair_of(100.0, 150.0), pair_of(400.0, 440.0), pair_of(40.0, 50.0)]
    assert median(*fourfold) == ("+25%", "of default · 3 of 3 better")
    assert median(pair_of(-200.0, -195.0)) == ("+2.5%", "of default · 1 of 1 better")
    assert median(pair_of(0.01, 0.5))[0] == "+0.4900"
    assert median(pair_of(0.0, 0.5), pair_of(1.0, 2.0))[1] == "2 of 2 regions better"


def test_a_failed_region_shows_its_complete_reason_its_log_and_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = "no trial can succeed: " + "a long message, " * 30
    folder = tmp_path / "runs" / "my run" / "regions" / "A"
    log = folder / "trials" / "A.l0.t00" / "err"
    failed = region_facts(
        "A", [trial(DEFAULTS, None, error="x")], stage=Stage.FAILED,
        reason=f"{reason}; see {log}",
    )  # fmt: skip
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder.parent.parent)  # where the run's own report is written
    report = report_of(failed, root=tmp_path / "runs" / "my run")
    (trouble,) = attention(report)
    (region,) = trouble.regions
    assert trouble.reason == f"failed: {reason}"
    assert region_log(region) == str(log)
    assert region.why_command == f"trialfleet why A --run '{tmp_path}/runs/my run'"
    page = text_of(report)
    assert f"log <code>{log}</code>" in page
    assert "next <code>trialfleet why A --run" in page


def test_each_warning_of_a_region_needs_attention() -> None:
    warned = region_facts(
        "A", [trial(DEFAULTS, 0.5)], drift="d", holdout="h", changed="c", checks="k"
    )
    assert [one.reason for one in attention(report_of(warned))] == ["d", "h", "c", "k"]
