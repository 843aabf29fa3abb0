"""`trialfleet logs` of a trial, by the files that its agent and its result leave."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.job_logs import JobLog
from trialfleet.workflows.facts.run_folder.folder import TrialFolder
from trialfleet.workflows.rules.states import TrialState
from trialfleet.workflows.views.terminal import trial_output
from trialfleet.workflows.views.terminal.trial_output import TrialOutput

RUNNING, COMPLETE = TrialState.RUNNING, TrialState.COMPLETE


@pytest.fixture
def place(tmp_path: Path) -> TrialFolder:
    place = TrialFolder(tmp_path / "A.l1.t02", tmp_path / "A.l1")
    place.root.mkdir()
    place.words.mkdir(parents=True)
    return place


def shown(place: TrialFolder, state: TrialState | None, lines: int = 50) -> list[str]:
    seen: list[str] = []
    output = TrialOutput(
        place, lines, lambda: state, seen.append, lambda t: seen.append(f"err {t}")
    )
    return [output.show(), *seen]


def test_the_last_lines_of_both_streams_are_shown(place: TrialFolder) -> None:
    place.printed_out.write_text("A.l1.t02\n1\n2\n3\nhalf")
    place.printed_err.write_text("A.l1.t02\nw\n")
    assert shown(place, RUNNING, lines=3) == ["", "2", "3", "err w"]
    place.out.write_text("1\n2\n3\nhalf a line")
    place.err.write_text("")
    place.ended.write_text("{}")
    assert shown(place, COMPLETE, lines=2) == ["", "3", "half a line"]


def test_output_of_another_trial_of_the_lane_is_left_out(place: TrialFolder) -> None:
    place.printed_out.write_text("A.l1.t01\nof another\n")
    assert shown(place, RUNNING) == ["has printed nothing yet"]
    assert shown(place, TrialState.QUEUED) == ["waits"]
    assert shown(place, None) == ["waits"]
    assert shown(place, COMPLETE) == ["has printed nothing"]


def test_a_full_training_whose_job_runs_does_not_wait(tmp_path: Path) -> None:
    place = TrialFolder(tmp_path / "best")
    log = JobLog(place.log)
    log.submitted(0)
    assert shown(place, None) == ["waits"]
    log.executes(1)
    assert shown(place, None) == ["has printed nothing yet"]


def test_a_trial_whose_job_brought_no_result_shows_the_output_received(place: TrialFolder) -> None:
    place.printed_out.write_text("A.l1.t02\nthe last word\n")
    place.out.write_text("")
    assert shown(place, TrialState.FAILED) == ["", "the last word"]


def test_following_shows_each_line_of_all_attempts_once(
    place: TrialFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_output, "_LOOK", 0.0)
    seen: list[str] = []
    noted: list[str] = []
    out, head = place.printed_out, "A.l1.t02\n"

    def steps() -> Iterator[TrialState | None]:
        yield None
        out.write_text(head + "1\n2")
        yield RUNNING
        out.write_text(head + "1\n2 and a half\n")
        yield RUNNING
        place.out.write_text("1\n2 and a half\nfails\n")
        place.ended.write_text("{}")
        yield RUNNING
        out.unlink()
        place.ended.unlink()
        yield RUNNING
        out.write_text(head + "again\n\rbar\rbar 2")
        yield RUNNING
        place.out.write_text("again\n\rbar\rbar 2\ndone\n")
        place.ended.write_text("{}")
        yield COMPLETE

    each = steps()
    monkeypatch.setattr(trial_output, "_POLL", 0.0)
    TrialOutput(place, 50, lambda: next(each), seen.append, seen.append).follow(noted.append)
    words = ["1", "2 and a half", "fails", "again", "", "bar", "bar 2", "done"]
    assert (seen, noted) == (words, ["waits"])


def test_following_ends_with_the_run(place: TrialFolder) -> None:
    noted: list[str] = []
    output = TrialOutput(place, 50, lambda: TrialState.INTERRUPTED, noted.append, noted.append)
    output.follow(noted.append)
    assert noted == ["its run has ended"]


def test_following_shows_that_a_trial_ended_without_output(place: TrialFolder) -> None:
    noted: list[str] = []
    TrialOutput(place, 50, lambda: COMPLETE, noted.append, noted.append).follow(noted.append)
    assert noted == ["has printed nothing"]
