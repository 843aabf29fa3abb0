"""Readings of a job's event log. The events are recorded ones, of a real pool."""

from __future__ import annotations

import math
from datetime import datetime
from pathlib import Path

import pytest

from trialfleet.workflows.facts.jobs.executions import ExecutionEnd, read_events
from trialfleet.workflows.facts.jobs.job_log import (
    is_executing,
    read_executions,
    read_job,
    read_starts,
    read_stays,
)
from trialfleet.workflows.facts.run_folder.folder import TrialFolder

SUBMITTED = """\
000 ({job:03}.000.000) 2026-11-22 07:07:51.584 Job submitted from host: <127.0.0.1:22457>
    [ DAGNodeName = "A.l1.t01"; JobBatchName = "r1" ]
...
"""
EXECUTING = """\
040 (006.000.000) 2026-11-22 {at} Finished transferring input files
...
001 (006.000.000) 2026-11-22 {at} Job executing on host: <127.0.0.1:22457?addrs=127.0.0.1-22457>
\tSlotName: {slot}
\tCondorScratchDir = "/var/lib/condor/execute/dir_20569/scratch"
\tCpus = 1
\tDisk = 20480
\tGPUs = 0
\tMemory = 128
...
"""
USES = """\
006 (006.000.000) 2026-11-22 {at} Image size of job updated: 15832
\t12  -  MemoryUsage of job (MB)
\t{rss}  -  ResidentSetSize of job (KB)
{pss}...
"""
PSS = "\t{pss}  -  ProportionalSetSize of job (KB)\n"
EVICTED = """\
004 (006.000.000) 2026-11-22 {at} Job was evicted. Code 1022 Subcode 0
\t(0) CPU times
\t\tUsr 0 00:00:02, Sys 0 00:00:01  -  Run Remote Usage
\t\tUsr 0 00:00:00, Sys 0 00:00:00  -  Run Local Usage
\t279  -  Run Bytes Sent By Job
\t978  -  Run Bytes Received By Job
\tReason: Job vacated by schedd
\tPartitionable Resources :    Usage  Request Allocated
\t   Memory (MB)          :       12      100       128
...
"""
REQUEUED = """\
004 (006.000.000) 2026-11-22 {at} Job was evicted.
\t(0) Job terminated and was requeued
\t\tUsr 0 00:00:00, Sys 0 00:00:00  -  Run Remote Usage
\t\tUsr 0 00:00:00, Sys 0 00:00:00  -  Run Local Usage
\t0  -  Run Bytes Sent By Job
\t73057  -  Run Bytes Received By Job
\t{how}
\tThe job attribute OnExitRemove expression 'ExitBySignal =?= false' evaluated to FALSE
...
"""
TERMINATED = """\
005 (006.000.000) 2026-11-22 {at} Job terminated.
\t(1) Normal termination (return value 0)
\t\tUsr 1 02:01:05, Sys 0 00:00:00  -  Run Remote Usage
\t\tUsr 0 00:00:00, Sys 0 00:00:00  -  Run Local Usage
\t\tUsr 9 00:00:05, Sys 0 00:00:00  -  Total Remote Usage
\t\tUsr 0 00:00:00, Sys 0 00:00:00  -  Total Local Usage
\t1219  -  Run Bytes Sent By Job
\t1265  -  Run Bytes Received By Job
\t1498  -  Total Bytes Sent By Job
\t2243  -  Total Bytes Received By Job
\tPartitionable Resources :    Usage  Request Allocated
\t   Memory (MB)          :       12      100       128
...
"""
HELD = """\
012 (006.000.000) 2026-11-22 {at} Job was held.
\tthe trial used 700 MB of memory; it may use 64 MB
\tCode 3 Subcode 0
...
009 (006.000.000) 2026-11-22 07:30:00 Job was aborted.
\tThe job attribute PeriodicRemove expression evaluated to TRUE
...
"""
LOST = """\
022 (006.000.000) 2026-11-22 07:09:00 Job disconnected, attempting to reconnect
    Socket between submit and execute hosts closed unexpectedly
    Trying to reconnect to slot1@b <127.0.0.1:22457>
...
024 (006.000.000) 2026-11-22 07:09:40 Job reconnection failed
    Job not found at execution machine
    Can not reconnect to slot1@b, rescheduling job
...
"""
GIB = 1 << 20


def write(tmp_path: Path, *parts: str) -> TrialFolder:
    place = TrialFolder(tmp_path)
    place.log.write_text("".join(parts))
    return place


def executing(at: str, slot: str = "slot1_1@a") -> str:
    return EXECUTING.format(at=at, slot=slot)


