"""What keeps a run from going on although nobody stopped it, seen from outside of its DAGMans.

A look at one run: the ads of its jobs and the files of its DAGMans give the faults of this moment.
Some pass by themselves, so each has a patience; `supervisor` mends what outlasts it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from trialfleet import job_files
from trialfleet.classads import HELD_BY_A_PERSON, JobStatus
from trialfleet.errors import first_of
from trialfleet.files import read_json, unless_damaged
from trialfleet.optimizer.client import is_served
from trialfleet.workflows.facts.dagman.failing import failing_scripts
from trialfleet.workflows.facts.dagman.files import (
    NodeStatus,
    ended_by_error,
    ended_by_node,
    passed_over,
    read_node_status,
    removal,
)
from trialfleet.workflows.facts.dagman.job_queue import Ad, is_dagman
from trialfleet.workflows.facts.dagman.recovery import is_locked
from trialfleet.workflows.facts.jobs.agent_messages import asked_since
from trialfleet.workflows.facts.jobs.job_facts import place_of
from trialfleet.workflows.facts.run_folder.dag_files import DagFiles
from trialfleet.workflows.facts.run_folder.folder import RegionFolder, RunFolder
from trialfleet.workflows.status.common_files import REPAIR, overdue

LONG_COOL_DOWN = 60.0  # seconds
SHORT_PATIENCE = 15.0  # seconds; of such a fault as may have passed at the next look
ABSENT_PATIENCE = 5.0  # seconds: two looks; the queue may have been read before a submission
FILES_PATIENCE = 10.0  # seconds; two looks that agree
LOST_PATIENCE = 20.0  # seconds; queue and files are not read in one moment
FRESH = 15.0  # seconds; a node status file that is older says nothing of this moment
SILENT = 45.0  # seconds without a word in a node status file that is written every 5
SILENT_PATIENCE = 150.0  # seconds; a disk that is full, or busy, has it say nothing, too


class Remedy(StrEnum):
    """What mends a fault."""

    NONE = "none"  # it passes by itself, or a person must see to it
    RELEASE = "release"  # the DAGMan job from its hold
    KICK = "kick"  # the DAGMan process: the schedd starts it again
    REPLACE = "replace"  # the DAGMan job by another that recovers nothing
    END = "end"  # the DAGMan process: no job of the queue is it any more
    SUBMIT = "submit"  # the DAG again: no job of the queue runs it
    COPY = "copy"  # the region's files are sent with the job
    SERVE = "serve"  # the optimiser's service is started


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault of one DAGMan of a run, or of the job of one trial.

    Attributes:
        region: the slug of the region whose DAGMan or trial it is; None for the whole graph's.
        job: its cluster id; None where there is none.
        what: in words, without changing figures: the same fault reads the same at every look.
        remedy: what mends it.
        patience: seconds that it may last.
        is_sure: whether one look shows it; else queue and files may only differ by a moment.
        has_parent: whether the whole graph's DAGMan waits for this one, a region's.
        node: the trial's node in the region's graph; None for a DAGMan.
    """

    region: str | None
    job: int | None = None
    what: str
    remedy: Remedy
    patience: float
    is_sure: bool = True
    has_parent: bool = False
    node: str | None = None

    def by_person(self) -> Fault:
        """The same for a person who asks that it be mended: a hold of a person's is released."""
        is_hold = self.remedy is Remedy.NONE
        return replace(self, remedy=Remedy.RELEASE) if is_hold else self

    def __str__(self) -> str:
        return f"{self.region}: {self.what}" if self.region else self.what


def faults(folder: RunFolder, ads: Iterable[Ad], now: float) -> list[Fault]:
    """Return what is wrong with a run at this moment.

    Its jobs' `ads` have the attributes of `PROJECTION`, as the queue had them just now.
    """
    ads = list(ads)
    with_jobs = _nodes_with_jobs(ads)
    dagmans = [_Dagman(folder, ad, with_jobs[ad["ClusterId"]]) for ad in ads if is_dagman(ad)]
    orphans = _orphans(folder, [dagman.ad for dagman in dagmans])
    if not any("DAGManJobId" not in dagman.ad for dagman in dagmans):
        return orphans or _of_absence(folder)
    of_jobs = [fault for dagman in dagmans if (fault := dagman.fault(now))]
    orphaned = {orphan.region for orphan in orphans}
    of_regions = [fault for fault in of_jobs if fault.region not in orphaned]
    return orphans + of_regions + _of_trials(folder, ads, now) + _unanswered(folder, ads)


