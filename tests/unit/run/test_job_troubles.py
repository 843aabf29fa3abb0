"""Troubles of jobs that make no progress, with the events of real pools."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import classad2
import pytest

from tests.conftest import MakeRun
from trialfleet.workflows.control.plan.trial_json_and_submit_file import TrialFiles, TrialOrder
from trialfleet.workflows.facts.dagman.running_scripts import ScriptFacts
from trialfleet.workflows.facts.jobs.job_facts import JobFacts, read_jobs
from trialfleet.workflows.facts.jobs.job_log import read_starts, read_stays
from trialfleet.workflows.facts.run_folder.folder import RunFolder, TrialFolder
from trialfleet.workflows.rules.jobs_without_progress import (
    EVICTED,
    MOST_WASTED,
    STUCK,
    JobTrouble,
    job_troubles,
)

SUBMITTED = """\
000 (012.000.000) 2026-11-25 02:00:00.000 Job submitted from host: <127.0.0.1:30136>
    [ DAGNodeName = "A.l1.t01"; JobBatchName = "r1" ]
...
"""
EXECUTES = """\
040 (012.000.000) 2026-11-25 {at}.000 Finished transferring input files
...
001 (012.000.000) 2026-11-25 {at}.000 Job executing on host: <127.0.0.1:30136?addrs=127.0.0.1-30136>
\tSlotName: slot1_1@{machine}
\tCondorScratchDir = "/var/lib/condor/execute/dir_19471/scratch"
\tCpus = 1
\tDisk = 10240
\tGPUs = 0
\tMemory = 128
...
"""
# The starter was killed, or died.
STARTER_GONE = """\
022 (012.000.000) 2026-11-25 {at}.000 Job disconnected, attempting to reconnect
    Socket between submit and execute hosts closed unexpectedly
    Trying to reconnect to slot1_1@a <127.0.0.1:30136?addrs=127.0.0.1-30136>
...
024 (012.000.000) 2026-11-25 {at}.500 Job reconnection failed
    Job not found at execution machine
    Can not reconnect to slot1_1@a, rescheduling job
