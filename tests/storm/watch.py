"""A run in a storm, seen from outside: its progress, and what should run but doesn't."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from tests.storm.victims import victims
from trialfleet import PoolError, Run, RunState, TrialfleetError
from trialfleet.classads import JobStatus
from trialfleet.infra.pool.embedded import Pool
from trialfleet.workflows.facts.dagman import job_queue
from trialfleet.workflows.facts.dagman.job_queue import is_dagman
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.status.run_faults import faults, read_repairs

TOLD = "SELECT count(*) FROM trials WHERE state IN ('COMPLETE', 'FAIL', 'PRUNED')"


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A run's state, seen from outside.

    Attributes:
        progress: how far the run is.
        is_done: whether it has ended as it should.
        has_ended: whether it has ended at all.
        message: the status in words, or why it can't be read.
        repairs: number of the supervisor's repairs.
    """

    progress: Progress
    is_done: bool
    has_ended: bool
    message: str
    repairs: int


@dataclass(frozen=True)
class Progress:
    """A run's progress, which never shrinks.

    Attributes:
        told: finished trials.
        trained: regions whose full training is done.
        published: regions that have a model.
        reported: whether the report is written.
    """

    told: int = 0
    trained: int = 0
    published: int = 0
    reported: bool = False


def progress(run: Run, before: Progress) -> Progress:
    """Return how far a run is; what can't be read now is as in `before`."""
    root = run.folder
    return Progress(
        told=max(before.told, _finished(RunFolder(root).database)),
        trained=sum(path.stat().st_size > 0 for path in root.glob("regions/*/best/result.json")),
        published=len(list(root.glob("regions/*/published.json"))),
        reported=run.report.exists(),
    )


def seen(run: Run, before: Progress) -> Seen:
    """Return a run's state; what can't be read now is as in `before`."""
    now = progress(run, before)
    repairs = len(read_repairs(RunFolder(run.folder)))
    try:
        status = run.status()
    except TrialfleetError as error:
        return Seen(
            progress=now, is_done=False, has_ended=False, message=str(error), repairs=repairs
        )
    return Seen(
        progress=now,
        is_done=now.reported and status.state is RunState.DONE,
        has_ended=status.ended,
        message=f"{status.state}; {'; '.join(status.troubles) or 'no trouble'}",
        repairs=repairs,
    )


def _finished(database: Path) -> int:
    try:
        with closing(sqlite3.connect(f"file:{quote(str(database))}?mode=ro", uri=True)) as study:
            return int(study.execute(TOLD).fetchone()[0])
    except sqlite3.Error:
        return 0


def missing(pool: Pool, run: Run | None) -> list[str]:
    """Return the processes and jobs that should run and don't; empty if all run.

    Args:
        pool: the pool.
        run: the run that is in progress; None if there is none.
    """
    status = pool.status()
    if status.state != "up":
        return [f"the pool is {status.state}: {', '.join(status.daemons) or 'no daemon'}"]
    alive = victims(pool.condor_config)
    kinds = {victim.kind for victim in alive}
    lacking = ["no supervisor"] if "supervisor" not in kinds else []
    if run is None or _is_over(run):
        return lacking
    processes = sum(victim.kind.startswith("dagman") for victim in alive)
    return [*lacking, *missing_of_run(run, processes)]


def missing_of_run(run: Run, processes: int | None = None) -> list[str]:
    """Return which parts of a run that is not over should run and don't.

    Args:
        run: the run.
        processes: number of DAGMan processes; None if it is unknown.
    """
    try:
        queued = job_queue.look_up(RunFolder(run.folder))
    except PoolError as error:
        return [str(error)]
    found = faults(RunFolder(run.folder), queued.ads, time.time())
    lacking = [str(fault) for fault in found if fault.is_sure]  # of 41 regions one always changes
    if queued.root is None:
        return [*lacking, "no DAGMan job in the queue"]
    jobs = sum(is_dagman(ad) and ad["JobStatus"] == JobStatus.RUNNING for ad in queued.ads)
    if processes is not None and processes < jobs:
        lacking.append(f"{processes} DAGMan processes for {jobs} jobs")
    return lacking


def _is_over(run: Run) -> bool:
    try:
        return run.status().ended
    except TrialfleetError:
        return False
