"""Readings of a job's event log for each of the trials that it trained."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.job_logs import JobLog
from trialfleet import untrusted_files
from trialfleet.workflows.facts.jobs.execution_notes import noted_parts
from trialfleet.workflows.facts.jobs.executions import ExecutionEnd
from trialfleet.workflows.facts.jobs.job_log import (
    PricedExecution,
    is_executing,
    read_between_trials,
    read_executions,
    read_job,
    read_starts,
    read_stays,
)
from trialfleet.workflows.facts.jobs.trial_parts import (
    note_log,
    read_attempts,
    read_parts,
)
from trialfleet.workflows.facts.run_folder.folder import TrialFolder, note_path

USD_PER_SECOND = 3.6 / 4 / 3600  # of the slot of a log


class Lane:
    """A lane's job, whose log a test writes."""

    def __init__(self, root: Path) -> None:
        self.root = root / "A.l1"
        self.log = JobLog(self.root / "log")

    def trial(self, number: int) -> TrialFolder:
        """Return the folder of one of its trials."""
        return TrialFolder(self.root.with_name(f"A.l1.t{number:02}"), self.root)

    def begins(self, second: float, number: int) -> None:
        self.log.marks(second, f"A.l1.t{number:02} begins")

    def ends(self, second: float, number: int, code: int = 0) -> None:
        self.log.marks(second, f"A.l1.t{number:02} ends code={code} cpu=4.5 memory=231.0")

    def spans(self, number: int) -> list[tuple[float, float, ExecutionEnd]]:
        """Return the parts of a trial, from and to."""
        return [self.span(stay) for stay in read_stays(self.trial(number))]

    def between(self) -> list[tuple[float, float, ExecutionEnd]]:
        """Return the job's own time."""
        return [self.span(stay) for stay in read_between_trials(self.root / "log")]

    def span(self, stay: PricedExecution) -> tuple[float, float, ExecutionEnd]:
        """Return a stay as seconds of the log."""
        zero = self.log.at(0)
        return round(stay.began - zero, 3), round(stay.ended - zero, 3), stay.end


@pytest.fixture
def lane(tmp_path: Path) -> Lane:
    """A lane whose job executes since 10."""
    lane = Lane(tmp_path)
    lane.log.submitted(0)
    lane.log.executes(10)
    return lane


def test_a_jobs_time_is_divided_among_its_trials_and_itself(lane: Lane) -> None:
    lane.begins(12, 1)
    lane.ends(20, 1)
    lane.begins(21, 2)
    lane.ends(31, 2, code=-9)
    lane.log.terminated(33)
    assert lane.spans(1) == [(12, 20, ExecutionEnd.DONE)]
    assert lane.spans(2) == [(21, 31, ExecutionEnd.FAILED)]
    assert lane.spans(3) == []
    assert lane.between() == [
        (10, 12, ExecutionEnd.DONE),
        (20, 21, ExecutionEnd.DONE),
        (31, 33, ExecutionEnd.DONE),
    ]
    stays = [stay for number in (1, 2) for stay in read_stays(lane.trial(number))]
    paid = [stay.usd or 0.0 for stay in [*stays, *read_between_trials(lane.root / "log")]]
    ((began, ended),) = read_executions(lane.root / "log")
    assert ended is not None
    assert sum(paid) == pytest.approx((ended - began) * USD_PER_SECOND)


def test_a_trial_has_its_own_times_and_costs(lane: Lane) -> None:
    lane.begins(12, 1)
    lane.ends(20, 1)
    lane.begins(20, 2)
    lane.ends(25, 2)
    lane.log.terminated(26)
    job = read_job(lane.trial(2))
    assert job is not None
    assert (job.started, job.ended) == (lane.log.at(20), lane.log.at(25))
    assert (job.wall_seconds, job.last_wall_seconds, job.attempts) == (5, 5, 1)
    assert (job.cpu_seconds, job.memory_mb, job.slot) == (4.5, 231.0, "slot1_1@a")
    assert job.usd == pytest.approx(5 * USD_PER_SECOND)
    assert job.lost_usd == 0


