"""Rules that compare the profile of a day's table with the profiles of a region's past days."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bench.day_checks import KINDS, SEEDS, made_table, profile, shuffled
from trialfleet.nodes.tabular.table import Table
from trialfleet.workflows.rules.unusual_tables import FEWEST_DAYS, MOST_DAYS, band, findings
from trialfleet.workflows.tables.day_profile import MOST_CATEGORIES, DayProfile
from trialfleet.workflows.tables.label_score import FEWEST_ROWS, LabelScore, label_score

DAY = DayProfile(
    rows=1000,
    target="y",
    missing={"a": 0.02, "b": 0.0},
    categories={"kind": {"x": 500, "y": 200}},
    quantiles=[float(step) for step in range(21)],
    labels=LabelScore(0.5, 0.1),
)
CLASSES = replace(DAY, quantiles=[], classes={"no": 0.7, "yes": 0.3})
PAST = [DAY] * 5


def found(today: DayProfile, past: list[DayProfile]) -> dict[str, str]:
    return {one.check: one.text for one in findings(today, past)}


def test_a_day_as_all_others_is_healthy() -> None:
    assert found(DAY, PAST) == {}
    assert found(CLASSES, [CLASSES] * 5) == {}


def test_with_too_few_days_nothing_is_compared() -> None:
    garbage = replace(DAY, rows=3, missing={"a": 1.0}, categories={"kind": {"z": 3}})
    assert found(garbage, PAST[: FEWEST_DAYS - 1]) == {}
    assert [*found(garbage, PAST[:FEWEST_DAYS])] == ["missing", "new_categories", "rows"]


@pytest.mark.parametrize(
    ("change", "check", "text"),
    [
        ({"rows": 699}, "rows", "699, where 700 to 1,300 are usual"),
        ({"rows": 2000}, "rows", "2,000, where 700 to 1,300 are usual"),
        (
            {"missing": {"a": 1.0, "b": 0.0}},
            "missing",
            "100% of column 'a', where up to 8.81% is usual",
        ),
        ({"missing": {"a": 0.02}}, "missing", "column 'b' is gone"),
        (
            {"categories": {"kind": {"x": 5, "z": 5}}},
            "new_categories",
            "50% of column 'kind' ('z')",
        ),
        (
            {"quantiles": [100.0 * step for step in range(21)]},
            "target",
            "its 10% quantile is 200, where 0 to 4 is usual, its median is 1000, where 8 to 12",
        ),
    ],
)
def test_an_unusual_value_is_reported_with_the_usual_ones(
    change: dict[str, Any], check: str, text: str
) -> None:
    problems = found(replace(DAY, **change), PAST)
    assert [*problems] == [check]
    assert text in problems[check]


@pytest.mark.parametrize(
    "change",
    [
        {"rows": 700},
        {"rows": 1300},
        {"missing": {"a": 0.08, "b": 0.05}},
        {"missing": {"a": 0.0, "b": 0.0, "new": 1.0}},
        {"missing": {"a": 0.02}, "ignored": ["b"]},
        {"categories": {"kind": {"x": 500, "z": 30}}},
        {"categories": {}},
        {"categories": {"another": {"z": 500}}},
        {"quantiles": [step + 1.9 for step in range(21)]},
    ],
)
def test_a_small_difference_is_as_usual(change: dict[str, Any]) -> None:
    assert found(replace(DAY, **change), PAST) == {}


def test_classes_are_compared_by_their_shares() -> None:
    past = [CLASSES] * 5
    assert found(replace(CLASSES, classes={"no": 0.55, "yes": 0.45}), past) == {}
    problems = found(replace(CLASSES, classes={"no": 0.3, "yes": 0.7}), past)
    assert "70% are 'yes', where 9.2" in problems["target"]
    other = {"no": 0.69, "yes": 0.29, "perhaps": 0.02}
    assert "2% are 'perhaps'" in found(replace(CLASSES, classes=other), past)["target"]


def test_another_target_is_not_compared() -> None:
    other = replace(DAY, target="z", quantiles=[1000.0] * 21)
    assert found(other, PAST) == {}
    assert "target" in found(replace(other, target="y"), PAST)


def test_of_many_columns_the_most_unusual_are_named() -> None:
    past = [replace(DAY, missing=dict.fromkeys("abcdef", 0.0))] * 3
    today = replace(DAY, missing={name: 0.1 * n for n, name in enumerate("abcdef", start=1)})
    text = found(today, past)["missing"]
    assert [text.index(f"'{name}'") for name in "fed"] == sorted(
        text.index(f"'{name}'") for name in "fed"
    )
    assert text.endswith("and 3 more")


def test_a_value_is_usual_if_two_past_days_had_it() -> None:
    weekdays = [DAY] * 8
    weekend = replace(DAY, rows=200)
    assert "rows" in found(weekend, [*weekdays, weekend])
    assert found(weekend, [*weekdays, weekend, weekend]) == {}


def test_only_the_latest_past_days_are_compared() -> None:
    large = replace(DAY, rows=10_000)
    assert "rows" in found(large, [large] * 30 + [DAY] * MOST_DAYS)


def test_new_categories_are_usual_if_each_past_day_had_new_ones() -> None:
    past = [replace(DAY, categories={"kind": {"x": 500, f"of {n}": 200}}) for n in range(5)]
    today = replace(DAY, categories={"kind": {"x": 500, "of today": 200}})
    assert found(today, past) == {}
    assert "new_categories" in found(replace(DAY, categories={"kind": {"of today": 700}}), past)


NO_SIGNAL = replace(DAY, labels=LabelScore(0.09, 0.1))


def test_labels_are_checked_without_past_days_only_if_there_are_many_rows() -> None:
    assert "no better than shuffled" in found(NO_SIGNAL, PAST)["labels"]
    words = "score 0.09; shuffled: up to 0.1"
    assert words in found(NO_SIGNAL, [])["labels"]
    assert found(replace(NO_SIGNAL, rows=999), []) == {}
    assert found(NO_SIGNAL, [NO_SIGNAL]) == {}, "so it was before"
    weak = replace(DAY, labels=LabelScore(0.11, 0.1))
    assert found(NO_SIGNAL, [weak] * 5) == {}
    assert "labels" in found(NO_SIGNAL, [weak, *PAST]), "one odd day counts for nothing"


VALUES = st.lists(st.floats(-1e6, 1e6), min_size=FEWEST_DAYS, max_size=MOST_DAYS)


@given(VALUES, st.floats(0, 1e3))
def test_a_band_contains_its_floor_and_all_but_the_two_most_extreme_days(
    values: list[float], floor: float
) -> None:
    low, high = band(values, floor)
    middle = float(np.median(values))
    assert low <= middle - floor
    assert high >= middle + floor
    assert all(low <= value <= high for value in sorted(values)[1:-1])
    assert band(values[::-1], floor) == (low, high)


@given(VALUES, st.floats(1e-3, 1e3), st.floats(-1e3, 1e3))
def test_one_odd_day_hardly_changes_a_band(values: list[float], floor: float, odd: float) -> None:
    usual = [1.0, 2.0, 3.0, 2.0, 1.0, 3.0, 2.0]
    low, high = band([*usual, odd * 1e9], floor)
    assert low >= min(1.0, 1.5 - max(floor, 10))
    assert high <= max(3.0, 2.5 + max(floor, 10))


# -- days of tables with a drift -------------------------------------------------------------------


def drifting(number: int) -> Table:
    """Return a table that grows by one hundredth a day, as its target does."""
    table = made_table("regression", 500 + 5 * number, 1.0, number)
    return replace(table, target=table.target + 0.02 * number)


def test_twenty_healthy_days_with_a_mild_drift_raise_nothing() -> None:
    profiles = [profile(drifting(number)) for number in range(20)]
    for number in range(20):
        assert findings(profiles[number], profiles[:number]) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_shuffled_labels_are_found_and_healthy_days_never_are(kind: str) -> None:
    """Of 50 days each; a shuffle passes by chance once in a hundred times."""
    days = [made_table(kind, 1000, 1.0, seed) for seed in range(SEEDS)]
    past = [profile(made_table(kind, 1000, 1.0, 1000 + seed)) for seed in range(MOST_DAYS)]
    assert [found(profile(day), past) for day in days] == [{}] * SEEDS
    wrong = [found(profile(shuffled(day, seed)), past) for seed, day in enumerate(days)]
    assert sum("labels" in each for each in wrong) >= SEEDS - 2


def test_a_label_score_is_reproducible_and_missing_for_few_rows() -> None:
    table = made_table("binary", 300, 1.0, 1)
    assert label_score(table, 3) == label_score(table, 3)
    assert label_score(made_table("binary", FEWEST_ROWS - 1, 1.0, 1), 3) is None
    nothing = replace(table, numeric=table.numeric * 0, categorical=table.categorical * 0)
    assert label_score(nothing, 3) is None, "no column tells anything"


def test_missing_cells_of_a_column_can_predict_the_labels() -> None:
    table = made_table("binary", 1000, 0.0, 1)
    numbers = table.numeric.copy()
    numbers[table.target == 1, 5] = np.nan
    found_in_it = label_score(replace(table, numeric=numbers), 0)
    assert found_in_it is not None
    assert found_in_it.ratio > 2


def test_categories_are_noted_up_to_a_number_of_them() -> None:
    table = made_table("binary", 300, 1.0, 1)
    many = [f"{'long ' * 30}{number}" for number in range(MOST_CATEGORIES)]
    for words, noted in [(many, MOST_CATEGORIES), ([*many, "more"], None)]:
        columns = replace(table.columns, categorical={"c": words, "d": list("abcde")})
        categories = profile(replace(table, columns=columns)).categories
        assert "d" in categories
        assert (len(categories["c"]) if "c" in categories else None) == noted
        assert all(len(word) < 64 for word in categories.get("c", ()))
