"""Faults that block a run, such as a DAGMan that is stalled or lost, and the remedy for each.

A run's faults show in its jobs' ClassAds and in its DAGMans' files. Some faults pass by themselves.
So the supervisor repairs a fault (`control/dagman/repair.py`) only after some time, the fault's
`patience`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from trialfleet import untrusted_files
from trialfleet.classads import HELD_BY_A_PERSON, JobStatus
from trialfleet.errors import join_names
from trialfleet.files import read_json, unless_damaged
from trialfleet.optimizer.service_client import is_served
from trialfleet.workflows.facts.dagman.failing_scripts import failing_scripts
from trialfleet.workflows.facts.dagman.files import (
    NodeStatus,
    ended_by_error,
    ended_by_node,
    read_node_status,
    read_nodes_log,
    removal,
)
from trialfleet.workflows.facts.dagman.job_queue import Ad, is_dagman
from trialfleet.workflows.facts.dagman.recovery_files import is_locked
from trialfleet.workflows.facts.jobs.agent_messages import question_time
from trialfleet.workflows.facts.jobs.job_facts import find_job_folder
from trialfleet.workflows.facts.run_folder.folder import DagFiles, RegionFolder, RunFolder
from trialfleet.workflows.status.common_file_transfers import REPAIR, overdue_jobs

LONG_COOL_DOWN = 60.0  # seconds; a DAGMan with a longer wait for its restart is replaced at once
SHORT_PATIENCE = 15.0  # seconds; for faults that may pass before the next check
ABSENT_PATIENCE = 5.0  # seconds: two checks; the queue may have been read before a submission
FILES_PATIENCE = 10.0  # seconds; two checks that agree
LOST_PATIENCE = 20.0  # seconds; queue and files are not read at the same moment
FRESH = 15.0  # seconds; an older node status file doesn't describe this moment
SILENT = 45.0  # seconds without an update of a node status file that is written every 5
SILENT_PATIENCE = 150.0  # seconds; a full or busy disk delays updates, too


class Remedy(StrEnum):
    """The repair of a fault."""

    NONE = "none"  # it passes by itself, or needs a person
    RELEASE = "release"  # release the DAGMan job from its hold
    KICK = "kick"  # kill the DAGMan process: the schedd restarts it
    REPLACE = "replace"  # replace the DAGMan job by one without recovery
    END = "end"  # end the DAGMan process, which has no job in the queue any more
    SUBMIT = "submit"  # submit the DAG again, which has no job in the queue
    COPY = "copy"  # transfer the region's files with the job
    SERVE = "serve"  # start the optimiser's service


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault of one DAGMan of a run, or of the job of one trial.

    Attributes:
        region: the slug of the DAGMan's or trial's region, or None for the whole graph's DAGMan.
        job: the cluster id of the DAGMan's or trial's job, or None if no job in the queue has the
            fault.
        what: the fault as text. Each check gives the same text, because it has no changing numbers.
        patience: the seconds that the fault may last before its repair.
        is_sure: whether one check proves the fault. If False, there may be no fault: queue and
            files may have been read at different times.
        has_parent: whether a DAGMan of the run waits for the faulty DAGMan or for the trial.
        node: the trial's DAG node, or None for a DAGMan.
    """

    region: str | None
    job: int | None = None
    what: str
    remedy: Remedy
    patience: float
    is_sure: bool = True
    has_parent: bool = False
    node: str | None = None

    def for_person(self) -> Fault:
        """Return the fault with the remedy for a repair that a person requests.

        The supervisor doesn't release a DAGMan that a person put on hold: the remedy is NONE. If a
        person requests the repair, the remedy is RELEASE.
        """
        is_hold = self.remedy is Remedy.NONE
        return replace(self, remedy=Remedy.RELEASE) if is_hold else self

    def __str__(self) -> str:
        return f"{self.region}: {self.what}" if self.region else self.what