def uses(at: str, rss: int, pss: int | None = None) -> str:
    return USES.format(at=at, rss=rss, pss="" if pss is None else PSS.format(pss=pss))


def unix(time: str) -> float:
    return datetime.fromisoformat(f"2026-11-22T{time}").timestamp()


def test_an_attempt_that_moved_is_one_attempt_of_two_executions(tmp_path: Path) -> None:
    job = read_job(
        write(
            tmp_path,
            SUBMITTED.format(job=6),
            executing("07:08:00.250"),
            uses("07:08:02.000", rss=3 * GIB, pss=GIB),
            EVICTED.format(at="07:08:05.250"),
            executing("07:09:00.000", slot="slot1_2@b"),
            uses("07:09:02.000", rss=3 * GIB, pss=2 * GIB),
            TERMINATED.format(at="07:09:30.500"),
        )
    )
    assert job is not None
    assert job.started == unix("07:08:00.250")
    assert job.ended == unix("07:09:30.500")
    assert (job.wall_seconds, job.last_wall_seconds, job.attempts) == (35.5, 35.5, 1)
    assert job.cpu_seconds == 3 + 86400 + 2 * 3600 + 65
    assert job.memory_mb == 2048  # shared memory counts once
    assert (job.machine, job.slot) == ("b", "slot1_2@b")


def test_unmeasured_processor_time_is_not_zero(tmp_path: Path) -> None:
    ended = TERMINATED.format(at="07:08:02").replace("Usr 1 02:01:05", "Usr 0 00:00:00")
    job = read_job(write(tmp_path, SUBMITTED.format(job=6), executing("07:08:00"), ended))
    assert job is not None
    assert (job.wall_seconds, job.cpu_seconds) == (2.0, None)


def test_the_time_of_all_attempts_and_that_of_the_last_one_are_read(tmp_path: Path) -> None:
    first = [SUBMITTED.format(job=6), executing("07:08:00.000"), TERMINATED.format(at="07:08:10")]
    never = [SUBMITTED.format(job=7)]  # removed while it waited for a slot
    held = [SUBMITTED.format(job=8), executing("07:20:00"), HELD.format(at="07:20:03")]
    job = read_job(write(tmp_path, *first, *never, *held))
    assert job is not None
    assert (job.wall_seconds, job.last_wall_seconds, job.attempts) == (13.0, 3.0, 2)
    assert job.ended == unix("07:20:03")  # not when the job that was held was removed


def test_a_lost_machine_ends_an_execution(tmp_path: Path) -> None:
    job = read_job(
        write(
            tmp_path,
            SUBMITTED.format(job=6),
            executing("07:08:00"),
            LOST,
            executing("08:00:00", slot="slot1@c"),
            TERMINATED.format(at="08:00:01"),
        )
    )
    assert job is not None
    assert (job.wall_seconds, job.attempts, job.machine) == (101.0, 1, "c")


def test_a_new_execution_ends_the_previous_one_whose_shadow_was_killed(
    tmp_path: Path,
) -> None:
    parts = [executing("09:00:02"), uses("09:00:12", 64), executing("09:00:20", "slot1_1@b")]
    place = write(tmp_path, SUBMITTED.format(job=6), *parts, TERMINATED.format(at="09:00:30"))
    first, second = read_starts(place)
    assert (first.is_over, first.end) == (True, ExecutionEnd.EVICTED)
    assert first.began < first.ended <= second.began
    assert first.seconds == 10, "by its last sign of life, not by the transfer for the second"
    assert "shadow" in first.reason
    assert (second.end, second.machine) == (ExecutionEnd.DONE, "b")
    assert not is_executing(place)


