"""Submission and stop of a run, and repair of its faults, such as a lost DAGMan.

status/run_faults.py finds the faults and their remedies, and `supervisor.py` decides when to act.
Callers hold the run lock (see `run_locked`).

The functions raise PoolError if HTCondor is unreachable or refuses a request, or if a job or a
DAGMan doesn't end in time.
"""

from __future__ import annotations

import getpass
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime

from trialfleet.classads import JobStatus
from trialfleet.errors import PoolError
from trialfleet.files import closed_to_others, lock_file, write_json
from trialfleet.infra.pool import schedd
from trialfleet.infra.pool.htcondor_installation import Progress, say_nothing
from trialfleet.infra.pool.processes import run_captured
from trialfleet.optimizer.service_client import SLOW_START_SECONDS
from trialfleet.render import classad_string
from trialfleet.workflows.facts.dagman import job_queue
from trialfleet.workflows.facts.dagman.files import STOP_REASON, ended_by_error, ended_by_node
from trialfleet.workflows.facts.dagman.recovery_files import is_locked, lock_holder, set_aside
from trialfleet.workflows.facts.run_folder.folder import DagFiles, RunFolder
from trialfleet.workflows.status.common_file_transfers import OWN_COPY, REPAIR
from trialfleet.workflows.status.run_faults import (
    Fault,
    Remedy,
    Submission,
    dag_files,
    read_repairs,
)

REMOVAL_SECONDS = 120.0  # until jobs have left the queue; a trial may save for 60 s
ENDING_SECONDS = 20.0  # until a DAGMan's process has ended after its job
# Until a service must answer: longer than until the client notes that the service hasn't started.
START_SECONDS = SLOW_START_SECONDS + 5.0
KEPT_REPAIRS = 100  # only the newest repairs are kept in the run's folder


class BusyError(Exception):
    """Another process is changing the run, or the fault to be repaired is gone."""


@contextmanager
def run_locked(folder: RunFolder, *, wait: bool = True) -> Iterator[None]:
    """Hold the run lock during the `with` block.

    If another process holds the lock, wait for it. Without `wait`, raise BusyError.
    """
    with lock_file(folder.run_lock, wait=wait) as ours:
        if not ours:
            raise BusyError("another process is changing this run")
        with closed_to_others():
            yield


def repair(folder: RunFolder, fault: Fault) -> None:
    """Repair a fault, and add the repair to the list in the run's folder."""
    _note(folder, fault)
    if fault.remedy is Remedy.SUBMIT:
        submit(folder, fault.region)
    elif fault.remedy is Remedy.REPLACE:
        replace(folder, fault)
    elif fault.remedy is Remedy.END:
        end_orphan(dag_files(folder, fault.region))
    elif fault.remedy is Remedy.COPY:
        copy_files(fault)
    elif fault.remedy is Remedy.SERVE:
        serve(folder, fault)
    elif fault.remedy in _ACTIONS:
        schedd.apply_action(
            _ACTIONS[fault.remedy], f"ClusterId == {fault.job}", "trialfleet repairs"
        )


_ACTIONS = {Remedy.RELEASE: "Release", Remedy.KICK: "VacateFast"}


def end_orphan(files: DagFiles) -> None:
    """Kill the DAGMan process that holds the DAG's lock. Do nothing if its id is unknown."""
    if not (pid := lock_holder(files)):
        return
    with suppress(ProcessLookupError):
        process = os.pidfd_open(pid)
        try:
            if lock_holder(files) == pid:  # no other process has got the number meanwhile
                signal.pidfd_send_signal(process, signal.SIGKILL)
        finally:
            os.close(process)


def copy_files(fault: Fault) -> None:
    """Give a job its own copy of the common files for which it has waited too long.

    The job is put on hold and released.
    """
    of_job = f"ClusterId == {fault.job}"
    held = f"substr(HoldReason, 0, {len(REPAIR)}) == {classad_string(REPAIR)}"
    # if a crash leaves the job on hold, run_faults.py recognizes the reason: this is repeated
    schedd.edit(of_job, OWN_COPY, "true")
    schedd.apply_action("Hold", f"{of_job} && JobStatus == {JobStatus.BLOCKED}", REPAIR)
    schedd.apply_action("Release", f"{of_job} && JobStatus == {JobStatus.HELD} && {held}", REPAIR)