def faults(folder: RunFolder, ads: Iterable[Ad], now: float) -> list[Fault]:
    """Return the present faults of a run. A stop by a person is not a fault.

    `ads` are the ClassAds of the run's jobs, with the attributes of `job_queue.PROJECTION`, from a
    recent query.
    """
    ads = list(ads)
    with_jobs = _nodes_with_jobs(ads)
    dagmans = [_Dagman(folder, ad, with_jobs[ad["ClusterId"]]) for ad in ads if is_dagman(ad)]
    orphans = _orphan_faults(folder, [dagman.ad for dagman in dagmans])
    submitted = {d.ad.get("TrialfleetRegion") for d in dagmans if "DAGManJobId" not in d.ad}
    if not submitted:
        return orphans or _absence_faults(folder)
    lost = _lost_region_faults(folder, submitted)
    of_jobs = [fault for dagman in dagmans if (fault := dagman.fault(now))]
    orphaned = {orphan.region for orphan in orphans}
    of_regions = [fault for fault in of_jobs if fault.region not in orphaned]
    return (
        orphans
        + lost
        + of_regions
        + _transfer_faults(folder, ads, now)
        + _unanswered_faults(folder, ads)
    )


def _transfer_faults(folder: RunFolder, ads: list[Ad], now: float) -> list[Fault]:
    return [
        Fault(
            region=ad["TrialfleetRegion"],
            job=ad["ClusterId"],
            what=f"{ad['TrialfleetNode']}: {REPAIR}",
            remedy=Remedy.COPY,
            patience=FILES_PATIENCE,
            has_parent=True,
            node=ad["TrialfleetNode"],
        )
        for ad in {ad["ClusterId"]: ad for ad in overdue_jobs(folder, ads, now)}.values()
    ]


def _unanswered_faults(folder: RunFolder, ads: list[Ad]) -> list[Fault]:
    running = (ad for ad in ads if ad["JobStatus"] == JobStatus.RUNNING and "TrialfleetNode" in ad)
    if is_served(str(folder.root)):  # checked first: a thousand jobs have two thousand files
        return []
    asks = next(
        (ad for ad in running if question_time(find_job_folder(folder, ad)) is not None), None
    )
    if asks is None:
        return []
    return [
        Fault(
            region=asks["TrialfleetRegion"],
            what="jobs wait for the optimiser's service, which does not run",
            remedy=Remedy.SERVE,
            patience=SHORT_PATIENCE,
            has_parent=True,
        )
    ]


def dag_files(folder: RunFolder, region: str | None) -> DagFiles:
    """Return the files of a region's DAG, or of the whole graph if `region` is None."""
    return folder.dag_files if region is None else folder.region(region).dag_files


def _nodes_with_jobs(ads: list[Ad]) -> defaultdict[int, set[str]]:
    found: defaultdict[int, set[str]] = defaultdict(set)
    for ad in ads:
        if "DAGManJobId" in ad and "DAGNodeName" in ad:
            found[ad["DAGManJobId"]].add(str(ad["DAGNodeName"]))
    return found


