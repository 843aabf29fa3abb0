"""The program `keep-gangs FOLDER`, which writes the rosters (lists of ranks) of a run's gangs.

The DAG of each region starts this program as a service node. One of these processes works for all
regions, and the others wait until it ends. HTCondor restarts a killed process, which continues from
the rosters and the job queue.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from trialfleet import untrusted_files
from trialfleet.classads import GONE
from trialfleet.errors import PoolError
from trialfleet.files import checker, lock_file, unless_damaged
from trialfleet.infra.pool import schedd
from trialfleet.infra.pool.connection import cache_connection
from trialfleet.nodes.gang.member import Member, state_file_name
from trialfleet.restart_after_update import Updates
from trialfleet.wall_clock import log_in_utc
from trialfleet.workflows.control.gang.checkpoint_urls import GangStore
from trialfleet.workflows.control.gang.speaker import ServiceMessages
from trialfleet.workflows.facts.dagman import job_queue
from trialfleet.workflows.facts.jobs.gang_records import read_roster
from trialfleet.workflows.facts.jobs.gang_roster import DONE, Job, Roster, Size
from trialfleet.workflows.facts.models.export_folder import read_variables
from trialfleet.workflows.facts.run_folder.folder import RunFolder, TrialFolder
from trialfleet.workflows.names import region_slug
from trialfleet.workflows.rules.gang_decision import (
    MACHINE_FAULT,
    decide,
    jobs_to_remove,
    unneeded_packages,
)
from trialfleet.workflows.study.frozen import load_frozen

TICK = 0.25  # seconds between two checks of the queue
QUIET_TICK = 1.0  # if the queue has no gang
POOL_SECONDS = 60.0  # between two checks of the pool's identity
SILENT_SECONDS = 10.0  # an agent writes a message every 3 s
_MOST_DISKS = 4  # limit for a gang's files on the access point, as a multiple of RequestDisk
OVER = "the gang's training is over"  # the reason for a removal of jobs
LOST = "its gang can't continue"
NO_ORDER = "the gang restarts: order.json is damaged"
_PROJECTION = [
    "ClusterId",
    "ProcId",
    "Iwd",
    "JobStatus",
    "JobStartDate",
    "JobCurrentStartDate",
    "HoldReasonCode",
    "ExitCode",
    "LastRemoteHost",
    "LastVacateTime",
    "EnteredCurrentStatus",
    "TrialfleetNode",
    "TrialfleetRegion",
    "RequestDisk",
    "TrialfleetGangMin",
    "TrialfleetGangMax",
]

log = logging.getLogger(__name__)


class Keeper:
    """Writes the rosters of one run's gangs.

    Without a `store`, checkpoints are on the access point. `seconds` has a time limit for each
    region, by slug. A gang begins no further trial if its first job started longer ago.
    """

    def __init__(
        self,
        folder: RunFolder,
        store: GangStore | None = None,
        seconds: Mapping[str, float] | None = None,
    ) -> None:
        self._folder, self._store, self._seconds = folder, store, seconds or {}
        # The last message of each job's agent, and when it came, by this process's clock.
        self._heard: dict[tuple[int, int], tuple[Member | None, float]] = {}
        self._looked = time.monotonic()

    def step(self) -> bool:
        """Update the rosters of all gangs in the job queue. Return whether there are any.

        PoolError if HTCondor is unreachable.
        """
        constraint = f"{job_queue.run_constraint(self._folder)} && TrialfleetGangMin =!= undefined"
        try:
            ads = schedd.query(constraint, _PROJECTION)
        except PoolError:
            self._heard.clear()
            raise
        now = time.monotonic()
        if now - self._looked > SILENT_SECONDS / 2:  # this process was suspended
            self._heard.clear()
        self._looked = now
        clusters: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for ad in ads:
            clusters[ad["ClusterId"]].append(ad)
        for cluster, own in clusters.items():
            try:
                self._keep(cluster, own)
            except Exception:  # the other gangs continue
                log.exception("%s", own[0].get("TrialfleetNode"))
        return bool(clusters)

    def _keep(self, cluster: int, ads: list[dict[str, Any]]) -> None:
        place = TrialFolder(Path(ads[0]["Iwd"]))
        size = Size(ads[0]["TrialfleetGangMin"], ads[0]["TrialfleetGangMax"])
        speaker = ServiceMessages(place, cluster)
        if speaker.order is None:
            _remove(cluster, (ad["ProcId"] for ad in ads), NO_ORDER)
            return
        jobs = [self._job(place, ad) for ad in ads if ad["JobStatus"] not in GONE]
        now = time.time()
        known = read_roster(place)
        roster = known if known and known.cluster == cluster else None
        before = speaker.advance(roster or Roster(cluster=cluster, since=now), now)
        names = _list_delivered(place, _MOST_DISKS * ads[0]["RequestDisk"] * 1024)
        if names is None and before.code is None:
            after = replace(before, code=1, over="disk")
        else:
            after = decide(before, size, jobs, names or (), now)
        if self._store:
            self._store.share(place, after, names or ())
        age = now - min(ad.get("JobStartDate", now) for ad in ads)
        wants = age < self._seconds.get(str(ads[0].get("TrialfleetRegion")), math.inf)
        speaker.report(before, after, jobs, wants=wants)
        if after != roster:
            _write(place, str(ads[0]["TrialfleetNode"]), after)
        if self._store and after.state == DONE:
            self._store.remove_all(place)
        unneeded = unneeded_packages(after, names or ())
        if self._store and unneeded:
            self._store.remove(place, unneeded)
        for name in unneeded:
            with suppress(OSError):
                (place.gang / name).unlink()
        if procs := jobs_to_remove(after, size, jobs, now):
            faulty = {job.proc for job in jobs if job.lacks_machine}
            slots = sorted(str(ad.get("LastRemoteHost")) for ad in ads if ad["ProcId"] in faulty)
            why = f"{MACHINE_FAULT}: it left {', '.join(slots)}" if slots else LOST
            _remove(cluster, procs, OVER if after.state == DONE else why)

    def _job(self, place: TrialFolder, ad: dict[str, Any]) -> Job:
        job, now = (ad["ClusterId"], ad["ProcId"]), time.monotonic()
        said = _read_member(place, ad["ProcId"])
        previous, since = self._heard.get(job, (None, now))
        since = since if said == previous else now
        self._heard[job] = said, since
        quiet = now - since
        # If the job has lost its last machine, HTCondor keeps the exit code of an earlier one.
        is_lost = ad.get("LastVacateTime", 0) >= ad.get("JobCurrentStartDate", 1)
        return Job(
            proc=ad["ProcId"],
            status=ad["JobStatus"],
            began=ad.get("JobCurrentStartDate", 0),
            said=said,
            silent=said is not None and quiet > SILENT_SECONDS,
            quiet_for=quiet,
            running_for=max(0.0, time.time() - ad.get("EnteredCurrentStatus", 0)),
            hold_code=ad.get("HoldReasonCode"),
            exit_code=None if is_lost else ad.get("ExitCode"),
        )


def _list_delivered(place: TrialFolder, max_bytes: int) -> Collection[str] | None:
    """Return the names of the files that a gang has sent to the access point.

    If the files are unreadable, or larger than `max_bytes` in total, delete them and return None.
    """
    try:
        sizes = untrusted_files.folder_sizes(place.gang)
        total = sum(sizes.values())
        if total <= max_bytes:
            return sizes
        sizes_mb = total >> 20, max_bytes >> 20
        log.warning("%s: the files have %d MB, more than the limit of %d MB", place.gang, *sizes_mb)
    except FileNotFoundError:
        return ()
    except untrusted_files.JobFileError as error:
        log.warning("%s: %s", place.gang, error)
    untrusted_files.make_empty(place.gang)
    return None


def _write(place: TrialFolder, node: str, roster: Roster) -> None:
    untrusted_files.write_json(place.roster, roster.to_json(), root=place.node_root)
    ranks = ", ".join(f"{seat.proc}@{seat.host}" for seat in roster.members)
    log.info(
        "%s: %s %d of %s: ranks %s, from %s, code %s",
        *(node, roster.state, roster.generation, roster.trial, ranks, roster.start, roster.code),
    )


def _read_member(place: TrialFolder, proc: int) -> Member | None:
    file = place.gang / state_file_name(proc)
    return unless_damaged(
        lambda: checker(Member).validate_json(
            untrusted_files.read_bytes(file, untrusted_files.MOST_AGENT, place.root), strict=True
        ),
        None,
    )


def _remove(cluster: int, procs: Iterable[int], why: str) -> None:
    own = " || ".join(f"ProcId == {proc}" for proc in sorted(procs))
    schedd.apply_action("Remove", f"ClusterId == {cluster} && ({own})", why)


def _open_keeper(folder: RunFolder) -> Keeper:
    study, store = load_frozen(folder.study).study, None
    if folder.gang_variables.exists():  # the run's gangs store checkpoints in S3
        os.environ.update(read_variables(folder.gang_variables))
        store = GangStore(study.s3)
    budgets = {region_slug(name): study.region_budget(name) for name in study.region_table}
    seconds = {slug: 60.0 * budget.job_minutes for slug, budget in budgets.items()}
    return Keeper(folder, store, seconds)


def keep(folder: RunFolder) -> None:
    """Wait until no other process writes this run's rosters, then write them forever."""
    updates = Updates()
    with lock_file(folder.gang_lock, wait=True):
        cache_connection(POOL_SECONDS)
        keeper = _open_keeper(folder)
        log.info("manages the gangs of %s", folder.root)
        while True:
            updates.follow()
            try:
                has_gangs = keeper.step()
            except (PoolError, OSError) as error:
                log.warning("%s", error)
                has_gangs = False
            time.sleep(TICK if has_gangs else QUIET_TICK)


def main() -> None:
    """Write the rosters of a run's gangs."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("run", type=Path, help="the run's folder")
    log_in_utc("%(process)d %(message)s")
    keep(RunFolder(parser.parse_args().run))