def test_the_resident_set_counts_if_shared_memory_is_not_measured(tmp_path: Path) -> None:
    parts = [SUBMITTED.format(job=6), executing("07:08:00"), uses("07:08:01", rss=GIB)]
    job = read_job(write(tmp_path, *parts, uses("07:08:02", rss=GIB // 2)))
    assert job is not None
    assert job.memory_mb == 1024
    assert job.ended == unix("07:08:02")  # the last that was heard of it


def test_an_execution_without_an_end_event_has_an_unknown_end(tmp_path: Path) -> None:
    removed = "009 (006.000.000) 2026-11-22 {at} Job was aborted.\n...\n"
    parts = [
        *(SUBMITTED.format(job=6), executing("07:08:00"), removed.format(at="07:10:00")),
        *(SUBMITTED.format(job=7), executing("08:00:00")),  # the end was not seen
        *(SUBMITTED.format(job=8), executing("09:00:00")),
    ]
    assert read_executions(write(tmp_path, *parts).log) == [
        (unix("07:08:00"), unix("07:10:00")),
        (unix("08:00:00"), None),
        (unix("09:00:00"), math.inf),
    ]
    assert read_executions(tmp_path / "no log") == []


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("(0) Abnormal termination (signal 9)\n\t(0) No core file", "signal 9 killed its agent"),
        ("(1) Normal termination (return value 86)", "its agent exited with code 86"),
    ],
)
def test_a_requeued_job_is_reported_with_its_agents_end(
    tmp_path: Path, how: str, reason: str
) -> None:
    place = write(
        tmp_path,
        SUBMITTED.format(job=6),
        executing("07:08:00"),
        REQUEUED.format(at="07:08:05.000", how=how),
    )
    assert [each.reason for each in read_starts(place)] == [reason]


def test_a_clock_that_was_set_back_gives_no_negative_time(tmp_path: Path) -> None:
    parts = [SUBMITTED.format(job=6), executing("07:08:00"), TERMINATED.format(at="06:08:00")]
    job = read_job(write(tmp_path, *parts))
    assert job is not None
    assert (job.wall_seconds, job.last_wall_seconds) == (0.0, 0.0)


@pytest.mark.parametrize("text", ["", "no event log\n", SUBMITTED.format(job=6), "\0" * 100])
def test_a_log_without_an_execution_gives_no_job(tmp_path: Path, text: str) -> None:
    assert read_job(write(tmp_path, text)) is None
    assert read_job(TrialFolder(tmp_path / "missing")) is None


def test_new_events_of_a_grown_log_and_all_of_a_replaced_log_are_read(tmp_path: Path) -> None:
    text = SUBMITTED.format(job=7) + executing("07:08:00.000")
    end = TERMINATED.format(at="07:09:00.000")
    place = write(tmp_path, text)
    before = len(read_events(place.log))
    assert read_events(place.log)[-1].kind == "EXECUTE"
    for added, known in ((end[:50], before), (end[50:], before + 1)):  # it is being written
        with place.log.open("a") as file:
            file.write(added)
        assert len(read_events(place.log)) == known
    assert read_executions(place.log) == [(unix("07:08:00"), unix("07:09:00"))]
    place.log.write_text(text.replace("(007.", "(008.") + text)
    assert read_events(place.log)[0].cluster == 8
    assert len(read_events(place.log)) == 2 * before
    place.log.write_text(text)
    assert len(read_events(place.log)) == before


@pytest.mark.slow
def test_a_truncated_log_is_read_up_to_its_end(tmp_path: Path) -> None:
    whole = SUBMITTED.format(job=6) + executing("07:08:00") + TERMINATED.format(at="07:08:10")
    for length in range(50, len(whole), 150):
        job = read_job(write(tmp_path, whole[:length]))
        assert job is None or job.started == unix("07:08:00")


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage",
    [
        "\0" * 4096 + "\n...\n",  # a block of the file that was lost with the machine's power
        USES.format(at="07:07:59", rss=1, pss="")[:40],  # a full disk
        USES.format(at="07:07:59", rss=1, pss="")[:7],
        "008 (006.000.000) 2026-11-22 07:07:59.000 trialfleet: A.l1",
        "008 (006.000.000) 2026-99-99 07:07:59.000 trialfleet: A.l1.t01 begins\n...\n",
        SUBMITTED.format(job=6).replace("000", "099", 1),  # of a newer HTCondor
        "012 (006.000.000) 2026-11-22 07:07:59 Job was held.\n\t\udcff\n\tCode 3 Subcode 0\n...\n",
    ],
    ids=["zeros", "half", "half a number", "half a mark", "no time", "unknown", "no UTF-8"],
)
@pytest.mark.parametrize("at_once", [True, False])
def test_an_unreadable_event_hides_no_other_event(
    tmp_path: Path, damage: str, *, at_once: bool
) -> None:
    place = write(tmp_path, SUBMITTED.format(job=6))
    for part in (damage, executing("07:08:00"), TERMINATED.format(at="07:09:00")):
        with place.log.open("a", errors="surrogateescape") as file:
            file.write(part)
        if not at_once:
            read_events(place.log)
    kinds = [event.kind for event in read_events(place.log)]
    kept = [kind for kind in kinds if kind != "GENERIC"]  # what is left of half a mark
    assert kept == ["SUBMIT", "FILE_TRANSFER", "EXECUTE", "JOB_TERMINATED"]
    assert read_executions(place.log) == [(unix("07:08:00"), unix("07:09:00"))]


