"""Detection of a stalled run, and its repair. Ads and files are made up."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeRun
from trialfleet import programs
from trialfleet.classads import JobStatus, Universe
from trialfleet.files import write_json
from trialfleet.workflows.control.dagman import supervisor
from trialfleet.workflows.control.dagman.repair import BusyError, repair
from trialfleet.workflows.control.dagman.supervisor import Supervisor
from trialfleet.workflows.facts.dagman.failing_scripts import note_failure
from trialfleet.workflows.facts.dagman.recovery_files import is_locked, set_aside
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.status import run_faults
from trialfleet.workflows.status.common_file_transfers import REPAIR
from trialfleet.workflows.status.run_faults import Fault, Remedy, faults
from trialfleet.workflows.status.status_reader import StatusReader

NOW = 1_800_000_000.0
ROOT, REGION = 7, 8  # cluster ids
SUBMITTED = """\
[ Type = "DagStatus"; DagStatus = 3; ]
[ Type = "NodeStatus"; Node = "A.l1.t01"; NodeStatus = 3; StatusDetails = "not_idle"; ]
[ Type = "NodeStatus"; Node = "A.best"; NodeStatus = 0; StatusDetails = ""; ]
"""


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    (tmp_path / "regions" / "A").mkdir(parents=True)
    run = RunFolder(tmp_path)
    for status in (run.dag_files.node_status, run.region("A").dag_files.node_status):
        status.write_text("")
        os.utime(status, (NOW - 5, NOW - 5))
    return run


def dagman(folder: RunFolder, **changes: Any) -> dict[str, Any]:
    ad = {
        "ClusterId": ROOT,
        "JobStatus": JobStatus.RUNNING,
        "JobUniverse": Universe.SCHEDULER,
        "EnteredCurrentStatus": NOW - 1000,
        "TrialfleetFolder": str(folder.root),
    }
    return ad | changes


def region(folder: RunFolder, **changes: Any) -> dict[str, Any]:
    own = {"ClusterId": REGION, "DAGManJobId": ROOT, "DAGNodeName": "A", "TrialfleetRegion": "A"}
    return dagman(folder, **(own | changes))


def only(found: list[Fault]) -> Fault:
    assert len(found) == 1, found
    return found[0]


def test_a_healthy_run_has_no_fault(folder: RunFolder) -> None:
    assert faults(folder, [dagman(folder), region(folder)], NOW) == []


def test_a_dagman_that_is_to_be_restarted_is_shown_and_given_time(folder: RunFolder) -> None:
    cooling = {"JobStatus": JobStatus.IDLE, "ExitCode": 4, "JobCoolDownExpiration": NOW + 5}
    fault = only(faults(folder, [dagman(folder), region(folder, **cooling)], NOW))
    assert str(fault) == "A: its DAGMan ended with exit code 4 and will be restarted"
    assert (fault.remedy, fault.patience > 5) == (Remedy.REPLACE, True)


def test_a_dagman_that_was_killed_with_its_pool_has_no_exit_code(folder: RunFolder) -> None:
    cooling = {"JobStatus": JobStatus.IDLE, "JobCoolDownExpiration": NOW + 5}
    fault = only(faults(folder, [dagman(folder), region(folder, **cooling)], NOW))
    assert str(fault) == "A: its DAGMan was killed and will be restarted"


@pytest.mark.usefixtures("empty_queue")
def test_status_names_a_region_under_repair(make_run: MakeRun) -> None:
    run = RunFolder(make_run(regions={"My Region": {}}).folder)
    (slug,) = (place.name for place in (run.root / "regions").iterdir())
    write_json(run.region(slug).restart, {"reason": "its DAGMan was killed"})
    entry = {"time": "2026-11-22T07:00:00+00:00", "what": "its DAGMan was killed", "remedy": "kick"}
    write_json(run.repairs, [entry | {"region": slug}, entry | {"region": None}])
    status = StatusReader(run).read()
    assert status.troubles == ("My Region: another DAGMan takes over: its DAGMan was killed",)
    assert [each["region"] for each in status.repairs] == ["My Region", None]


def test_a_long_cool_down_is_cut_short(folder: RunFolder) -> None:
    cooling = {"JobStatus": JobStatus.IDLE, "ExitCode": 4, "JobCoolDownExpiration": NOW + 300}
    assert only(faults(folder, [dagman(folder, **cooling)], NOW)).patience == 0


@pytest.mark.parametrize(("code", "remedy"), [(1, Remedy.NONE), (7, Remedy.RELEASE)])
def test_only_a_hold_by_a_person_is_not_released(
    folder: RunFolder, code: int, remedy: Remedy
) -> None:
    held = {"JobStatus": JobStatus.HELD, "HoldReasonCode": code, "HoldReason": "no space"}
    fault = only(faults(folder, [dagman(folder, **held)], NOW))
    assert (fault.remedy, "no space" in fault.what) == (remedy, True)
    assert fault.for_person().remedy is Remedy.RELEASE


def test_a_silent_dagman_is_restarted(folder: RunFolder) -> None:
    os.utime(folder.dag_files.node_status, (NOW - 1000, NOW - 1000))
    assert only(faults(folder, [dagman(folder), region(folder)], NOW)).remedy is Remedy.KICK
    young = dagman(folder, EnteredCurrentStatus=NOW - 10)
    assert faults(folder, [young, region(folder)], NOW) == []


def test_a_silent_dagman_is_reported_within_a_minute_and_restarted_later(
    folder: RunFolder, repairs: Repairs
) -> None:
    for status in (folder.dag_files.node_status, folder.region("A").dag_files.node_status):
        os.utime(status, (NOW, NOW))
    ads = [dagman(folder), region(folder)]
    assert faults(folder, ads, NOW + 30) == []  # of a process that is stopped for so long, say
    found = faults(folder, ads, NOW + 60)
    silent = "its DAGMan has not written its status for more than 45 s"
    assert [str(fault) for fault in found] == [silent, f"A: {silent}"]
    watch = Supervisor(repairs)
    for second in range(0, 240, 5):
        watch.check([folder], ads, NOW + second, second)
        assert second > 180 or not repairs.noted  # a full disk keeps it silent, too
    assert repairs.noted[0] is Remedy.KICK


@pytest.mark.parametrize("step", [-7200, 7200])
def test_a_dagman_has_time_to_write_its_status_after_the_clock_was_set(
    folder: RunFolder, step: float
) -> None:
    os.utime(folder.dag_files.node_status, (NOW, NOW))  # by the clock as it was
    fault = only(faults(folder, [dagman(folder)], NOW + step))
    assert (fault.remedy, fault.patience > 5) == (Remedy.KICK, True)
    os.utime(folder.dag_files.node_status, (NOW + step, NOW + step))
    assert faults(folder, [dagman(folder)], NOW + step) == []


def test_a_node_whose_job_is_in_no_queue_is_found(folder: RunFolder) -> None:
    folder.region("A").dag_files.node_status.write_text(SUBMITTED)
    os.utime(folder.region("A").dag_files.node_status, (NOW, NOW))
    own = {"ClusterId": 9, "JobUniverse": 5, "DAGManJobId": REGION, "DAGNodeName": "A.l1.t01"}
    trial = dagman(folder, **own)
    assert faults(folder, [dagman(folder), region(folder), trial], NOW) == []
    fault = only(faults(folder, [dagman(folder), region(folder)], NOW))
    assert (fault.remedy, fault.is_sure) == (Remedy.REPLACE, False)
    assert "A.l1.t01" in fault.what


IN_POST = SUBMITTED.replace("NodeStatus = 3", "NodeStatus = 4")


TRIAL = 9  # the cluster id of a trial's job
STARTED, FINISHED = "TransferStarted", "TransferFinished"


def transfers(folder: RunFolder, *events: tuple[str, float], node: str = "A.l1.t01") -> None:
    """Write a trial's log: what HTCondor did with common files, and how long ago."""
    log = folder.region("A").trial(node).log
    log.parent.mkdir(parents=True, exist_ok=True)
    made = (
        f"047 ({TRIAL:03}.-1000.000) {datetime.fromtimestamp(NOW - ago)} "
        f"Common files event: {what}\n\t{what}\n...\n"
        for what, ago in events
    )
    log.write_text("".join(made))


