"""What the word behind `trialfleet why` names: a run, a region, a node, a job or an instance."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trialfleet.errors import InputError, PoolError
from trialfleet.infra.pool.connection import where_tools_work
from trialfleet.spelling import did_you_mean
from trialfleet.workflows.dagman import job_queue
from trialfleet.workflows.daily.folder import DailyFolder
from trialfleet.workflows.names import region_slug
from trialfleet.workflows.plan.folder import RunFolder
from trialfleet.workflows.plan.graph import RegionGraph, graph_of
from trialfleet.workflows.run.lookup import RUNS, FoundRun, find_run, runs_here
from trialfleet.workflows.status.status import open_run
from trialfleet.workflows.study.frozen import load_frozen

What = Literal["run", "region", "node", "instance", "day", "foreign job"]
_INSTANCE = re.compile(r"i-[0-9a-z]+")
_JOB = re.compile(r"\d+(\.\d+)?")
_SHOWN = 10


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is asked about.

    Attributes:
        word: as it was typed.
        what: what it is. A `day` is a region that the journal of a study's days knows and no run.
        folder: its run's; for a day the folder of the study's runs.
        region: the region's graph.
        node: the DAG node.
        job: the job's id, where that was typed.
    """

    word: str
    what: What
    folder: Path | None = None
    region: RegionGraph | None = None
    node: str = ""
    job: str = ""


def find_subject(word: str | None, run: str | None = None) -> Subject:
    """Return what a word names.

    Args:
        word: a region's name, a DAG node's, a job's or an instance's id, a run; None: the run.
        run: the run that is meant; default: the newest here that has such a region or node.

    Raises:
        InputError: nothing is called so; names what there is.
    """
    if word is None:
        return Subject(word=str(find_run(run).name), what="run", folder=_opened(find_run(run)))
    if found := _in_runs(word, run):
        return found
    if _INSTANCE.fullmatch(word):
        folder = find_run(run) if run or runs_here() else None
        return Subject(word=word, what="instance", folder=_opened(folder) if folder else None)
    if _JOB.fullmatch(word):
        return _job(word, run)
    if found := _of_a_day(word):
        return found
    if run is None and (is_run := _as_run(word)):
        return is_run
    raise InputError(_unknown(word, run))


def _opened(folder: Path) -> Path:
    return open_run(folder).root


def _in_runs(word: str, run: str | None) -> Subject | None:
    """A region or node of the run that is named, else of the newest that has it."""
    slug = region_slug(word)
    head = word.partition(".")[0]
    folders = [find_run(run)] if run else [found.folder for found in _submitted_first()]
    for folder in folders:
        regions = RunFolder(folder.absolute()).regions
        if not ((regions / slug).is_dir() or (_is_plain(head) and (regions / head).is_dir())):
            continue
        for region in graph_of(load_frozen(RunFolder(_opened(folder)).study).study).regions:
            if word in {region.name, region.slug}:
                return Subject(word=word, what="region", folder=_opened(folder), region=region)
            if word in {*region.trial_nodes, *region.ends}:
                return Subject(
                    word=word, what="node", folder=_opened(folder), region=region, node=word
                )
    return None


def _is_plain(name: str) -> bool:
    return re.fullmatch(r"[\w-]+", name) is not None


def _submitted_first() -> list[FoundRun]:
    return sorted(runs_here(), key=lambda found: not found.submitted)


def _job(word: str, run: str | None) -> Subject:
    cluster = word.partition(".")[0]
    names = ["TrialfleetFolder", "TrialfleetRegion", "TrialfleetNode", "DAGNodeName"]
    try:
        ads = job_queue.query(f"ClusterId == {cluster}", names)
    except PoolError:
        ads = []
    if ads and "TrialfleetFolder" in ads[0]:
        return _of_job(word, ads[0]["TrialfleetFolder"], ads[0])
    if ads:
        return Subject(word=word, what="foreign job", job=word)
    if found := _in_logs(int(cluster), word, run):
        return found
    raise InputError(
        f"no job {word} is in HTCondor's queue or in the logs of a run in "
        f"{str(RUNS.absolute())!r}; those in the queue: condor_q -nobatch{where_tools_work()}"
    )


def _of_job(word: str, folder: str, ad: dict[str, str]) -> Subject:
    root = Path(folder)
    graph = graph_of(load_frozen(RunFolder(root).study).study)
    slug = ad.get("TrialfleetRegion")
    region = next((region for region in graph.regions if region.slug == slug), None)
    node = ad.get("TrialfleetNode", "")
    if region is not None and node:
        return Subject(word=word, what="node", folder=root, region=region, node=node, job=word)
    if region is not None:
        return Subject(word=word, what="region", folder=root, region=region, job=word)
    return Subject(word=word, what="run", folder=root, job=word)


def _in_logs(cluster: int, word: str, run: str | None) -> Subject | None:
    """A job that has left the queue: its event log lies with its trial, or its graph."""
    event = re.compile(rb"^\d{3} \(%03d\." % cluster, re.MULTILINE)
    folders = [find_run(run)] if run else [found.folder for found in runs_here()]  # newest first
    for folder in folders:
        if (found := _among_graphs(RunFolder(folder.absolute()), event, word)) is not None:
            return found
        for log in sorted(RunFolder(folder.absolute()).regions.glob("*/*/**/log")):
            if not event.search(log.read_bytes()):
                continue
            slug = log.relative_to(folder.absolute() / "regions").parts[0]
            node = log.parent.name if log.parent.parent.name == "trials" else ""
            node = node or f"{slug}.{log.parent.name}"
            return _of_job(
                word, str(_opened(folder)), {"TrialfleetRegion": slug, "TrialfleetNode": node}
            )
    return None


def _among_graphs(files: RunFolder, event: re.Pattern[bytes], word: str) -> Subject | None:
    """A DAGMan job, the run's or a region's, or one of the run's own beside its trials."""

    def has(log: Path) -> bool:
        return log.is_file() and event.search(log.read_bytes()) is not None

    for region in sorted(files.regions.glob("*")):
        if has(files.region(region.name).dag_files.log):
            return _of_job(word, str(_opened(files.root)), {"TrialfleetRegion": region.name})
    if has(files.dag_files.log) or has(files.dag_files.nodes_log):
        return _of_job(word, str(_opened(files.root)), {})
    return None


def _of_a_day(word: str) -> Subject | None:
    """A region that has ended a day without a run."""
    for journal in sorted(RUNS.absolute().glob("*/daily.db")):
        from trialfleet.workflows.daily.journal import Journal

        known = Journal(DailyFolder(journal.parent).journal).attempts()
        if any(word in attempt.regions for attempt in known):
            return Subject(word=word, what="day", folder=journal.parent)
    return None


def _as_run(word: str) -> Subject | None:
    try:
        folder = _opened(find_run(word))
    except InputError:
        return None
    return Subject(word=word, what="run", folder=folder)


def _unknown(word: str, run: str | None) -> str:
    known: list[str] = []
    where = f"no run in {str(RUNS.absolute())!r}"
    if run or runs_here():
        folder = _opened(find_run(run))
        known = [
            region.name for region in graph_of(load_frozen(folder / "study.yaml").study).regions
        ]
        where = f"the run {folder.name!r}"
    more = f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
    regions = f"; regions: {', '.join(known[:_SHOWN])}{more}" if known else ""
    return (
        f"{word!r} is no region or node of {where}, no job and no instance"
        f"{did_you_mean(word, known)}{regions}"
    )
