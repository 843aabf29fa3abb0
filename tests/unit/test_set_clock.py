"""A clock that is set back is noticed, by a supervisor that was killed meanwhile, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from trialfleet.errors import PoolError
from trialfleet.workflows.dagman import supervisor
from trialfleet.workflows.dagman.set_clock import ClockWatch

NOW, TICK = 1_800_000_000.0, 5_000.0


@pytest.fixture
def file(tmp_path: Path) -> Path:
    watch = ClockWatch(tmp_path / "clock.json")
    assert watch.set_back(NOW, TICK) == 0  # nobody knows how it was set before
    watch.note(NOW, TICK)
    return tmp_path / "clock.json"


@pytest.mark.parametrize(
    ("moved", "back"),
    [(0, 0), (-5, 0), (-20, 20), (-3600, 3600), (3600, 0), (0.3, 0)],
)
def test_only_a_clock_that_was_set_back_is_noticed(file: Path, moved: float, back: float) -> None:
    assert ClockWatch(file).set_back(NOW + 60 + moved, TICK + 60) == back


def test_a_clock_that_is_set_right_again_was_set_back(file: Path) -> None:
    watch = ClockWatch(file)
    watch.note(NOW + 3600, TICK)
    assert watch.set_back(NOW + 30, TICK + 30) == 3600
    watch.note(NOW + 30, TICK + 30)
    assert watch.set_back(NOW + 35, TICK + 35) == 0


def test_a_start_of_the_machine_is_no_set_clock(file: Path) -> None:
    assert ClockWatch(file).set_back(NOW - 9000, 10.0) == 0


@pytest.mark.parametrize("content", ["", "[", "[1]", "{}", "[1, null]", '["x", 2]'])
def test_a_torn_note_counts_as_none(file: Path, content: str) -> None:
    file.write_text(content)
    watch = ClockWatch(file)
    assert watch.set_back(NOW - 9000, TICK + 1) == 0
    watch.note(NOW, TICK)
    assert watch.set_back(NOW - 9000, TICK + 1) > 0


def test_a_note_that_can_not_be_written_is_remembered_all_the_same(tmp_path: Path) -> None:
    watch = ClockWatch(tmp_path / "missing" / "clock.json")
    watch.note(NOW, TICK)
    assert watch.set_back(NOW - 100, TICK) == 100


def test_htcondor_is_told_until_it_has_heard(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [PoolError("HTCondor is away"), None]
    told = []

    def tell() -> None:
        told.append(len(answers))
        if answer := answers.pop(0):
            raise answer

    monkeypatch.setattr(supervisor, "make_appointments_anew", tell)
    watch = ClockWatch(file)
    watch.note(4e9, 0.0)  # set back since
    for _ in range(4):
        supervisor._look_at_clock(watch)
    assert told == [2, 1]