def trial(folder: RunFolder, **changes: Any) -> dict[str, Any]:
    """Return a trial's job that waits for its region's files, for a minute."""
    own = {
        "ClusterId": TRIAL,
        "JobUniverse": 5,
        "JobStatus": JobStatus.BLOCKED,
        "DAGManJobId": REGION,
        "DAGNodeName": "A.l1.t01",
        "TrialfleetNode": "A.l1.t01",
        "TrialfleetMode": "tune",
        "TrialfleetRegion": "A",
        "EnteredCurrentStatus": NOW - 60,
    }
    return dagman(folder, **(own | changes))


def hopeless(folder: RunFolder, *jobs: dict[str, Any]) -> list[str | None]:
    """Return the nodes of the trials whose wait for files is hopeless."""
    found = faults(folder, [dagman(folder), region(folder), *jobs], NOW)
    assert {fault.remedy for fault in found} <= {Remedy.COPY}
    return [fault.node for fault in found]


@pytest.mark.parametrize(
    ("events", "seconds", "is_hopeless"),
    [
        pytest.param([(STARTED, 62), (FINISHED, 61)], 60, True, id="sent, and not started"),
        pytest.param([(STARTED, 12), (FINISHED, 6)], 5, False, id="sent just now"),
        pytest.param([(STARTED, 4000)], 4000, False, id="a large file"),
        pytest.param([(STARTED, 90), (FINISHED, 80), (STARTED, 60)], 60, False, id="sent again"),
        pytest.param([(STARTED, 90)], 60, True, id="the sender was killed"),
        pytest.param([], 60, True, id="never sent"),
        pytest.param([], 5, False, id="soon to be sent"),
    ],
)
def test_a_trial_that_waits_for_files_without_a_sender_is_found(
    folder: RunFolder, events: list[tuple[str, float]], seconds: float, is_hopeless: bool
) -> None:
    transfers(folder, *events)
    job = trial(folder, EnteredCurrentStatus=NOW - seconds)
    assert hopeless(folder, job) == (["A.l1.t01"] if is_hopeless else [])