def serve(folder: RunFolder, fault: Fault) -> None:
    """Start the optimiser's service if it isn't running. PoolError if it doesn't answer in time.

    After a PoolError, service.trouble.json in the run's folder may say more.
    """
    words = [str(folder.client), "attend", str(fault.region)]
    try:
        done = run_captured(words, timeout=START_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise PoolError(
            f"the optimiser's service did not answer within {START_SECONDS:.0f} s"
        ) from error
    if done.returncode:
        raise PoolError(done.stdout.strip() or done.stderr.strip())


def replace(folder: RunFolder, fault: Fault) -> None:
    """Replace a faulty DAGMan by a new DAGMan, which starts without the old DAGMan's files.

    If `fault.has_parent`, this function only removes the faulty DAGMan, and the DAGMan of the whole
    run starts the new one. Otherwise, this function submits the DAG again.
    """
    if fault.has_parent:
        _replace_region(folder, fault)
    else:
        _note_submission(folder, Submission(fault.region, handed_over=False))
        _remove(fault)
        submit(folder, fault.region)


def _replace_region(folder: RunFolder, fault: Fault) -> None:
    assert fault.region is not None, "only a region's DAGMan has a parent"
    restart = folder.region(fault.region).restart
    write_json(restart, {"reason": fault.what})
    is_removed = False
    try:
        is_removed = _remove(fault) > 0
    finally:
        if not is_removed:  # if a person removes the DAGMan later, no new DAGMan must start
            restart.unlink(missing_ok=True)


def _remove(fault: Fault) -> int:
    reason = f"trialfleet repairs: {fault.what}"
    return schedd.apply_action("Remove", f"ClusterId == {fault.job}", reason)


def submit(folder: RunFolder, region: str | None = None) -> str:
    """Submit the DAG of a run, or of its `region`, from the start. Return the id of DAGMan's job.

    First remove jobs that an earlier DAGMan left. Finished trials are not repeated, because the
    trial database has their results. The supervisor repeats an interrupted submission.
    """
    own = dag_files(folder, region)
    _note_submission(folder, Submission(region, handed_over=False))
    folder.stopped.unlink(missing_ok=True)
    left = job_queue.run_constraint(folder, region)
    if schedd.query(left, ["ClusterId"]):  # no DAGMan knows these jobs
        schedd.apply_action("Remove", left, "trialfleet submits the run again")
        _wait_until_gone(left)
    _clear(folder.all_dags() if region is None else [own])
    job = job_queue.submit(own)
    _note_submission(folder, Submission(region, handed_over=True))
    return job


def _note_submission(folder: RunFolder, submission: Submission) -> None:
    write_json(folder.submission, asdict(submission))


def _clear(dags: Sequence[DagFiles]) -> None:
    """Wait until the DAGMans have ended, then move away the files from which DAGMan recovers."""
    deadline = time.monotonic() + ENDING_SECONDS
    for files in dags:
        while is_locked(files):
            if time.monotonic() > deadline:
                raise PoolError(
                    f"the DAGMan of {str(files.dag)!r} is no longer in the job queue, but its "
                    "process still runs"
                )
            time.sleep(0.2)
    set_aside(*dags)


def stop(folder: RunFolder, progress: Progress = say_nothing) -> None:
    """Remove a run's jobs and wait up to two minutes for their end.

    The files from which DAGMan recovers are moved away. `progress` is called repeatedly with a line
    that says how many jobs are left.
    """
    folder.submission.unlink(missing_ok=True)
    if ended_by_error(folder.dag_files) or ended_by_node(folder.dag_files):
        folder.dag_files.metrics.unlink()  # else the supervisor would submit the run again
    own = f"{job_queue.run_constraint(folder)} && DAGManJobId =?= undefined"
    schedd.apply_action("Remove", own, STOP_REASON)
    _wait_until_gone(job_queue.run_constraint(folder), progress)
    write_json(folder.stopped, {"by": _user_name(), "time": datetime.now(UTC).isoformat()})
    _clear(folder.all_dags())


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the account has no name
        return f"user {os.getuid()}"


def _wait_until_gone(constraint: str, progress: Progress = say_nothing) -> None:
    deadline = time.monotonic() + REMOVAL_SECONDS
    while left := schedd.query(constraint, ["ClusterId"]):
        progress(f"waits for the end of {len(left)} job(s) of the run")
        if time.monotonic() > deadline:
            jobs = ", ".join(str(ad["ClusterId"]) for ad in left[:5])
            raise PoolError(f"jobs are still in the queue after {REMOVAL_SECONDS:.0f} s: {jobs}")
        time.sleep(0.2)


def _note(folder: RunFolder, fault: Fault) -> None:
    noted = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "region": fault.region,
        "what": fault.what,
        "remedy": str(fault.remedy),
    }
    write_json(folder.repairs, [*read_repairs(folder), noted][-KEPT_REPAIRS:])
