"""A run in a storm, seen from outside: how far it is, and what of it does not run."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from tests.storm.victims import victims
from trialfleet import PoolError, Run, TrialfleetError
from trialfleet.infra.pool.embedded import Pool
from trialfleet.workflows.dagman import job_queue
from trialfleet.workflows.dagman.health import RUNNING, faults, is_dagman
from trialfleet.workflows.plan.folder import RunFolder

TOLD = "SELECT count(*) FROM trials WHERE state IN ('COMPLETE', 'FAIL')"


@dataclass(frozen=True)
class Progress:
    """How far a run is: it never shrinks.

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
    """Return how far a run is; what can't be read now is as it was before."""
    root = run.folder
    return Progress(
        told=max(before.told, _told(RunFolder(root).database)),
        trained=sum(path.stat().st_size > 0 for path in root.glob("regions/*/best/result.json")),
        published=len(list(root.glob("regions/*/published.json"))),
        reported=run.report.exists(),
    )


def _told(database: Path) -> int:
    try:
        with closing(sqlite3.connect(f"file:{quote(str(database))}?mode=ro", uri=True)) as study:
            return int(study.execute(TOLD).fetchone()[0])
    except sqlite3.Error:
        return 0


def missing(pool: Pool, run: Run | None) -> list[str]:
    """Return what does not run of what should; empty where all does.

    Args:
        pool: the pool.
        run: the run that goes on in it; None where none does.
    """
    status = pool.status()
    if status.state != "up":
        return [f"the pool is {status.state}: {', '.join(status.daemons) or 'no daemon'}"]
    alive = victims(pool.condor_config)
    kinds = {victim.kind for victim in alive}
    lacking = ["no supervisor"] if "supervisor" not in kinds else []
    if run is None or _is_over(run):
        return lacking
    try:
        queued = job_queue.look_up(RunFolder(run.folder))
    except PoolError as error:
        return [*lacking, str(error)]
    found = faults(RunFolder(run.folder), queued.ads, time.time())
    lacking += [str(fault) for fault in found if fault.is_sure]  # of 41 regions one always changes
    if queued.root is None:
        return [*lacking, "no DAGMan job in the queue"]
    jobs = sum(is_dagman(ad) and ad["JobStatus"] == RUNNING for ad in queued.ads)
    processes = sum(victim.kind.startswith("dagman") for victim in alive)
    if processes < jobs:
        lacking.append(f"{processes} DAGMan processes for {jobs} jobs")
    return lacking


def _is_over(run: Run) -> bool:
    try:
        return run.status().ended
    except TrialfleetError:
        return False