...
004 (012.000.000) 2026-11-25 {at}.510 Job was evicted. Code 1008 Subcode 0
\t(0) CPU times
\t\tUsr 0 00:00:00, Sys 0 00:00:00  -  Run Remote Usage
\t\tUsr 0 00:00:00, Sys 0 00:00:00  -  Run Local Usage
\t0  -  Run Bytes Sent By Job
\t15  -  Run Bytes Received By Job
\tReason: Job not found at execution machine
...
"""
VACATED = """\
008 (012.000.000) 2026-11-25 {at}.000 trialfleet: A.l1.t01 saved
...
004 (012.000.000) 2026-11-25 {at}.010 Job was evicted. Code 1022 Subcode 0
\t(0) CPU times
\t\tUsr 0 00:00:00, Sys 0 00:00:00  -  Run Remote Usage
\t\tUsr 0 00:00:00, Sys 0 00:00:00  -  Run Local Usage
\t{sent}  -  Run Bytes Sent By Job
\t68  -  Run Bytes Received By Job
\tReason: Job vacated by schedd
...
"""
BEFORE_EXECUTION = """\
007 (012.000.000) 2026-11-25 {at}.000 Shadow exception!
\tFailed to start job: starter exited
\t0  -  Run Bytes Sent By Job
\t0  -  Run Bytes Received By Job
...
"""


def unix(time: str) -> float:
    return datetime.fromisoformat(f"2026-11-25T{time}").timestamp()


def executes(at: str, machine: str = "a") -> str:
    return EXECUTES.format(at=at, machine=machine)


def starts(count: int, seconds: int, end: str, every: int = 60, **more: str) -> str:
    """Return executions of the given seconds each, one after the other."""

    def clock(second: int) -> str:
        return f"02:{second // 60:02}:{second % 60:02}"

    return "".join(
        executes(clock(every * n), **more)
        + end.format(at=clock(every * n + seconds), sent=2, **more)
        for n in range(count)
    )


def facts(tmp_path: Path, *events: str, **more: object) -> JobFacts:
    place = TrialFolder(tmp_path)
    place.log.write_text("".join((SUBMITTED, *events)))
    job = JobFacts(
        region="A",
        node="A.l1.t01",
        job="12.0",
        status=1,
        since=0.0,
        starts=tuple(read_starts(place)),
    )
    return replace(job, **more)  # type: ignore[arg-type]


def troubles(job: JobFacts, at: str) -> list[JobTrouble]:
    return job_troubles([job], unix(at))


def test_a_trial_whose_starter_dies_three_times_is_in_trouble(tmp_path: Path) -> None:
    two = facts(tmp_path, starts(2, 6, STARTER_GONE))
    assert not troubles(two, "02:02:00")
    (found,) = troubles(facts(tmp_path, starts(3, 6, STARTER_GONE)), "02:03:00")
    assert (found.kind, found.machine, found.error) == ("evictions", "a", "")
    assert found.reason == "Job not found at execution machine"
    assert str(found) == (
        "A.l1.t01: its job 12.0 was evicted 3 times since 02:00, the last time from a: "
        "Job not found at execution machine; it lost 20 s of work and kept 0 s; "
        "3 start(s) in a row kept no work; after 5 the attempt fails"
    )


def test_three_evictions_are_no_trouble_after_ten_minutes(tmp_path: Path) -> None:
    job = facts(tmp_path, starts(3, 6, STARTER_GONE), executes("02:03:00"))
    assert troubles(job, "02:05:00")
    assert not troubles(job, "02:20:00")


def test_evictions_for_different_reasons_are_no_trouble(tmp_path: Path) -> None:
    ends = (STARTER_GONE, VACATED, STARTER_GONE)
    events = (
        executes(f"02:0{n}:00") + end.format(at=f"02:0{n}:09", sent=0) for n, end in enumerate(ends)
    )
    assert not troubles(facts(tmp_path, *events), "02:03:00")


def test_more_work_lost_than_kept_is_a_trouble(tmp_path: Path) -> None:
    long = starts(2, 1000, STARTER_GONE, every=1200)
    (found,) = troubles(facts(tmp_path, long), "02:37:00")
    assert "it lost 2001 s of work and kept 0 s" in found.what
    runs = facts(tmp_path, long, executes("02:40:00"))
    assert troubles(runs, "02:50:00")
    assert not troubles(runs, "03:30:00")  # it has done more since


@pytest.mark.parametrize(
    "end", [STARTER_GONE, BEFORE_EXECUTION], ids=["the starter dies", "it never executes"]
)
def test_starts_that_keep_no_work_are_a_failed_attempt(tmp_path: Path, end: str) -> None:
    def job(count: int) -> JobFacts:
        events = starts(count, 6, end)
        if end is BEFORE_EXECUTION:
            events = "".join(end.format(at=f"02:0{n}:00") for n in range(count))
        return facts(tmp_path, events)

    assert [each.error for each in troubles(job(MOST_WASTED - 1), "02:06:00")] == [""]
    (found,) = troubles(job(MOST_WASTED), "02:06:00")
    assert found.error.startswith(f"{EVICTED}: 5 starts in a row kept no work, the last one ended")
    assert found.error.endswith(found.reason)


def test_interruptions_that_saved_a_checkpoint_are_no_failed_attempt(tmp_path: Path) -> None:
    (found,) = troubles(facts(tmp_path, starts(20, 30, VACATED)), "02:21:00")
    assert not found.error  # reported, as there were three within ten minutes
    assert not troubles(facts(tmp_path, starts(8, 300, VACATED, every=400)), "02:55:00")


def test_a_checkpoint_resets_the_count(tmp_path: Path) -> None:
    events = starts(4, 6, STARTER_GONE) + executes("02:04:00")
    events += VACATED.format(at="02:05:00", sent=9) + executes("02:06:00")
    events += STARTER_GONE.format(at="02:06:06")
    (found,) = troubles(facts(tmp_path, events), "02:07:00")
    assert "1 start(s) in a row" in found.what
    assert not found.error


def test_an_execution_longer_than_the_others_does_not_fail_its_attempt(tmp_path: Path) -> None:
    job = facts(tmp_path, starts(6, 6, STARTER_GONE), executes("02:06:00"))
    assert troubles(job, "02:06:03")[0].error
    assert not troubles(job, "02:09:00")[0].error


def test_evictions_of_a_gangs_rank_do_not_fail_its_attempt(tmp_path: Path) -> None:
    (found,) = troubles(facts(tmp_path, starts(9, 6, STARTER_GONE), is_rank=True), "02:10:00")
    assert not found.error


@pytest.mark.parametrize(
    ("status", "seconds", "words"),
    [
        (3, 601, "removed but has stayed in the queue for 10 min"),
        (4, 121, "completed but has stayed in the queue for 2 min"),
        (6, 701, "sending its output for 12 min on a"),
        (7, 601, "suspended for 10 min on a"),
        (9, 701, "waiting for the files that it shares with other jobs for 12 min"),
        (2, 701, "receiving its input for 12 min on a"),
    ],
)
def test_a_job_that_stays_in_a_passing_state_is_in_trouble(
    status: int, seconds: int, words: str
) -> None:
    job = JobFacts(
        region="A",
        node="A.best",
        job="12.0",
        status=status,
        since=1000.0,
        machine="a",
        starts=(),
        input_mb=100.0,
        disk_mb=100.0,
    )
    (found,) = job_troubles([job], 1000.0 + seconds)
    assert found.kind == "stuck"
    assert words in str(found)
    assert not job_troubles([job], 1000.0 + seconds - 2)
    (late,) = job_troubles([job], 1000.0 + 3 * seconds + 1)
    fails = status not in {3, 4}  # removing it would change nothing, or lose its result
    assert bool(late.error) is fails
    assert late.error.startswith(f"{STUCK}: its job was " if fails else "")


def test_a_job_that_waits_executes_or_is_held_is_in_no_trouble(tmp_path: Path) -> None:
    executing = facts(tmp_path, executes("02:00:00"), status=2)
    waiting = replace(executing, status=1, starts=())
    unread = replace(executing, starts=None)
    assert not job_troubles([executing, waiting, replace(waiting, status=5), unread], 1e10)


def test_a_script_that_does_not_end_is_a_trouble() -> None:
    script = ScriptFacts(region="A", node="A.l1.t02", script="POST", since=1000.0)
    assert not job_troubles([], 1200.0, [script])
    (found,) = job_troubles([], 1480.0, [script])
    assert str(found) == "A.l1.t02: its POST script has not ended for 8 min"


def test_work_that_a_checkpoint_saved_is_not_lost(tmp_path: Path) -> None:
    events = starts(1, 30, VACATED) + executes("02:01:00") + STARTER_GONE.format(at="02:01:30")
    (tmp_path / "log").write_text(SUBMITTED + events)
    saved, lost = read_stays(TrialFolder(tmp_path))
    assert saved.lost_seconds == pytest.approx(0.01, rel=0.1)
    assert lost.lost_seconds == 30.5


def ad(**more: object) -> dict[str, object]:
    return {
        "ClusterId": 12, "ProcId": 0, "JobStatus": 2, "JobUniverse": 5, "NumShadowStarts": 1,
        "EnteredCurrentStatus": 1000, "TrialfleetNode": "A.l1.t01", "TrialfleetRegion": "A",
        "TrialfleetMode": "tune", **more,
    }  # fmt: skip


def test_a_log_is_read_only_if_it_can_show_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path)
    log = folder.region("A").trial("A.l1.t01").log
    log.parent.mkdir(parents=True)
    log.write_text(SUBMITTED + executes("02:00:00"))

    def is_read(now: float, **more: object) -> bool:
        monkeypatch.setattr(time, "time", lambda: now)
        (job,) = read_jobs(folder, [ad(**more)])
        assert job.job == "12.0"
        return job.starts is not None

    assert not is_read(1010)
    assert is_read(1010, NumShadowStarts=2)
    assert is_read(9000)
    assert not is_read(9000, JobCurrentStartExecutingDate=1002)
    assert is_read(9000, JobCurrentStartExecutingDate=900)  # of the start before
    assert not is_read(9000, JobStatus=1)
    assert read_jobs(folder, [ad(JobUniverse=12)]) == []


@pytest.mark.parametrize(
    ("job", "is_removed"),
    [
        ({"JobStatus": 1, "NumVacates": 21, "RemoteWallClockTime": 200.0}, True),
        ({"JobStatus": 1, "NumVacates": 20, "RemoteWallClockTime": 200.0}, False),
        ({"JobStatus": 1, "NumVacates": 21, "RemoteWallClockTime": 36000.0}, False),
        ({"JobStatus": 2, "NumVacates": 21, "RemoteWallClockTime": 200.0}, False),
        ({"JobStatus": 1, "RemoteWallClockTime": 0.0}, False),
        ({"JobStatus": 5, "HoldReasonCode": 1, "RemoteWallClockTime": 0.0}, False),
    ],
)
def test_without_a_supervisor_the_submit_file_limits_evictions(
    make_run: MakeRun, job: dict[str, object], is_removed: bool
) -> None:
    run = make_run()
    folder = RunFolder(run.folder)
    order = TrialOrder(region="A", node="A.l1.t01", trial=0, mode="tune", seed=1, params={})
    place = folder.region("A").trial("A.l1.t01")
    text = TrialFiles("r1", run.study, folder, place, order).submit_text()
    (line,) = re.findall(r"^periodic_remove = (.*)$", text, re.MULTILINE)
    found = classad2.ExprTree(line).eval(classad2.ClassAd(job))
    assert found is is_removed