def test_a_trial_may_wait_for_files_that_are_sent_for_another_trial(folder: RunFolder) -> None:
    transfers(folder, (STARTED, 3000))
    sender = trial(folder, EnteredCurrentStatus=NOW - 3000)
    waiting = trial(folder, ClusterId=TRIAL + 1, TrialfleetNode="A.l2.t01")
    assert hopeless(folder, sender, waiting) == []
    transfers(folder, (STARTED, 3000), (FINISHED, 40))
    assert hopeless(folder, sender, sender, waiting) == ["A.l1.t01", "A.l2.t01"]  # two of a gang


def test_a_service_is_started_for_jobs_that_ask_without_one(folder: RunFolder) -> None:
    place = folder.region("A").trial("A.l1")
    place.words.mkdir(parents=True)
    write_json(place.order, {"schema": 1, "token": "", "turn": 0, "do": "ask"})
    said = {"job": "9.0", "token": "ab", "turn": 1, "say": "ask", "time": NOW}
    job = trial(folder, JobStatus=JobStatus.RUNNING, TrialfleetNode="A.l1")

    def found() -> list[Fault]:
        return faults(folder, [dagman(folder), region(folder), job], NOW)

    assert found() == []
    write_json(place.said, said)
    fault = only(found())
    assert (fault.remedy, fault.region, fault.patience > 5) == (Remedy.SERVE, "A", True)
    with socket.socket(socket.AF_UNIX) as service:
        service.bind(str(folder.root / "service.sock"))
        service.listen()
        assert found() == []
    write_json(place.order, {"schema": 1, "token": "ab", "turn": 1, "do": "leave"})
    assert found() == []


