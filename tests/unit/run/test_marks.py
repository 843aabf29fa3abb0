"""The access point's marks of trials in their job's event log."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.unit.run.test_job_log import EVICTED, SUBMITTED, executing, unix
from trialfleet import untrusted_files
from trialfleet.workflows.facts.jobs.agent_messages import ReportedEnd
from trialfleet.workflows.facts.jobs.executions import read_events
from trialfleet.workflows.facts.jobs.trial_marks import Mark, MarkKind, note
from trialfleet.workflows.facts.run_folder.folder import TrialFolder

WHEN = unix("07:08:01.250")
EXECUTES = SUBMITTED.format(job=6), executing("07:08:00")


@pytest.fixture
def place(tmp_path: Path) -> TrialFolder:
    lane = tmp_path / "A.l1"
    lane.mkdir()
    (lane / "log").write_text("".join(EXECUTES))
    return TrialFolder(tmp_path / "A.l1.t01", lane)


def marks(place: TrialFolder) -> list[tuple[float, Mark]]:
    return [(event.time, event.mark) for event in read_events(place.log) if event.mark]


def end(place: TrialFolder, code: int = 0, cpu: float | None = None) -> None:
    ended = ReportedEnd.from_json({"code": code, "cpu_seconds": cpu})
    note(place, "6.0", WHEN + 2, MarkKind.ENDS, ended)


def test_a_mark_is_an_event_that_htcondor_reads(place: TrialFolder) -> None:
    note(place, "6.0", WHEN, MarkKind.BEGINS)
    note(place, "6.0", WHEN + 1, MarkKind.SAVED)
    ended = ReportedEnd(code=-9, cpu_seconds=1.23456, memory_mb=230.96, over=None)
    note(place, "6.0", WHEN + 2, MarkKind.ENDS, ended)
    assert marks(place) == [
        (WHEN, Mark(trial="A.l1.t01", kind=MarkKind.BEGINS)),
        (WHEN + 1, Mark(trial="A.l1.t01", kind=MarkKind.SAVED)),
        (
            WHEN + 2,
            Mark(trial="A.l1.t01", kind=MarkKind.ENDS, code=-9, cpu_seconds=1.235, memory_mb=231.0),
        ),
    ]
    assert [event.kind for event in read_events(place.log)][:3] == [
        "SUBMIT", "FILE_TRANSFER", "EXECUTE"
    ]  # fmt: skip
    assert {(event.cluster, event.proc) for event in read_events(place.log)} == {(6, 0)}


def test_a_mark_is_written_once(place: TrialFolder) -> None:
    for _ in range(2):
        note(place, "6.0", WHEN, MarkKind.BEGINS)
    for _ in range(2):
        end(place)
    assert [mark.kind for _, mark in marks(place)] == [MarkKind.BEGINS, MarkKind.ENDS]


def test_an_infinite_processor_time_is_left_out(place: TrialFolder) -> None:
    end(place, cpu=float("inf"))
    ((_, mark),) = marks(place)
    assert (mark.kind, mark.cpu_seconds) == (MarkKind.ENDS, None)


def test_an_end_that_is_repeated_after_the_next_begin_changes_nothing(place: TrialFolder) -> None:
    other = TrialFolder(place.root.with_name("A.l1.t02"), place.of_job)
    note(place, "6.0", WHEN, MarkKind.BEGINS)
    for _ in range(2):  # a service that was killed before it said so does it all again
        end(place)
        note(other, "6.0", WHEN + 2, MarkKind.BEGINS)
    assert len(marks(place)) == 3


def test_each_trial_and_each_attempt_has_its_marks(place: TrialFolder) -> None:
    other = TrialFolder(place.root.with_name("A.l1.t02"), place.of_job)
    for each in (place, other, place):
        note(each, "6.0", WHEN, MarkKind.BEGINS)
        end(each, code=1)
    assert len(marks(place)) == 6


def test_a_trial_that_continues_on_another_machine_has_another_mark(place: TrialFolder) -> None:
    note(place, "6.0", WHEN, MarkKind.BEGINS)
    with place.log.open("a") as log:
        log.write(EVICTED.format(at="07:08:05") + executing("07:09:00"))
    note(place, "6.0", WHEN + 60, MarkKind.BEGINS)
    assert len(marks(place)) == 2


def test_a_gang_has_no_other_mark_when_one_of_its_jobs_restarts(place: TrialFolder) -> None:
    submitted, executes = EXECUTES
    both = [text.replace(".000.000)", f".{proc:03}.000)") for text in EXECUTES for proc in (1, 0)]
    place.log.write_text("".join(both))
    note(place, "6.0", WHEN, MarkKind.BEGINS)
    with place.log.open("a") as log:
        log.write(EVICTED.format(at="07:08:05") + executes)
    note(place, "6.1", WHEN + 60, MarkKind.BEGINS)
    assert len(marks(place)) == 1
    with place.log.open("a") as log:
        log.write(submitted.replace("(006.", "(007.") + executes.replace("(006.", "(007."))
    note(place, "7.0", WHEN + 90, MarkKind.BEGINS)
    assert len(marks(place)) == 2


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let this process write files of at most `size` bytes, as if the disk had no more room."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("written", [1, 60, 75, 79])
def test_a_mark_that_a_full_disk_cut_swallows_no_later_event(
    place: TrialFolder, written: int
) -> None:
    note(place, "6.0", WHEN, MarkKind.BEGINS)
    before = place.log.read_bytes()
    with largest_file(len(before) + written), pytest.raises(OSError, match="No space left"):
        end(place, code=137)
    assert place.log.read_bytes() == before
    end(place, code=137)
    assert [(mark.kind, mark.code) for _, mark in marks(place)] == [
        (MarkKind.BEGINS, None),
        (MarkKind.ENDS, 137),
    ]


@pytest.mark.parametrize(
    "half",
    [
        "008 (006.000.000) 2026-11-25 07:08:03.250 trialfleet: A.l1.t01 ends code=1",
        "008 (006.000.000) 2026-11-25 07:08:03.250 trialfleet: A.l1.t01 en",
        "006 (006.000.000) 2026-11-25 07:08:02 Image size of job upd",
    ],
)
def test_a_mark_after_half_an_event_is_read(place: TrialFolder, half: str) -> None:
    """A writer that was killed, or HTCondor on a full disk, may leave half an event."""
    note(place, "6.0", WHEN, MarkKind.BEGINS)
    with place.log.open("a") as log:
        log.write(half)
    end(place, code=137)
    assert [(mark.kind, mark.code) for _, mark in marks(place)] == [
        (MarkKind.BEGINS, None),
        (MarkKind.ENDS, 137),
    ]


def test_no_mark_is_written_through_a_link(place: TrialFolder, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    place.log.rename(elsewhere)
    before = elsewhere.read_text()
    place.log.symlink_to(elsewhere)
    with pytest.raises(untrusted_files.JobFileError, match="symbolic link"):
        note(place, "6.0", WHEN, MarkKind.BEGINS)
    assert elsewhere.read_text() == before
