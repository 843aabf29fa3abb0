"""Checks of a region's new table against past days, before the run costs money."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from trialfleet.errors import join_names
from trialfleet.spread import middle_and_spread
from trialfleet.workflows.tables.day_profile import DayProfile

MOST_DAYS, FEWEST_DAYS = 14, 3  # days in a comparison
_DEVIATIONS = 5  # standard deviations
_ERRORS = 4  # standard errors of a share
_ROWS = 0.3  # of the usual rows: no smaller difference counts
_SHARE = 0.05  # of the rows; likewise
_CLASS = 0.5  # of the usual share of a class or, if smaller, of all other classes; likewise
_QUANTILE = 0.1  # of the rows: how far a quantile may move
_QUANTILES = {0.1: "10% quantile", 0.5: "median", 0.9: "90% quantile"}
_CLEARLY = 1.2  # times the score of shuffled labels
_ONE_MAY_BE_ODD = 5  # with at least this many past days, one odd day is ignored
_MANY_ROWS = 1_000
_NAMED = 3


class Finding(NamedTuple):
    """An unusual feature of a table, and the name of the check that found it."""

    check: str
    text: str

    def __str__(self) -> str:
        return f"{self.check}: {self.text}"


def findings(today: DayProfile, past: Sequence[DayProfile]) -> list[Finding]:
    """Return the unusual features of a day's table, at most one for each check.

    `past` has the profiles (statistics) of the region's tables on past days with a model, oldest
    first. With fewer than `FEWEST_DAYS` of them, only the labels are checked.
    """
    past = past[-MOST_DAYS:]
    found = [("labels", _labels(today, _comparable_days(today, past)))]
    if len(past) >= FEWEST_DAYS:
        found += [
            ("rows", _rows(today, past)),
            ("missing", _columns(_missing(today, past))),
            ("new_categories", _columns(_new_categories(today, past))),
            ("target", _target(today, _comparable_days(today, past))),
        ]
    return [Finding(check, text) for check, text in sorted(found) if text]


def band(values: Sequence[float], floor: float) -> tuple[float, float]:
    """Return the range of a feature's usual values, from its values on past days.

    The range is median ± 5 · 1.4826 · MAD (the median distance from the median), or ± `floor` if
    that is wider. It always includes the second lowest and the second highest value. So a value is
    usual if it occurred on two past days, as on weekends, but not if it occurred on one odd day.
    """
    (middle, spread), ordered = middle_and_spread(values), sorted(values)
    width = max(floor, _DEVIATIONS * spread)
    return min(middle - width, ordered[1]), max(middle + width, ordered[-2])


def _error(share: float, rows: int) -> float:
    """Return by how much `share`, measured on `rows` rows, may be wrong by chance."""
    likely = (share * rows + 1) / (rows + 2)  # not 0 for a share of 0
    return _ERRORS * math.sqrt(likely * (1 - likely) / max(1, rows))


def _comparable_days(today: DayProfile, past: Sequence[DayProfile]) -> list[DayProfile]:
    return [
        one
        for one in past
        if one.target == today.target and bool(one.classes) == bool(today.classes)
    ]


def _rows(today: DayProfile, past: Sequence[DayProfile]) -> str:
    usual = [one.rows for one in past]
    middle = median(usual)
    low, high = band(usual, max(_ROWS * middle, _ERRORS * math.sqrt(middle)))
    if low <= today.rows <= high:
        return ""
    return f"{today.rows:,}, where {max(0, math.ceil(low)):,} to {int(high):,} are usual"


class _Column(NamedTuple):
    excess: float
    text: str


def _columns(found: Iterator[_Column]) -> str:
    return join_names([each.text for each in sorted(found, key=lambda one: -one.excess)], _NAMED)


def _missing(today: DayProfile, past: Sequence[DayProfile]) -> Iterator[_Column]:
    names = dict.fromkeys(name for one in past for name in one.missing)
    for name in names:
        before = [one.missing[name] for one in past if name in one.missing]
        is_gone = name not in today.missing and name not in today.ignored
        if len(before) < FEWEST_DAYS or (is_gone and name not in past[-1].missing):
            continue
        if is_gone and name != today.target:
            yield _Column(1, f"column {name!r} is gone")
        elif (share := today.missing.get(name)) is not None:
            usual = median(before)
            _, high = band(before, _SHARE + _error(usual, today.rows))
            if share > high:
                text = (
                    f"{_percent(share)} of column {name!r}, where up to {_percent(high)} is usual"
                )
                yield _Column(share - high, text)


def _new_categories(today: DayProfile, past: Sequence[DayProfile]) -> Iterator[_Column]:
    for name, words in today.categories.items():
        before = [one.categories[name] for one in past if name in one.categories]
        rows = sum(words.values())
        if len(before) < FEWEST_DAYS or not rows:
            continue
        days = Counter(word for one in before for word in one)
        new = {word: count for word, count in words.items() if word not in days}
        own = [_share(one, {word for word in one if days[word] == 1}) for one in before]
        share, usual = sum(new.values()) / rows, median(own)
        _, high = band(own, _SHARE + _error(usual, rows))
        if share > high:
            examples = join_names(
                [repr(word) for word in sorted(new, key=lambda word: -new[word])], _NAMED
            )
            text = (
                f"{_percent(share)} of column {name!r} ({examples}), where up to {_percent(high)} "
                "is usual"
            )
            yield _Column(share - high, text)


def _share(words: dict[str, int], chosen: set[str]) -> float:
    rows = sum(words.values())
    return sum(words[word] for word in chosen) / rows if rows else 0.0


def _target(today: DayProfile, past: Sequence[DayProfile]) -> str:
    if len(past) < FEWEST_DAYS:
        return ""
    return _columns(
        _class_columns(today, past) if today.classes else _quantile_columns(today, past)
    )


def _class_columns(today: DayProfile, past: Sequence[DayProfile]) -> Iterator[_Column]:
    names = dict.fromkeys(name for one in (*past, today) for name in one.classes)
    for name in names:
        before, share = [one.classes.get(name, 0.0) for one in past], today.classes.get(name, 0.0)
        usual = median(before)
        low, high = band(before, _CLASS * min(usual, 1 - usual) + _error(usual, today.rows))
        if not low <= share <= high:
            text = (
                f"{_percent(share)} are {name!r}, where {_percent(max(0.0, low))} to "
                f"{_percent(min(1.0, high))} is usual"
            )
            yield _Column(max(low - share, share - high), text)


def _quantile_columns(today: DayProfile, past: Sequence[DayProfile]) -> Iterator[_Column]:
    moves = max(_QUANTILE, _ERRORS / 2 / math.sqrt(today.rows))
    for share, words in _QUANTILES.items():
        value = _interpolate(today.quantiles, share)
        low, high = band([_interpolate(one.quantiles, share) for one in past], 0.0)
        low = min(low, median(_interpolate(one.quantiles, share - moves) for one in past))
        high = max(high, median(_interpolate(one.quantiles, share + moves) for one in past))
        if not low <= value <= high:
            yield _Column(1, f"its {words} is {value:.4g}, where {low:.4g} to {high:.4g} is usual")


def _interpolate(quantiles: Sequence[float], share: float) -> float:
    return float(np.interp(share, np.linspace(0, 1, len(quantiles)), quantiles))


def _labels(today: DayProfile, past: Sequence[DayProfile]) -> str:
    """Return a text if the labels look shuffled and those of past days did not, else "".

    With too few past days to compare with, only a table with many rows is judged.
    """
    if today.labels is None or today.labels.ratio > 1:
        return ""
    ratios = sorted(one.labels.ratio for one in past if one.labels)
    if len(ratios) < FEWEST_DAYS:
        is_detectable = today.rows >= _MANY_ROWS and all(ratio > 1 for ratio in ratios)
    else:
        is_detectable = ratios[1 if len(ratios) >= _ONE_MAY_BE_ODD else 0] > _CLEARLY
    if not is_detectable:
        return ""
    return (
        f"the columns predict {today.target!r} no better than shuffled labels (score "
        f"{today.labels.score:.2g}; shuffled: up to {today.labels.shuffled:.2g})"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"