def test_a_repair_that_was_interrupted_before_the_release_is_found(folder: RunFolder) -> None:
    held = trial(folder, JobStatus=JobStatus.HELD, HoldReasonCode=1, HoldReason=f"{REPAIR} (by me)")
    assert hopeless(folder, held) == ["A.l1.t01"]
    by_person = held | {"HoldReason": "via condor_hold"}
    assert hopeless(folder, by_person) == []


def event(number: str, job: int, before_now: float, text: str) -> str:
    when = datetime.fromtimestamp(NOW - before_now).isoformat(" ", "milliseconds")
    return f"{number} ({job:03}.000.000) {when} {text}\n...\n"


def submitted(job: int, before_now: float) -> str:
    host = "Job submitted from host: <127.0.0.1:1>\n"
    return event("000", job, before_now, f'{host}    [ DAGNodeName = "A.l1.t01"; ]')


def post_ended(job: int, before_now: float, node: str = "A.l1.t01") -> str:
    how = "POST Script terminated.\n\t(1) Normal termination (return value 1)\n"
    return event("016", job, before_now, f"{how}    DAG Node: {node}")


def faults_in_post(folder: RunFolder, log: str) -> list[tuple[str, Remedy]]:
    """Return the faults while A.l1.t01 is in its POST script, with this log of node events."""
    files = folder.region("A").dag_files
    files.node_status.write_text(IN_POST)
    os.utime(files.node_status, (NOW - 5, NOW - 5))
    files.nodes_log.write_text(log)
    of_best = {"JobUniverse": 5, "ClusterId": 9, "DAGManJobId": REGION, "DAGNodeName": "A.best"}
    ads = [dagman(folder), region(folder), dagman(folder, **of_best)]
    return [(str(fault), fault.remedy) for fault in faults(folder, ads, NOW)]


@pytest.mark.parametrize(
    ("log", "is_stuck"),
    [
        (submitted(5, 90) + post_ended(5, 80) + post_ended(5, 70), True),
        (submitted(5, 90) + post_ended(5, 80), False),  # its retry's POST script runs
        (submitted(5, 90) + post_ended(5, 80) + submitted(6, 75), False),
        (submitted(5, 90) + post_ended(5, 80) + post_ended(5, 70) + submitted(6, 60), False),
        (post_ended(-1, 80) + post_ended(-1, 70), False),  # no job was ever submitted
        (post_ended(5, 80) + post_ended(5, 70, node="A.l2.t01"), False),
        (post_ended(5, 2080) + post_ended(5, 2070), False),  # of a DAGMan before this one
        ("", False),
    ],
)
def test_a_script_whose_end_dagman_missed_is_found(
    folder: RunFolder, log: str, is_stuck: bool
) -> None:
    reason = "A: DAGMan missed the end of a script: A.l1.t01"
    assert faults_in_post(folder, log) == [(reason, Remedy.KICK)] * is_stuck


@pytest.mark.parametrize(
    ("log", "is_stuck"),
    [
        ("\0 no event\n...\n" + post_ended(-1, 70), True),
        (post_ended(5, 80) + "\0 no event\n...\n" + post_ended(5, 70, node="A.l2.t01"), True),
        (submitted(5, 90) + post_ended(5, 75)[:80] + post_ended(5, 70), True),
        (submitted(5, 90)[:60] + post_ended(5, 70), True),
        (submitted(5, 90)[:60] + submitted(5, 80), False),  # the POST script runs
        ("\0 no event\n...\n" + submitted(5, 90), False),
        ("\0 no event\n...\n" + post_ended(5, 2080), False),  # of a DAGMan before this one
        (post_ended(-1, 70), False),
        (post_ended(5, 80) + "00", False),  # an event that is being written
    ],
)
def test_a_scripts_end_after_a_damaged_part_of_the_log_is_found(
    folder: RunFolder, log: str, is_stuck: bool
) -> None:
    reason = "A: DAGMan can't read its damaged log and missed the end of a script: A.l1.t01"
    assert faults_in_post(folder, log) == [(reason, Remedy.REPLACE)] * is_stuck


