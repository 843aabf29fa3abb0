# ruff: noqa: RUF001 - minus, times and dash are what is tested
"""Numbers, settings and durations in the report, and its table for a terminal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.report.report_studies import (
    DEFAULTS,
    only,
    region_facts,
    report_of,
    text_of,
    trial,
)
from tests.unit.terminal import printed
from trialfleet.optimizer.stored_trials import TrialState
from trialfleet.workflows.facts.runs.failed_attempts import Cause
from trialfleet.workflows.formatting import (
    column_decimals,
    duration,
    excerpt,
    fixed_point,
    number,
    rough_duration,
    setting,
    shorten,
    signed_number,
    uniform_format,
)
from trialfleet.workflows.rules.states import Stage
from trialfleet.workflows.views.report.page_texts import early_stopping_note
from trialfleet.workflows.views.report.report_types import Report
from trialfleet.workflows.views.report.terminal_table import summary_table


def printed_summary(report: Report) -> str:
    return printed(summary_table(report), 130)


@pytest.mark.slow
def test_the_summary_has_a_row_per_region_with_its_numbers(tuned: Report) -> None:
    lines = printed_summary(tuned).splitlines()
    row = next(line for line in lines if "JFK" in line)
    region = tuned.regions[0]
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    assert cells[:3] == ["JFK", "30/30", "3"]
    assert cells[3] == f"{region.objective.tuned:.4f}"
    assert cells[4:6] == [f"{region.report.tuned:.4f}", f"{region.report.default:.4f}"]
    assert cells[6] == f"+{region.report.gain:.4f}"
    assert cells[7:] == ["39 s", "published"]


def stopped_at(last: int, *, seconds: float) -> Report:
    """Return two trials; one was stopped at step 5 of 20 and reported `last` before it left."""
    order = {"step": 5, "max_steps": 20, "predicted": 0.4}
    notes = {"stopped": order, "seconds": seconds}
    reports = dict.fromkeys(range(1, last + 1), 0.4)
    stopped = trial(DEFAULTS, 0.4, state=TrialState.PRUNED, at=1, reports=reports, **notes)
    return report_of(region_facts("R", [trial(DEFAULTS, 0.5, seconds=80.0), stopped]))


@pytest.mark.parametrize(
    ("last", "seconds", "note"),
    [
        (
            10,
            40.0,
            ", which saved about 40 s of compute, 25 % of the time without early stopping.",
        ),
        (
            0,
            10.0,
            ", which saved about 30 s of compute, 25 % of the time without early stopping.",
        ),
        (19, 10.0, "."),  # half a second
        (20, 40.0, "."),
    ],
)
def test_the_savings_of_early_stopping_are_counted_from_the_last_report(
    last: int, seconds: float, note: str
) -> None:
    said = early_stopping_note(stopped_at(last, seconds=seconds))
    assert said == f"1 of 2 trials were stopped early{note}"


def test_a_region_named_like_markup_is_printed_as_it_is(tuned: Report) -> None:
    assert "[red]LGA" in printed_summary(tuned)


def test_the_summary_says_where_tuned_is_worse_than_default_and_what_to_do() -> None:
    trials = [
        trial(DEFAULTS, 0.5, at=0, baseline=True, metrics={"test": 0.71}),
        trial(DEFAULTS, 0.6, at=1, metrics={"test": 0.7}),
    ]
    healthy = region_facts("B", [*trials[:1], trial(DEFAULTS, 0.6, at=1, metrics={"test": 0.8})])
    report = report_of(region_facts("[b]A", trials, published="/m"), healthy)
    text = " ".join(printed_summary(report).split())
    assert "published, worse than default" in text
    assert "[b]A: tuned is worse than default. By test, tuned settings reach 0.7000" in text
    assert "auc, by which the settings were chosen, and test disagree." in text
    assert "B: tuned" not in text.replace("[b]A: tuned", "")
    assert "worse" not in printed_summary(report_of(healthy))
    many = [region_facts(name, trials, published="/m") for name in "CDE"]
    text = " ".join(printed_summary(report_of(*many)).split())
    assert "Tuned is worse than default in 3 regions: C, D, E; see the report." in text
    assert "tuned settings reach" not in text
    assert "auc, by which the settings were chosen, and test disagree." in text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"), (float("nan"), "–"), (0.0, "0"), (0.00131234, "0.001312"), (0.5, "0.5"),
        (1234567, "1,234,567"), (1234.5678, "1,235"), (-0.25, "−0.25"), (2.5e-7, "2.5 × 10⁻⁷"),
        (1e300, "1 × 10³⁰⁰"), (10**400, "–"), (9.99996, "10"),
    ],
)  # fmt: skip
def test_numbers_read_well(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [("adam", "adam"), ("", '""'), (" ", '" "'), (True, "true"), (None, "null"), (64, "64"),
     (1e-5, "1 × 10⁻⁵"), ([1, "é"], '[1, "é"]'), (10**400, str(10**400))],
)  # fmt: skip
def test_settings_read_as_they_are_written_in_a_study(value: Any, text: str) -> None:
    assert setting(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "–"), (0.44, "0.4 s"), (9.96, "10 s"), (41.2, "41 s"), (59.7, "1 min 00 s"),
     (185, "3 min 05 s"), (3599.6, "1 h 00 min"), (7500, "2 h 05 min"), (97200, "1 d 03 h"),
     (-3600, "0.0 s")],
)  # fmt: skip
def test_durations_read_well(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, ""), (-4000, "1 min"), (42, "1 min"), (200, "3 min"), (7000, "117 min"),
     (9100, "3 h"), (100_000, "28 h"), (172_799, "2 days"), (400_000, "5 days")],
)  # fmt: skip
def test_estimates_and_ages_have_one_unit(seconds: float | None, text: str) -> None:
    assert rough_duration(seconds) == text  # less than nothing, where the clock was set back


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([0.71234, 0.7, None], ["0.7123", "0.7000", "–"]),
        ([0.999912, 0.999934], ["0.999912", "0.999934"]),
        ([1234.5, 12.0], ["1,234", "12"]),
        ([1e-9, 3.0], ["1 × 10⁻⁹", "3"]),
        ([0.0, 0.0], ["0", "0"]),
        ([-0.00001, 0.5], ["−1 × 10⁻⁵", "0.5"]),
        ([-0.00001, 0.0], ["−1 × 10⁻⁵", "0"]),
        ([5e-5, -5e-8], ["5 × 10⁻⁵", "−5 × 10⁻⁸"]),
    ],
)
def test_a_columns_numbers_share_their_decimals(values: list[Any], texts: list[str]) -> None:
    decimals = column_decimals(values)
    assert [fixed_point(value, decimals) for value in values] == texts


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([0.001, 0.003878], ["0.001000", "0.003878"]),
        ([0.0001, 4.7251e-6], ["1.000 × 10⁻⁴", "4.725 × 10⁻⁶"]),
        ([0.9, 0.95, 0.0], ["0.90", "0.95", "0.00"]),
        ([100.0, 250.0], ["100", "250"]),
        ([1, 0.5], ["1.0", "0.5"]),
        ([8192, 116812], ["8192", "116812"]),
        ([1e300, 2.5, 0.0], ["1.0 × 10³⁰⁰", "2.5 × 10⁰", "0"]),
        ([0.0], ["0"]),
        ([True, "adam", 0.25, None], ["true", "adam", "0.25", "null"]),
        ([], []),
    ],
)
def test_a_parameters_values_share_their_precision(values: list[Any], texts: list[str]) -> None:
    text = uniform_format(values)
    assert [text(value) for value in values] == texts


def test_differences_have_a_sign_but_zero() -> None:
    assert [signed_number(v, 4) for v in (0.0123, -0.004, 0.0, None, float("inf"))] == [
        "+0.0123", "−0.0040", "0", "–", "–"
    ]  # fmt: skip
    assert signed_number(0.00001, 4) == "+1 × 10⁻⁵"  # a gain that the column's decimals would hide


def test_long_texts_keep_both_ends() -> None:
    assert shorten("a" * 50 + " \n b", 10) == "aaaaaa…a b"
    cut = excerpt("first" + "x" * 5000 + "last", 300)
    assert cut.startswith("first")
    assert cut.endswith("last")
    assert "4,709 characters" in cut


@pytest.mark.slow
def test_a_region_says_what_its_model_learned_from() -> None:
    taught = {"s/r0/<b>B</b>": 0.125, "s/r0/A": 0.7, "s/r0/C": float("nan")}
    trials = [
        trial(DEFAULTS, 0.5, baseline=True),
        trial({**DEFAULTS, "rate": 0.01}, 0.6, at=1, taught={"s/r0/A": 0.1}),
        trial({**DEFAULTS, "rate": 0.02}, 0.7, at=2, taught=taught),
        trial({**DEFAULTS, "rate": 0.03}, 0.8, at=3),
    ]
    report = report_of(region_facts("R", trials))
    assert only(report).taught == {"s/r0/A": 0.7, "s/r0/<b>B</b>": 0.125}
    page = text_of(report)
    assert "at the last trial: s/r0/A 0.70, s/r0/&lt;b&gt;B&lt;/b&gt; 0.12. 1 uses" in page
    assert "Learned from" not in text_of(report_of(region_facts("Q", trials[:1])))


def test_the_summary_shows_attempts_and_reason_of_a_failed_region(tuned: Report) -> None:
    cause = Cause(error="exit code 1: KeyError: 'prize'", attempts=3, of=3, log="/runs/demo/err")
    failed = replace(tuned.regions[0], stage=Stage.FAILED, reason="it failed", cause=cause)
    text = printed_summary(replace(tuned, regions=(failed, *tuned.regions[1:])))
    assert "failed: 3 attempts: KeyError: 'prize'" in " ".join(
        line.split("│")[-2].strip() for line in text.splitlines() if "│" in line
    )
    assert "/runs/demo/err" not in text