def test_reading_one_trial_gives_the_same_attempts_as_reading_all(lane: Lane) -> None:
    for second, number in ((12, 1), (20, 2), (22, 3), (30, 2)):
        lane.begins(second, number)
        if number != 2:
            lane.ends(second + 2, number)
    lane.log.evicted(40)
    lane.log.executes(50)
    lane.ends(51, 2)
    lane.begins(52, 4)
    divided = read_parts(lane.root / "log").trials
    for number in (1, 2, 3, 4, 5):
        assert read_attempts(lane.trial(number)) == divided.get(lane.trial(number).root.name, [])


def test_a_trial_without_marks_in_the_log_has_no_executions(lane: Lane) -> None:
    lane.log.terminated(20)
    assert read_job(lane.trial(1)) is None
    assert read_starts(lane.trial(1)) == []
    assert lane.between() == [(10, 20, ExecutionEnd.DONE)]


def test_an_interrupted_trial_continues_in_the_next_execution(lane: Lane) -> None:
    lane.begins(12, 1)
    lane.log.marks(18, "A.l1.t01 saved")
    lane.log.evicted(20)
    lane.log.executes(30, "b")
    lane.begins(33, 1)
    lane.ends(40, 1)
    lane.log.terminated(40)
    assert lane.spans(1) == [(12, 20, ExecutionEnd.EVICTED), (33, 40, ExecutionEnd.DONE)]
    first, second = read_stays(lane.trial(1))
    assert (first.lost_seconds, second.lost_seconds) == (2, 0)
    job = read_job(lane.trial(1))
    assert job is not None
    assert (job.attempts, job.machine, job.wall_seconds) == (1, "b", 15)
    assert lane.between() == [(10, 12, ExecutionEnd.DONE), (30, 33, ExecutionEnd.DONE)]


def test_a_checkpoint_that_is_noted_after_the_eviction_counts(lane: Lane) -> None:
    lane.begins(12, 1)
    lane.log.evicted(20)
    lane.log.marks(21, "A.l1.t01 saved")
    (stay,) = read_stays(lane.trial(1))
    assert (stay.end, stay.lost_seconds) == (ExecutionEnd.EVICTED, 0)


def test_a_job_that_left_without_an_answer_has_lost_no_work(lane: Lane) -> None:
    """The trial's result has arrived, but no service was able to note the trial's end."""
    lane.begins(12, 1)
    lane.log.terminated(320, code=75)
    (stay,) = read_stays(lane.trial(1))
    assert (stay.end, stay.lost_seconds) == (ExecutionEnd.DONE, 0)
    lane.ends(20, 1, code=1)
    assert lane.spans(1) == [(12, 20, ExecutionEnd.FAILED)]
    assert lane.between()[-1] == (20, 320, ExecutionEnd.DONE)


@pytest.mark.parametrize("again", [False, True])
def test_an_end_recorded_after_the_eviction_is_the_trials_end(lane: Lane, again: bool) -> None:
    lane.begins(12, 1)
    lane.log.evicted(20)
    if again:  # the next agent reports it
        lane.log.executes(30)
    lane.ends(32, 1)
    assert lane.spans(1) == [(12, 20, ExecutionEnd.DONE)]


def test_attempts_in_one_job_are_counted(lane: Lane) -> None:
    for second in (12, 22, 32):
        lane.begins(second, 1)
        lane.ends(second + 5, 1, code=0 if second == 32 else 1)
    assert [end for *_, end in lane.spans(1)] == [
        ExecutionEnd.FAILED,
        ExecutionEnd.FAILED,
        ExecutionEnd.DONE,
    ]
    job = read_job(lane.trial(1))
    assert job is not None
    assert (job.attempts, job.last_wall_seconds, job.wall_seconds) == (3, 5, 15)
    assert [start.began for start in read_starts(lane.trial(1))] == [lane.log.at(32)]
    failed_stays = read_stays(lane.trial(1), failed=True)
    assert {stay.end for stay in failed_stays} == {ExecutionEnd.FAILED}


def test_an_unusable_result_is_a_failed_attempt(lane: Lane) -> None:
    for second in (12, 22):  # with exit code 0 and no usable result, the first time
        lane.begins(second, 1)
        lane.ends(second + 5, 1)
    assert [end for *_, end in lane.spans(1)] == [ExecutionEnd.FAILED, ExecutionEnd.DONE]