# A quarter of a node with four GPUs, at 4 USD per hour: 1 USD per hour.
PRICED = """\
001 (006.000.000) 2026-11-22 {at} Job executing on host: <127.0.0.1:22457?addrs=127.0.0.1-22457>
\tSlotName: slot1_1@{machine}
\tCpus = 1
\tGPUs = 1
\tMemory = 128
\tTotalCpus = 16.0
\tTotalGPUs = 4
\tTotalMemory = 64000
\tTrialfleetInstance = "i-{machine}"
\tTrialfleetPricePerHour = 4.0
...
"""
EXIT_1 = TERMINATED.replace("value 0", "value 1")


def priced(at: str, machine: str = "a") -> str:
    return PRICED.format(at=at, machine=machine)


def test_an_execution_costs_its_share_of_its_nodes_price(tmp_path: Path) -> None:
    place = write(
        tmp_path,
        SUBMITTED.format(job=6),
        priced("07:00:00"),
        EXIT_1.format(at="07:06:00"),
        SUBMITTED.format(job=7),
        priced("08:00:00"),
        EVICTED.format(at="08:12:00"),
        priced("08:30:00", "b"),
        TERMINATED.format(at="09:00:00"),
    )
    stays = read_stays(place)
    found = [(stay.instance, stay.end, stay.usd) for stay in stays]
    assert found == [("i-a", "failed", 0.1), ("i-a", "evicted", 0.2), ("i-b", "done", 0.5)]
    job = read_job(place)
    assert job is not None
    assert (job.usd, job.lost_usd) == (0.8, 0.3)
    failed_job = read_job(place, failed=True)
    assert failed_job is not None
    assert (failed_job.usd, failed_job.lost_usd) == (0.8, 0.8)


def test_the_cost_of_a_running_execution_counts_until_now(tmp_path: Path) -> None:
    place = write(tmp_path, SUBMITTED.format(job=6), priced("07:00:00"))
    (stay,) = read_stays(place, now=unix("07:30:00"))
    assert (stay.end, stay.usd) == ("running", 0.5)
    (stay,) = read_stays(place)
    assert stay.usd == 0


def test_a_node_without_a_price_costs_the_studys_price_or_an_unknown_one(tmp_path: Path) -> None:
    silent = "".join(
        line for line in priced("07:00:00").splitlines(keepends=True) if "Price" not in line
    )
    place = write(tmp_path, SUBMITTED.format(job=6), silent, TERMINATED.format(at="07:30:00"))
    assert [stay.usd for stay in read_stays(place, 8.0)] == [1.0]
    assert [stay.usd for stay in read_stays(place)] == [None]
    job = read_job(place)
    assert job is not None
    assert (job.usd, job.lost_usd) == (None, None)
    old = write(
        tmp_path, SUBMITTED.format(job=6), executing("07:00:00"), TERMINATED.format(at="08")
    )
    assert [stay.usd for stay in read_stays(old, 8.0)] == [None]  # the node's size is unknown


def of(proc: int, text: str) -> str:
    """Return the event of another of a gang's jobs."""
    return text.replace("(006.000.", f"(006.{proc:03}.")


def test_jobs_of_a_gang_are_one_attempt_with_executions_of_their_own(tmp_path: Path) -> None:
    submitted = SUBMITTED.format(job=6)
    place = write(
        tmp_path,
        submitted + of(1, submitted) + of(2, submitted),
        executing("07:08:00.000"),
        of(1, executing("07:08:10.000", slot="slot1_2@b")),
        of(1, EVICTED.format(at="07:08:20.000")),
        of(1, executing("07:08:40.000", slot="slot1_1@c")),
        TERMINATED.format(at="07:09:00.000"),
        of(1, TERMINATED.format(at="07:09:10.000")),  # proc 2 waited all the time
    )
    job = read_job(place)
    assert job is not None
    assert (job.attempts, job.wall_seconds, job.machine) == (1, 70.0, "c")
    stays = read_stays(place)
    assert [(stay.machine, stay.ended - stay.began) for stay in stays] == [
        ("a", 60.0),
        ("b", 10.0),
        ("c", 30.0),
    ]
    again = SUBMITTED.format(job=7).replace("(007.000.", "(007.001.")
    place.log.write_text(place.log.read_text() + SUBMITTED.format(job=7) + again)
    found = read_job(place)
    assert found is not None
    assert found.attempts == 1


def test_executions_of_a_running_gang_count_until_now(tmp_path: Path) -> None:
    submitted = SUBMITTED.format(job=6)
    place = write(
        tmp_path,
        submitted + of(1, submitted),
        executing("07:08:00.000"),
        of(1, executing("07:08:10.000")),
    )
    stays = read_stays(place, now=unix("07:09:00"))
    assert [stay.ended - stay.began for stay in stays] == [60.0, 50.0]
    assert is_executing(place)