def _of_trials(folder: RunFolder, ads: list[Ad], now: float) -> list[Fault]:
    """The trials whose jobs wait for files that nobody sends; of a gang's jobs, one."""
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
        for ad in {ad["ClusterId"]: ad for ad in overdue(folder, ads, now)}.values()
    ]


def _unanswered(folder: RunFolder, ads: list[Ad]) -> list[Fault]:
    """Agents that ask while no service runs: no script begins meanwhile, which would start one."""
    running = (ad for ad in ads if ad["JobStatus"] == JobStatus.RUNNING and "TrialfleetNode" in ad)
    if is_served(str(folder.root)):  # first: a thousand jobs' words are two thousand files
        return []
    asks = next((ad for ad in running if asked_since(place_of(folder, ad)) is not None), None)
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
    """The files of a region's DAG; those of the whole graph's for None."""
    return folder.dag_files if region is None else folder.region(region).dag_files


def _nodes_with_jobs(ads: list[Ad]) -> defaultdict[int, set[str]]:
    """The names of the nodes that have a job, by the cluster id of their DAGMan."""
    found: defaultdict[int, set[str]] = defaultdict(set)
    for ad in ads:
        if "DAGManJobId" in ad and "DAGNodeName" in ad:
            found[ad["DAGManJobId"]].add(str(ad["DAGNodeName"]))
    return found


class _Dagman:
    """A DAGMan job of a run."""

    def __init__(self, folder: RunFolder, ad: Ad, nodes_with_jobs: set[str]) -> None:
        self.ad = ad
        self._region: str | None = ad.get("TrialfleetRegion")
        self._files = dag_files(folder, self._region)
        self._nodes_with_jobs = nodes_with_jobs

    def fault(self, now: float) -> Fault | None:
        """What is wrong with it, if anything is."""
        if self.ad["JobStatus"] == JobStatus.HELD:
            return self._on_hold()
        if self.ad["JobStatus"] == JobStatus.IDLE:
            return self._cooling_down(now)
        if self.ad["JobStatus"] == JobStatus.RUNNING:
            return self._silent(now) or self._waiting_in_vain(now)
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

    def _last_word(self) -> float:
        return job_files.stamp_of(self._files.node_status)[1] / 1e9

    def _on_hold(self) -> Fault:
        by_person = self.ad.get("HoldReasonCode") == HELD_BY_A_PERSON
        reason = f"its DAGMan is on hold: {self.ad.get('HoldReason') or 'no reason given'}"
        return self._fault(reason, Remedy.NONE if by_person else Remedy.RELEASE, 20.0)

    def _cooling_down(self, now: float) -> Fault | None:
        left = self.ad.get("JobCoolDownExpiration", 0) - now
        if left <= 0:
            return None
        code = self.ad.get("ExitCode")  # the end of a process that was killed has none
        how = "was killed" if code is None else f"ended by itself with exit code {code}"
        reason = f"its DAGMan {how} and is to start again"
        return self._fault(reason, Remedy.REPLACE, 0.0 if left > LONG_COOL_DOWN else SHORT_PATIENCE)

    def _silent(self, now: float) -> Fault | None:
        """DAGMan writes its node status file every 5 s, whether anything happens or not."""
        if _between(now, self.ad["EnteredCurrentStatus"]) < SILENT:
            return None
        if _between(now, self._last_word()) < SILENT:
            return None
        what = f"its DAGMan has said nothing for more than {SILENT:.0f} s"
        return self._fault(what, Remedy.KICK, SILENT_PATIENCE)

    def _waiting_in_vain(self, now: float) -> Fault | None:
        """A node whose end DAGMan will never hear of.

        What DAGMan wrote before it stood still, or was started again, says nothing of this moment.
        """
        written = self._last_word()
        if written < self.ad["EnteredCurrentStatus"] or _between(now, written) > FRESH:
            return None
        nodes = read_node_status(self._files.node_status)
        return self._without_jobs(nodes) or self._passed_over(nodes)

    def _without_jobs(self, nodes: dict[str, NodeStatus]) -> Fault | None:
        """A job's end that DAGMan was never told, because the disk was full, say."""
        waited = {name for name, node in nodes.items() if node.submitted}
        if not (lost := sorted(waited - self._nodes_with_jobs)):
            return None
        reason = f"DAGMan waits for jobs that no queue has: {first_of(lost, 3)}"
        return replace(self._fault(reason, Remedy.REPLACE, LOST_PATIENCE), is_sure=False)

    def _passed_over(self, nodes: dict[str, NodeStatus]) -> Fault | None:
        """A script's end that DAGMan did nothing with; its recovery does."""
        waited = {name for name, node in nodes.items() if node.in_post}
        if not waited:
            return None
        ended = passed_over(self._files.nodes_log, self.ad["EnteredCurrentStatus"])
        if not (left := sorted(waited & ended)):
            return None
        reason = f"DAGMan passed over the end of a script: {first_of(left, 3)}"
        return self._fault(reason, Remedy.KICK, ABSENT_PATIENCE)