def test_a_lane_that_continues_in_another_job_lost_nothing(lane: Lane) -> None:
    lane.begins(12, 1)
    lane.ends(20, 1)
    lane.log.terminated(21, code=75)  # its time was up
    lane.log.submitted(22)
    lane.log.executes(30)
    lane.begins(31, 2)
    lane.ends(40, 2)
    lane.log.terminated(41)
    for number in (1, 2):
        job = read_job(lane.trial(number))
        assert job is not None
        assert (job.attempts, job.lost_usd) == (1, 0)
    assert lane.between() == [
        (begin, end, ExecutionEnd.DONE) for begin, end in ((10, 12), (20, 21), (30, 31), (40, 41))
    ]


def test_a_trial_whose_job_was_removed_is_tried_again(lane: Lane) -> None:
    lane.begins(12, 1)
    lane.log.removed(20)
    lane.log.submitted(22)
    lane.log.executes(30)
    lane.begins(31, 1)
    lane.ends(40, 1)
    assert lane.spans(1) == [(12, 20, ExecutionEnd.FAILED), (31, 40, ExecutionEnd.DONE)]
    job = read_job(lane.trial(1))
    assert job is not None
    assert job.attempts == 2


def test_a_running_trial_lasts_until_now(lane: Lane) -> None:
    now = lane.log.at(100)
    (own,) = read_between_trials(lane.root / "log", now=now)
    assert (own.end, own.seconds) == (ExecutionEnd.RUNNING, 90)
    lane.begins(12, 1)
    (stay,) = read_stays(lane.trial(1), now=now)
    assert (stay.end, stay.seconds) == (ExecutionEnd.RUNNING, 88)
    (own,) = read_between_trials(lane.root / "log", now=now)
    assert (own.end, own.seconds) == (ExecutionEnd.DONE, 2)
    assert is_executing(lane.trial(1))
    lane.ends(20, 1)
    (stay,) = read_stays(lane.trial(1), now=now)
    assert (stay.end, stay.seconds) == (ExecutionEnd.DONE, 8)
    assert [each.seconds for each in read_between_trials(lane.root / "log", now=now)] == [2, 80]
    assert not is_executing(lane.trial(1))


@pytest.fixture
def gang(tmp_path: Path) -> Lane:
    """A lane whose gang of two jobs executes since 10."""
    lane = Lane(tmp_path)
    lane.log.submitted(0, procs=2)
    for lane.log.proc in (1, 0):
        lane.log.executes(10, "ab"[lane.log.proc])
    return lane


def paid(lane: Lane, trials: int, now: float | None = None) -> float:
    """Return the cost of all of a lane's time, in seconds of a slot."""
    stays = [s for n in range(1, trials + 1) for s in read_stays(lane.trial(n), now=now)]
    between = read_between_trials(lane.root / "log", now=now)
    return round(sum(stay.usd or 0.0 for stay in [*stays, *between]) / USD_PER_SECOND, 3)


def test_the_time_of_all_of_a_gangs_jobs_is_divided(gang: Lane) -> None:
    gang.begins(12, 1)
    gang.log.proc = 1
    gang.log.evicted(15)
    gang.log.executes(18, "c")
    gang.ends(20, 1)  # whichever of its jobs the mark names
    gang.begins(21, 2)
    gang.ends(31, 2, code=-9)
    for gang.log.proc in (0, 1):
        gang.log.terminated(33)
    assert gang.spans(1) == [
        (12, 15, ExecutionEnd.EVICTED),
        (12, 20, ExecutionEnd.DONE),
        (18, 20, ExecutionEnd.DONE),
    ]
    assert gang.spans(2) == [(21, 31, ExecutionEnd.FAILED)] * 2
    assert sorted(gang.between()) == sorted(
        [(10, 12, ExecutionEnd.DONE), (20, 21, ExecutionEnd.DONE), (31, 33, ExecutionEnd.DONE)] * 2
    )
    assert paid(gang, 2) == 2 * 23 - 3
    job = read_job(gang.trial(1))
    assert job is not None
    assert (job.attempts, job.cpu_seconds, job.memory_mb) == (1, 4.5, 231.0)
    assert job.wall_seconds == 8, "they train at the same time"
    assert job.lost_usd == pytest.approx(3 * USD_PER_SECOND), "of what was cut off"


