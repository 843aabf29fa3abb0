"""Tests of the downsampling of stored reports and of the page's curves."""

from __future__ import annotations

import itertools

import pytest

from trialfleet.optimizer.learning_curve_points import downsample


@pytest.mark.parametrize("most", [2, 9, 50])
@pytest.mark.parametrize("count", [3, 10, 51, 99, 1000])
def test_the_kept_points_are_evenly_spaced_and_include_both_ends(count: int, most: int) -> None:
    points = list(range(count))
    kept = downsample(points, most)
    assert len(kept) == min(count, most)
    assert (kept[0], kept[-1]) == (0, count - 1)
    gaps = {after - before for before, after in itertools.pairwise(kept)}
    assert min(gaps) >= 1
    assert max(gaps) - min(gaps) <= 1


@pytest.mark.parametrize("points", [[], [1], [1, 2]])
def test_a_short_curve_keeps_all_points(points: list[int]) -> None:
    assert downsample(points, 2) == points