def _orphans(folder: RunFolder, dagmans: list[Ad]) -> list[Fault]:
    """DAGMan processes that outlived their schedd: they submit nothing, and keep others out."""
    waits = {JobStatus.IDLE, JobStatus.HELD}
    served = {ad.get("TrialfleetRegion") for ad in dagmans if ad["JobStatus"] not in waits}
    what = "a DAGMan runs it that no job of the queue is"
    return [
        Fault(region=region, what=what, remedy=Remedy.END, patience=LOST_PATIENCE, is_sure=False)
        for files, region in _graphs(folder)
        if region not in served and is_locked(files)
    ]


def _between(now: float, then: float) -> float:
    """Seconds between two moments, should the clock have been set back meanwhile, too."""
    return abs(now - then)


def _of_absence(folder: RunFolder) -> list[Fault]:
    """A graph that no job of the queue runs, although nobody stopped it and it isn't over."""
    if _is_over(folder):  # but for the report, perhaps
        left = None if folder.report_page.exists() else _cut_off(folder) or _before_report(folder)
        found = left or _lost([(folder.dag_files, None)])
    else:
        found = _cut_off(folder) or _lost(_graphs(folder)) or _gave_up(folder)
    if found is None:
        return []
    region, what = found
    return [Fault(region=region, what=what, remedy=Remedy.SUBMIT, patience=ABSENT_PATIENCE)]


def _cut_off(folder: RunFolder) -> tuple[str | None, str] | None:
    """A submission that was begun and whose DAGMan never came to life."""
    noted = read_submission(folder)
    if noted is None:
        return None
    if noted.handed_over and dag_files(folder, noted.region).node_status.exists():
        return None  # moved away before each submission: this is of the new DAGMan
    return noted.region, "its submission was cut off"


def _lost(graphs: list[tuple[DagFiles, str | None]]) -> tuple[str | None, str] | None:
    """A DAGMan that came to no end of its own: it removes its lock then."""
    for files, region in graphs:
        if files.lock.exists() and not is_locked(files) and removal(files) is None:
            return region, "HTCondor's queue has lost its DAGMan"
    return None


def _gave_up(folder: RunFolder) -> tuple[str | None, str] | None:
    if ended_by_error(folder.dag_files):
        return None, "its DAGMan gave up"
    left = _untaken(folder) if ended_by_node(folder.dag_files) else []
    return (None, f"HTCondor did not take the DAGMan of {first_of(left, 3)}") if left else None


def _before_report(folder: RunFolder) -> tuple[str | None, str] | None:
    """A graph that ended before its last node, though its regions came to their end without it."""
    files = folder.dag_files
    report = read_node_status(files.node_status).get("report")
    is_tried = report is not None and report.failed
    if ended_by_error(files) or (ended_by_node(files) and not is_tried):
        return None, "its DAGMan ended before the report"
    return None


def _untaken(folder: RunFolder) -> list[str]:
    """The regions whose DAGMan HTCondor did not take when it was to be submitted last."""
    return [
        files.root.name
        for files in _left(folder)
        if any(each.script == "end" for each in failing_scripts(files.failing))
    ]


@dataclass(frozen=True)
class Submission:
    """A run that is to be in the queue.

    Attributes:
        region: the region whose graph alone it is; None for the whole graph.
        handed_over: whether HTCondor has it.
    """

    region: str | None
    handed_over: bool


def read_submission(folder: RunFolder) -> Submission | None:
    """Return what is noted of a run's last submission; None if it was stopped since."""
    return unless_damaged(lambda: Submission(**read_json(folder.submission)), None)


def _graphs(folder: RunFolder) -> list[tuple[DagFiles, str | None]]:
    regions = sorted(path.name for path in folder.regions.iterdir())
    return [(dag_files(folder, region), region) for region in (None, *regions)]


def _is_over(folder: RunFolder) -> bool:
    return not any(_left(folder))


def _left(folder: RunFolder) -> Iterator[RegionFolder]:
    """The regions that are not over, by name."""
    for path in sorted(folder.regions.iterdir()):
        files = folder.region(path.name)
        if not (files.is_done or files.stopped.exists()):
            yield files


def mends(folder: RunFolder) -> list[dict[str, Any]]:
    """Return what was mended, oldest first: `{"time", "region", "what", "remedy"}` each."""
    noted: list[dict[str, Any]] = unless_damaged(lambda: read_json(folder.repairs), [])
    return noted