class _Dagman:
    def __init__(self, folder: RunFolder, ad: Ad, nodes_with_jobs: set[str]) -> None:
        self.ad = ad
        self._region: str | None = ad.get("TrialfleetRegion")
        self._files = dag_files(folder, self._region)
        self._nodes_with_jobs = nodes_with_jobs

    def fault(self, now: float) -> Fault | None:
        if self.ad["JobStatus"] == JobStatus.HELD:
            return self._hold_fault()
        if self.ad["JobStatus"] == JobStatus.IDLE:
            return self._cooling_down(now)
        if self.ad["JobStatus"] == JobStatus.RUNNING:
            return self._silence_fault(now) or self._missed_ends(now)
        return None

    def _fault(self, what: str, remedy: Remedy, patience: float) -> Fault:
        return Fault(
            region=self._region,
            job=int(self.ad["ClusterId"]),
            what=what,
            remedy=remedy,
            patience=patience,
            has_parent="DAGManJobId" in self.ad,
        )

    def _last_update(self) -> float:
        return untrusted_files.file_stamp(self._files.node_status)[1] / 1e9

    def _hold_fault(self) -> Fault:
        by_person = self.ad.get("HoldReasonCode") == HELD_BY_A_PERSON
        reason = f"its DAGMan is on hold: {self.ad.get('HoldReason') or 'no reason given'}"
        return self._fault(reason, Remedy.NONE if by_person else Remedy.RELEASE, 20.0)

    def _cooling_down(self, now: float) -> Fault | None:
        left = self.ad.get("JobCoolDownExpiration", 0) - now
        if left <= 0:
            return None
        code = self.ad.get("ExitCode")  # a killed process has none
        how = "was killed" if code is None else f"ended with exit code {code}"
        reason = f"its DAGMan {how} and will be restarted"
        return self._fault(reason, Remedy.REPLACE, 0.0 if left > LONG_COOL_DOWN else SHORT_PATIENCE)

    def _silence_fault(self, now: float) -> Fault | None:
        times = (self.ad["EnteredCurrentStatus"], self._last_update())
        if any(abs(now - then) < SILENT for then in times):  # `abs`: the clock may be set back
            return None
        what = f"its DAGMan has not written its status for more than {SILENT:.0f} s"
        return self._fault(what, Remedy.KICK, SILENT_PATIENCE)

    def _missed_ends(self, now: float) -> Fault | None:
        """Return a fault if DAGMan missed the end of a DAG node's job or script.

        An old node status file is ignored, because DAGMan may have stalled or restarted since.
        """
        written = self._last_update()
        if written < self.ad["EnteredCurrentStatus"] or abs(now - written) > FRESH:
            return None
        nodes = read_node_status(self._files.node_status)
        return self._without_jobs(nodes) or self._missed_script_fault(nodes)

    def _without_jobs(self, nodes: dict[str, NodeStatus]) -> Fault | None:
        waited = {name for name, node in nodes.items() if node.submitted}
        if not (lost := sorted(waited - self._nodes_with_jobs)):
            return None
        reason = f"DAGMan waits for jobs that are not in the queue: {join_names(lost, 3)}"
        return replace(self._fault(reason, Remedy.REPLACE, LOST_PATIENCE), is_sure=False)

    def _missed_script_fault(self, nodes: dict[str, NodeStatus]) -> Fault | None:
        """Return a fault if DAGMan missed the end of a script.

        Usually the remedy is a restart: DAGMan reads its log again (recovery), and repeats the
        script. With a damaged log, a recovery would fail, so the remedy is a new DAGMan job without
        recovery.
        """
        waited = {name for name, node in nodes.items() if node.in_post}
        if not waited:
            return None
        log = read_nodes_log(self._files.nodes_log, self.ad["EnteredCurrentStatus"])
        if left := sorted(waited & log.ended_twice):
            reason = f"DAGMan missed the end of a script: {join_names(left, 3)}"
            return self._fault(reason, Remedy.KICK, ABSENT_PATIENCE)
        if log.is_damaged and (left := sorted(waited & log.ended)):
            names = join_names(left, 3)
            reason = f"DAGMan can't read its damaged log and missed the end of a script: {names}"
            return self._fault(reason, Remedy.REPLACE, LOST_PATIENCE)
        return None


def _orphan_faults(folder: RunFolder, dagmans: list[Ad]) -> list[Fault]:
    """Return a fault for each DAGMan process whose job isn't running. It blocks a new DAGMan."""
    waits = {JobStatus.IDLE, JobStatus.HELD}
    served = {ad.get("TrialfleetRegion") for ad in dagmans if ad["JobStatus"] not in waits}
    what = "its DAGMan has no job in the queue"
    return [
        Fault(region=region, what=what, remedy=Remedy.END, patience=LOST_PATIENCE, is_sure=False)
        for files, region in _dag_files_by_region(folder)
        if region not in served and is_locked(files)
    ]