def test_a_graph_that_the_queue_lost_is_submitted_again_and_one_that_ended_is_not(
    folder: RunFolder,
) -> None:
    assert faults(folder, [], NOW) == []
    folder.dag_files.lock.touch()
    fault = only(faults(folder, [], NOW))
    assert (fault.region, fault.remedy) == (None, Remedy.SUBMIT)
    set_aside(folder.dag_files)
    assert faults(folder, [], NOW) == []


@pytest.mark.parametrize(("dag_status", "goes_on"), [(1, True), (2, False), (4, False)])
def test_a_graph_whose_dagman_failed_is_submitted_again(
    folder: RunFolder, dag_status: int, goes_on: bool
) -> None:
    metrics = {"exitcode": 1, "DagStatus": dag_status}
    folder.dag_files.metrics.write_text(json.dumps(metrics))
    assert bool(faults(folder, [], NOW)) is goes_on
    folder.region("A").stopped.write_text("{}")
    folder.report_page.touch()
    assert faults(folder, [], NOW) == []


def test_a_graph_is_submitted_again_if_htcondor_refused_a_regions_dagman(
    folder: RunFolder,
) -> None:
    """DAGMan tries such a node no more, whatever its retries."""
    folder.dag_files.metrics.write_text(json.dumps({"exitcode": 1, "DagStatus": 2}))
    note_failure(folder.region("A").failing, "A", "end", "HTCondor did not take its DAGMan")
    fault = only(faults(folder, [], NOW))
    assert (fault.what, fault.remedy) == (
        "HTCondor refused the DAGMan of A",
        Remedy.SUBMIT,
    )
    folder.dag_files.metrics.write_text(json.dumps({"exitcode": 1, "DagStatus": 4}))  # removed
    assert faults(folder, [], NOW) == []


def test_a_lost_region_that_was_submitted_alone_is_submitted_alone_again(folder: RunFolder) -> None:
    folder.region("A").dag_files.lock.touch()
    assert only(faults(folder, [], NOW)).region == "A"


def test_a_lost_region_is_submitted_alone_while_another_region_runs_alone(
    folder: RunFolder,
) -> None:
    files = folder.region("B")
    files.root.mkdir()
    alone = dagman(folder, TrialfleetRegion="A")
    assert faults(folder, [alone], NOW) == []
    files.dag_files.lock.touch()
    fault = only(faults(folder, [alone], NOW))
    assert (fault.region, fault.remedy) == ("B", Remedy.SUBMIT)
    both = [alone, dagman(folder, TrialfleetRegion="B", EnteredCurrentStatus=NOW)]
    assert faults(folder, both, NOW) == []
    assert faults(folder, [dagman(folder)], NOW) == [], "its parent starts it again"
    folder.dag_files.lock.touch()
    assert faults(folder, [alone], NOW) == [], "the whole graph will be submitted"
    folder.dag_files.lock.unlink()
    write_json(files.published, {})
    assert faults(folder, [alone], NOW) == []


