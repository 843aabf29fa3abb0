"""The wall time of a run that was stopped and resumed, and of its regions."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tests.unit.report.report_studies import (
    START,
    only,
    region_facts,
    report_of,
    text_of,
    tuned_trials,
)
from trialfleet.workflows.status.dagman_pauses import find_pauses, pause_overlap
from trialfleet.workflows.views.report.page_texts import header

BEGIN = START.timestamp()
HOUR = 3600.0


@pytest.mark.parametrize(
    ("active", "signs", "pauses"),
    [
        ([], [0.0, 1e6], []),  # nothing is known of any DAGMan
        ([(0, 100), (160, 200)], [], [(100, 160)]),
        ([(0, 100), (159, 200)], [], []),  # HTCondor started it again
        ([(0, 900), (10, 50), (700, 1000)], [], []),  # regions' DAGMans in that of the run
        ([(500, 600), (0, 100), (10, 90)], [], [(100, 500)]),
        ([(0, math.inf), (500, 600)], [], []),
        ([(0, None), (500, math.inf)], [40.0, 90.0, 510.0], [(90, 500)]),
        ([(0, None), (500, math.inf)], [], [(0, 500)]),
        ([(0, None), (5, None), (500, math.inf)], [4.0, 90.0], [(90, 500)]),
    ],
)
def test_a_pause_is_a_gap_in_which_no_dagman_executed(
    active: list[tuple[float, float | None]],
    signs: list[float],
    pauses: list[tuple[float, float]],
) -> None:
    assert list(find_pauses(active, signs)) == pauses


@pytest.mark.parametrize(
    ("stops", "pauses"),
    [([98.0], [(100, 131)]), ([130.0], [(100, 131)]), ([], []), ([5.0], []), ([140.0], [])],
)
def test_after_a_stop_a_short_gap_is_a_pause_too(
    stops: list[float], pauses: list[tuple[float, float]]
) -> None:
    active: list[tuple[float, float | None]] = [(0, 98), (10, 100), (131, 200), (135, 190)]
    assert list(find_pauses(active, [], stops)) == pauses


def test_only_the_part_of_a_pause_within_the_interval_counts() -> None:
    assert pause_overlap([(10, 20), (30, 40)], 15, 32) == 7
    assert pause_overlap([(10, 20)], 20, 30) == 0


@pytest.mark.slow
def test_a_resumed_runs_wall_time_leaves_the_pause_out_and_says_so() -> None:
    trials = tuned_trials(20)
    for at, each in enumerate(trials[10:], start=10):  # asked for on the next morning
        begun, ended = each.datetime_start, each.datetime_complete
        assert begun is not None
        assert ended is not None
        night = timedelta(hours=8)
        trials[at] = replace(each, datetime_start=begun + night, datetime_complete=ended + night)
    pause = (BEGIN + 30, BEGIN + 8 * HOUR)
    report = report_of(
        region_facts("A", trials),
        created=datetime.fromtimestamp(BEGIN - 2 * HOUR, UTC),  # planned, not submitted yet
        active=[(BEGIN - 60, pause[0]), (pause[1], math.inf)],
        finished=datetime.fromtimestamp(pause[1] + 7800, UTC),
    )
    assert report.pauses == (pause,)
    assert (report.wall_seconds, report.paused_seconds) == (90 + 7800, pause[1] - pause[0])
    region = only(report)
    first, last = trials[0].datetime_start, trials[-1].datetime_complete
    assert first is not None
    assert last is not None
    assert region.wall_seconds == (last - first).total_seconds() - report.paused_seconds
    assert region.paused_seconds == report.paused_seconds
    tiles = {label: (value, under) for label, value, under in header(report)}
    assert tiles["Wall time"] == ("2 h 11 min", "paused 7 h 59 min in between")
    assert "(paused 7 h 59 min in between)" in text_of(report)
    json.loads(report.to_json())


def test_a_run_that_was_never_stopped_has_no_pause() -> None:
    report = report_of(region_facts("A", tuned_trials(3)), active=[(BEGIN, math.inf)])
    assert (report.pauses, report.paused_seconds) == ((), 0.0)
    assert "paused" not in text_of(report).split("<main>")[1].split("<script>")[0]