def _absence_faults(folder: RunFolder) -> list[Fault]:
    if any(_unfinished_regions(folder)):
        lost = _cut_off(folder) or _find_lost_graph(_dag_files_by_region(folder))
        return _absent_dagman(lost or _gave_up(folder))
    # the run is over, except perhaps for its report
    left = None if folder.report_page.exists() else _cut_off(folder) or _before_report(folder)
    return _absent_dagman(left or _find_lost_graph([(folder.dag_files, None)]))


def _lost_region_faults(folder: RunFolder, submitted: Container[str | None]) -> list[Fault]:
    """Return at most one fault: a region's DAGMan is lost, and no DAGMan will submit it again.

    `submitted` has the DAGMans in the queue that no other DAGMan submitted: a region's slug, or
    None for the whole graph's DAGMan.
    """
    if None in submitted or folder.dag_files.lock.exists():
        return []  # the whole graph's DAGMan submits it, or will do so when it is submitted again
    left = (files for files in _unfinished_regions(folder) if files.root.name not in submitted)
    return _absent_dagman(_find_lost_graph([(files.dag_files, files.root.name) for files in left]))


def _absent_dagman(found: tuple[str | None, str] | None) -> list[Fault]:
    if found is None:
        return []
    region, what = found
    return [Fault(region=region, what=what, remedy=Remedy.SUBMIT, patience=ABSENT_PATIENCE)]


def _cut_off(folder: RunFolder) -> tuple[str | None, str] | None:
    noted = read_submission(folder)
    if noted is None:
        return None
    if noted.handed_over and dag_files(folder, noted.region).node_status.exists():
        return None  # the new DAGMan wrote it: each submission removes the old one
    return noted.region, "its submission was interrupted"


def _find_lost_graph(graphs: list[tuple[DagFiles, str | None]]) -> tuple[str | None, str] | None:
    for files, region in graphs:
        if files.lock.exists() and not is_locked(files) and removal(files) is None:
            return region, "its DAGMan is no longer in HTCondor's queue"
    return None


def _gave_up(folder: RunFolder) -> tuple[str | None, str] | None:
    if ended_by_error(folder.dag_files):
        return None, "its DAGMan ended with an error"
    left = _regions_with_failing_end(folder) if ended_by_node(folder.dag_files) else []
    return (None, f"HTCondor refused the DAGMan of {join_names(left, 3)}") if left else None


def _before_report(folder: RunFolder) -> tuple[str | None, str] | None:
    files = folder.dag_files
    report = read_node_status(files.node_status).get("report")
    is_tried = report is not None and report.failed
    if ended_by_error(files) or (ended_by_node(files) and not is_tried):
        return None, "its DAGMan ended before the report was written"
    return None


def _regions_with_failing_end(folder: RunFolder) -> list[str]:
    return [
        files.root.name
        for files in _unfinished_regions(folder)
        if any(each.script == "end" for each in failing_scripts(files.failing))
    ]


@dataclass(frozen=True)
class Submission:
    """The last submission of a run: of a region's graph, or of the whole graph.

    `region` is None for the whole graph. `handed_over` says whether HTCondor has accepted it.
    """

    region: str | None
    handed_over: bool


def read_submission(folder: RunFolder) -> Submission | None:
    """Return the record of a run's last submission, or None if there is no valid record.

    A stop removes the record.
    """
    return unless_damaged(lambda: Submission(**read_json(folder.submission)), None)


def _dag_files_by_region(folder: RunFolder) -> list[tuple[DagFiles, str | None]]:
    regions = sorted(path.name for path in folder.regions.iterdir())
    return [(dag_files(folder, region), region) for region in (None, *regions)]


def _unfinished_regions(folder: RunFolder) -> Iterator[RegionFolder]:
    for path in sorted(folder.regions.iterdir()):
        files = folder.region(path.name)
        if not (files.is_done or files.stopped.exists()):
            yield files


def read_repairs(folder: RunFolder) -> list[dict[str, Any]]:
    """Return the run's repairs, oldest first, each as `{"time", "region", "what", "remedy"}`."""
    noted: list[dict[str, Any]] = unless_damaged(lambda: read_json(folder.repairs), [])
    return noted