@pytest.fixture
def holder(folder: RunFolder) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds the graph's lock as DAGMan does."""
    folder.dag_files.lock.touch()
    hold = "import fcntl,sys,time; f=open(sys.argv[1],'r+'); fcntl.lockf(f,fcntl.LOCK_EX);"
    program = hold + "print(flush=True); time.sleep(60)"
    command = [sys.executable, "-c", program, str(folder.dag_files.lock)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        yield process
        process.kill()


def test_a_lock_that_a_living_process_holds_is_not_stale(
    folder: RunFolder, holder: subprocess.Popen[bytes]
) -> None:
    assert is_locked(folder.dag_files)
    assert faults(folder, [dagman(folder)], NOW) == []
    holder.kill()
    holder.wait()
    assert not is_locked(folder.dag_files)


@pytest.mark.parametrize("ads", [0, 1])
def test_a_dagman_that_outlived_its_schedd_is_ended(
    folder: RunFolder, holder: subprocess.Popen[bytes], ads: int
) -> None:
    """Another that is started in its place finds the lock and exits 3, again and again."""
    cooling = {"JobStatus": JobStatus.IDLE, "ExitCode": 3, "JobCoolDownExpiration": NOW + 5}
    fault = only(faults(folder, [dagman(folder, **cooling)][:ads], NOW))
    assert (fault.remedy, fault.is_sure, fault.patience > 5) == (Remedy.END, False, True)
    repair(folder, fault)
    assert holder.wait(timeout=30) == -signal.SIGKILL
    assert not is_locked(folder.dag_files)


def test_an_interrupted_submission_is_repeated_until_its_dagman_has_started(
    folder: RunFolder,
) -> None:
    folder.dag_files.node_status.unlink()
    for handed_over in (False, True):
        write_json(folder.submission, {"region": None, "handed_over": handed_over})
        fault = only(faults(folder, [], NOW))
        assert (fault.remedy, "interrupted" in fault.what) == (Remedy.SUBMIT, True)
    folder.dag_files.node_status.write_text("")  # its DAGMan's: it has lived, and ended
    assert faults(folder, [], NOW) == []


def test_a_run_that_is_over_is_not_submitted_again(folder: RunFolder) -> None:
    write_json(folder.submission, {"region": None, "handed_over": False})
    folder.region("A").published.write_text("{}")
    folder.region("A").dag_files.lock.touch()  # of a job that ran again after its end
    folder.report_page.touch()
    assert faults(folder, [], NOW) == []


def test_a_run_that_lacks_only_its_report_repeats_an_interrupted_submission(
    folder: RunFolder,
) -> None:
    folder.region("A").published.write_text("{}")
    assert faults(folder, [], NOW) == []  # a person stopped it, perhaps
    write_json(folder.submission, {"region": None, "handed_over": False})
    fault = only(faults(folder, [], NOW))
    assert (fault.remedy, "interrupted" in fault.what) == (Remedy.SUBMIT, True)


def test_a_run_whose_dagman_was_lost_before_its_report_is_submitted_again(
    folder: RunFolder,
) -> None:
    folder.region("A").published.write_text("{}")
    folder.dag_files.lock.touch()
    assert only(faults(folder, [], NOW)).remedy is Remedy.SUBMIT


@pytest.mark.parametrize(
    ("dag_status", "report", "goes_on"),
    [
        (1, "STATUS_NOT_READY", True),  # DAGMan failed
        (2, "STATUS_NOT_READY", True),  # a region failed that another DAGMan brought to its end
        (2, "STATUS_ERROR", False),  # the report itself failed
        (4, "STATUS_NOT_READY", False),  # removed
    ],
)
def test_a_run_whose_dagman_ended_before_its_report_is_submitted_again(
    folder: RunFolder, dag_status: int, report: str, goes_on: bool
) -> None:
    """Its last region was repaired alone: no other process writes the report."""
    folder.region("A").published.write_text("{}")
    folder.dag_files.metrics.write_text(json.dumps({"exitcode": 1, "DagStatus": dag_status}))
    number = {"STATUS_NOT_READY": 0, "STATUS_ERROR": 6}[report]
    folder.dag_files.node_status.write_text(
        f'[ Type = "NodeStatus"; Node = "report"; NodeStatus = {number}; StatusDetails = ""; ]'
    )
    found = [(fault.what, fault.remedy) for fault in faults(folder, [], NOW)]
    ended = ("its DAGMan ended before the report was written", Remedy.SUBMIT)
    assert found == ([ended] if goes_on else [])
    folder.report_page.touch()
    assert faults(folder, [], NOW) == []


def test_a_dagman_that_a_person_removed_is_not_lost(folder: RunFolder) -> None:
    folder.dag_files.lock.touch()
    folder.dag_files.log.write_text(
        "000 (007.000.000) 2026-11-20 10:00:00 Job submitted from host: <127.0.0.1:1>\n...\n"
        "009 (007.000.000) 2026-11-20 10:00:09 Job was aborted.\n...\n"
    )
    assert faults(folder, [], NOW) == []
    with folder.dag_files.log.open("a") as log:
        log.write("000 (011.000.000) 2026-11-20 10:01:00 Job submitted from host: <1:1>\n...\n")
    assert only(faults(folder, [], NOW)).remedy is Remedy.SUBMIT


@pytest.mark.parametrize("seconds", [30.0, 1100.0])
def test_old_output_of_a_dagman_shows_no_lost_job(folder: RunFolder, seconds: float) -> None:
    status = folder.region("A").dag_files.node_status
    status.write_text(SUBMITTED)
    os.utime(status, (NOW - seconds, NOW - seconds))
    just_started = region(folder, EnteredCurrentStatus=NOW - 20)
    assert faults(folder, [dagman(folder), just_started], NOW) == []


class Repairs:
    """A stand-in for a repair, which records the remedy."""

    def __init__(self) -> None:
        self.noted: list[Remedy] = []

    def __call__(self, _: RunFolder, fault: Fault) -> None:
        self.noted.append(fault.remedy)


@pytest.fixture
def repairs() -> Repairs:
    return Repairs()


def test_a_lasting_fault_is_repaired_less_and_less_often(
    folder: RunFolder, repairs: Repairs
) -> None:
    folder.dag_files.lock.touch()
    watch = Supervisor(repairs)
    times: list[int] = []
    for second in range(0, 3600, 5):
        watch.check([folder], [], NOW + second, second)
        if len(repairs.noted) > len(times):
            times.append(second)
    assert times[0] == run_faults.ABSENT_PATIENCE
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert gaps == sorted(gaps)
    assert gaps[-1] >= supervisor.LONGEST_PAUSE


def test_a_fault_that_comes_and_goes_is_not_repaired(folder: RunFolder, repairs: Repairs) -> None:
    watch = Supervisor(repairs)
    for second in range(0, 600, 5):
        if second % 10 == 0:
            folder.dag_files.lock.touch()
        else:
            folder.dag_files.lock.unlink(missing_ok=True)
        watch.check([folder], [], NOW + second, second)
    assert repairs.noted == []


def test_a_clock_that_is_set_neither_hastens_nor_delays_a_repair(
    folder: RunFolder, repairs: Repairs
) -> None:
    watch = Supervisor(repairs)
    folder.dag_files.lock.touch()
    watch.check([folder], [], NOW, 0)
    watch.check([folder], [], NOW + 7200, 1)
    assert repairs.noted == []
    watch.check([folder], [], NOW - 7200, run_faults.ABSENT_PATIENCE)
    assert repairs.noted == [Remedy.SUBMIT]


def test_a_dagman_that_dies_again_and_again_is_replaced(
    folder: RunFolder, repairs: Repairs
) -> None:
    watch = Supervisor(repairs)
    for crashes in range(1, 4):
        for second in (0, 5):  # up again in between: no single look shows that it lasts
            status = {"JobStatus": JobStatus.IDLE, "JobCoolDownExpiration": NOW + crashes * 10 + 5}
            ad = region(folder, NumJobCoolDowns=crashes, **(status if second == 0 else {}))
            at = crashes * 10 + second
            watch.check([folder], [dagman(folder), ad], NOW + at, at)
    assert repairs.noted == [Remedy.REPLACE]


def test_a_run_is_known_until_it_is_over_or_its_folder_is_gone(
    folder: RunFolder, repairs: Repairs, tmp_path: Path
) -> None:
    watch, gone = Supervisor(repairs), RunFolder(tmp_path / "gone")
    assert watch.check([folder, gone], [dagman(folder)], NOW, 0) == [folder]
    assert watch.check([folder], [], NOW, 0) == []
    folder.dag_files.lock.touch()
    assert watch.check([folder], [], NOW, 0) == [folder]


def test_a_run_that_is_being_stopped_is_not_repaired(folder: RunFolder) -> None:
    fault = Fault(region=None, job=None, what="lost", remedy=Remedy.SUBMIT, patience=0)
    with folder.run_lock.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(BusyError):
            supervisor.repair_locked(folder, fault)


@pytest.mark.slow
def test_a_supervisor_waits_until_another_one_has_ended(tmp_path: Path) -> None:
    command = programs.command("supervise", "--state", str(tmp_path))
    environment = {**os.environ, "CONDOR_CONFIG": str(tmp_path / "none")}
    with (tmp_path / "supervisor.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with (tmp_path / "log").open("w") as log:
            process = subprocess.Popen(command, env=environment, stderr=log)
        time.sleep(1)
        assert "supervising" not in (tmp_path / "log").read_text()
    deadline = time.monotonic() + 30
    while "supervising" not in (tmp_path / "log").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.kill()
    process.wait()


def test_a_check_after_a_long_gap_repairs_nothing(folder: RunFolder, repairs: Repairs) -> None:
    folder.dag_files.lock.touch()
    watch = Supervisor(repairs)
    for second in (0, 60, 120):
        watch.check([folder], [], NOW + second, float(second))
    assert repairs.noted == []


def test_a_dagman_that_hangs_again_and_again_is_replaced(
    folder: RunFolder, repairs: Repairs
) -> None:
    os.utime(folder.dag_files.node_status, (NOW - 1000, NOW - 1000))
    watch = Supervisor(repairs)
    for second in range(0, 400, 5):
        watch.check([folder], [dagman(folder)], NOW + second, float(second))
    assert repairs.noted[:2] == [Remedy.KICK, Remedy.KICK]
    assert repairs.noted[-1] is Remedy.REPLACE


def test_regions_of_a_restarted_run_need_no_repair(folder: RunFolder, repairs: Repairs) -> None:
    cooling = {"JobStatus": JobStatus.IDLE, "ExitCode": 4, "JobCoolDownExpiration": NOW + 300}
    watch = Supervisor(repairs)
    watch.check([folder], [dagman(folder, **cooling), region(folder, **cooling)], NOW, 0.0)
    assert repairs.noted == [Remedy.REPLACE]


@pytest.mark.parametrize(
    "error",
    [
        PermissionError(13, "Permission denied", "study.dag.lock"),
        FileNotFoundError(2, "No such file or directory", "regions"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    ],
)
def test_the_supervisor_continues_to_watch_an_unreadable_run(
    folder: RunFolder, repairs: Repairs, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(*_: object) -> list[Fault]:
        raise error

    monkeypatch.setattr(supervisor, "faults", refuse)
    assert Supervisor(repairs).check([folder], [], NOW, 0.0) == [folder]


def test_a_run_is_forgotten_when_it_was_removed_but_not_while_its_disk_is_away(
    folder: RunFolder, repairs: Repairs
) -> None:
    shutil.rmtree(folder.root)
    assert Supervisor(repairs).check([folder], [], NOW, 0.0) == []
    away = RunFolder(folder.root.parent / "unmounted" / "r1")
    assert Supervisor(repairs).check([away], [], NOW, 0.0) == [away]
    cannot_be_read = Path("/", "x" * 300)
    assert all(map(supervisor._is_ours, (away.root, cannot_be_read)))