def test_a_running_gang_lasts_until_now(gang: Lane) -> None:
    gang.begins(12, 1)
    gang.ends(20, 1)
    assert paid(gang, 1, now=gang.log.at(100)) == 2 * 90
    assert sum(end is ExecutionEnd.RUNNING for *_, end in gang.between()) == 2
    gang.begins(21, 2)
    assert gang.spans(2) == [(21, 21, ExecutionEnd.RUNNING)] * 2
    assert paid(gang, 2, now=gang.log.at(100)) == 2 * 90


def test_a_gangs_trial_that_its_jobs_did_not_end_is_tried_again(gang: Lane) -> None:
    gang.begins(12, 1)
    for gang.log.proc in (0, 1):
        gang.log.removed(20)
    gang.log.submitted(22, procs=2)
    for gang.log.proc in (1, 0):
        gang.log.executes(30)
    gang.begins(31, 1)
    gang.ends(40, 1)
    job = read_job(gang.trial(1))
    assert job is not None
    assert job.attempts == 2
    assert gang.spans(1) == [(12, 20, ExecutionEnd.FAILED)] * 2 + [(31, 40, ExecutionEnd.DONE)] * 2


EVENTS = ("begins", "saved", "ends", "evicted", "executes", "terminated", "removed", "submitted")


@given(
    st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(1, 3)), max_size=30),
    st.integers(1, 2),
)
def test_the_note_on_a_log_equals_the_logs_contents(
    events: list[tuple[str, int]], procs: int
) -> None:
    with TemporaryDirectory() as folder:
        lane = Lane(Path(folder))
        lane.log.submitted(0, procs=procs)
        for second, (event, number) in enumerate(events, 1):
            lane.log.proc = number % procs
            match event:
                case "begins":
                    lane.begins(second, number)
                case "ends":
                    lane.ends(second, number, code=number - 1)
                case "saved":
                    lane.log.marks(second, f"A.l1.t{number:02} saved")
                case "executes":
                    lane.log.executes(second, "abc"[number - 1], priced=number > 1)
                case "submitted":
                    lane.log.submitted(second, procs=procs)
                case _:
                    getattr(lane.log, event)(second)
        log = lane.root / "log"
        note_log(log)
        assert noted_parts(log, untrusted_files.file_stamp(log)) == read_parts(log)


@pytest.fixture
def noted(lane: Lane) -> Lane:
    """A lane whose job is over, which was noted; the log itself can't be read any more."""
    lane.begins(12, 1)
    lane.ends(20, 1)
    lane.begins(21, 2)
    lane.ends(31, 2, code=-9)
    lane.log.marks(32, "best begins")
    lane.log.terminated(33)
    log = lane.root / "log"
    note_log(log)
    before = log.stat()
    log.write_bytes(b" " * before.st_size)
    os.utime(log, ns=(before.st_atime_ns, before.st_mtime_ns))
    (lane.root.parent / "b").mkdir()
    lane.root = lane.root.rename(lane.root.parent / "b/A.l1")  # nothing was read there
    return lane


def test_a_job_with_a_note_is_read_without_its_log(noted: Lane) -> None:
    assert noted.spans(2) == [(21, 31, ExecutionEnd.FAILED)]
    assert noted.between() == [
        (10, 12, ExecutionEnd.DONE),
        (20, 21, ExecutionEnd.DONE),
        (31, 32, ExecutionEnd.DONE),
    ]


@pytest.mark.parametrize("text", ["", "{", "[]\n", '{"of": 1}\n{}\n', "null\nnull\n"])
def test_a_damaged_note_is_ignored(noted: Lane, text: str) -> None:
    note_path(noted.root / "log").write_text(text)
    assert noted.spans(2) == noted.between() == []


def test_a_log_that_has_grown_is_read_instead_of_its_note(lane: Lane) -> None:
    lane.begins(12, 1)
    lane.log.evicted(20)
    note_log(lane.root / "log")
    assert lane.spans(1) == [(12, 20, ExecutionEnd.EVICTED)]
    lane.log.marks(21, "A.l1.t01 saved")
    lane.ends(32, 1)
    assert lane.spans(1) == [(12, 20, ExecutionEnd.DONE)]
