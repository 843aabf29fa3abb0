"""The subject of `trialfleet why`, such as a run, a region or a job."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from trialfleet.errors import InputError, PoolError, TrialfleetError, join_names
from trialfleet.files import exists
from trialfleet.infra.pool import schedd
from trialfleet.infra.pool.connection import tools_hint
from trialfleet.spelling import did_you_mean
from trialfleet.workflows.facts.journal.folder import DailyFolder
from trialfleet.workflows.facts.journal.journal import Journal
from trialfleet.workflows.facts.run_folder.dag_structure import RegionGraph, build_graph
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.facts.run_folder.trial_names import parse_trial_range
from trialfleet.workflows.facts.runs.lookup import RUNS, find_run, runs_here
from trialfleet.workflows.names import region_slug
from trialfleet.workflows.status.status_reader import open_run
from trialfleet.workflows.study.frozen import load_frozen

What = Literal["run", "region", "node", "instance", "day"]
_INSTANCE = re.compile(r"i-[0-9a-z]+")
_JOB = re.compile(r"\d+(\.\d+)?")
_SHOWN = 10


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The subject of a question to `trialfleet why`.

    Attributes:
        word: the word as typed, or STUDY/REGION if several studies have a region of that name.
        what: the type of subject. A `day` is a region that had no run on its newest day, so that
            its outcome is only in the journal of daily runs.
        name: the region's name if the subject is a `day`.
        folder: the run's folder or, for a `day`, the folder of the study's runs.
        node: the name of the DAG node or trial.
        newest: whether a region or node was named without a run. Then the answer may be about a
            newer day on which the region had no run.
    """

    word: str
    what: What
    name: str = ""
    folder: Path | None = None
    region: RegionGraph | None = None
    node: str = ""
    newest: bool = False


def find_subject(word: str | None, run: str | None = None) -> Subject:
    """Return the subject that a word names.

    Args:
        word: a region (also STUDY/REGION or RUN/REGION), a trial, a DAG node, the id of a job or an
            instance, or a run. None means the run as a whole.
        run: the run in which the word is looked up. If the run has no such region or DAG node, the
            journal of the study's daily runs is searched. None means the newest run in `./runs`
            that has the region or DAG node, or a newer day on which the region had no run. A
            submitted run counts as newer than one that is only planned.

    Raises:
        InputError: no subject has this name, or `run` names no run.
        TrialfleetError: no subject was found, and a journal of daily runs that may have it is
            damaged.
    """
    if word is None:
        folder = _open_root(find_run(run))
        return Subject(word=folder.name, what="run", folder=folder)
    if run is not None:
        _open_root(find_run(run))  # InputError if `run` is no run
    if found := _find_in_runs(word, run):
        return found
    if _INSTANCE.fullmatch(word):
        place = find_run(run) if run or runs_here() else None
        return Subject(word=word, what="instance", folder=_open_root(place) if place else None)
    if _JOB.fullmatch(word):
        return _job(word, run)
    if run is None and (is_run := _run_subject(word)):
        return is_run
    # a damaged journal raises its error: the subject may be in it
    for folder in _days_here(_open_root(find_run(run)).parent.name if run else None):
        Journal(DailyFolder(folder).journal).attempts()
    raise InputError(_unknown_subject_text(word, run))


def _open_root(folder: Path) -> Path:
    return open_run(folder).root


def _find_in_runs(word: str, run: str | None) -> Subject | None:
    """Return the region, DAG node or trial that `word` means, or None if there is none.

    `word` is NAME, STUDY/NAME or RUN/NAME.
    """
    if found := _newest(word, word, run, None):
        return found
    before, _, name = word.partition("/")
    if not (before and name):
        return None
    if before in _study_names():
        return _newest(name, word, run, before)
    try:
        return _newest(name, word, run or str(find_run(before)), None)
    except InputError:
        return None


def _study_names() -> set[str]:
    return {found.study for found in runs_here()} | {place.name for place in _days_here(None)}


def _newest(name: str, word: str, run: str | None, study: str | None) -> Subject | None:
    """Return the region, DAG node or trial `name`, or None if there is none.

    `find_subject` describes which runs and days are searched. `study` limits them to one study.
    """
    if run is None:
        runs = [r for r in runs_here() if r.is_readable and study in {None, r.study}]
        runs.sort(key=lambda found: not found.submitted)
        folders, days = [(r.folder, r.planned) for r in runs], _days_here(study)
    else:
        folders = [(find_run(run), 0.0)]
        days = _days_here(_open_root(find_run(run)).parent.name)
    of_run = next((made for one in folders if (made := _in_run(name, *one))), None)
    of_day = max(filter(None, (_find_day(name, one) for one in days)), default=None)
    if of_run and (of_day is None or run is not None or of_run[0] >= of_day[0]):
        found = replace(of_run[1], word=word, newest=run is None)
    elif of_day:
        found = Subject(word=word, what="day", name=name, folder=of_day[1])
    else:
        return None
    if found.folder is None or found.what == "node" or word != name or not _is_shared(name):
        return found
    place = found.folder if found.what == "day" else found.folder.parent
    return replace(found, word=f"{place.name}/{name}")


def _is_shared(region: str) -> bool:
    slug = region_slug(region)
    folders = [run.folder.absolute() for run in runs_here() if run.is_readable]
    of_runs = {root.parent for root in folders if (RunFolder(root).regions / slug).is_dir()}
    of_days = {folder for folder in _days_here(None) if _find_day(region, folder)}
    return len(of_runs | of_days) > 1


def _in_run(name: str, folder: Path, planned: float) -> tuple[float, Subject] | None:
    slug, head = region_slug(name), name.partition(".")[0]
    regions = RunFolder(folder.absolute()).regions
    is_plain = re.fullmatch(r"[\w-]+", head) is not None
    if not ((regions / slug).is_dir() or (is_plain and exists(regions / head))):
        return None
    opened = _open_root(folder)
    for region in build_graph(load_frozen(RunFolder(opened).study).study).regions:
        if name in {region.name, region.slug}:
            return planned, Subject(word=name, what="region", folder=opened, region=region)
        if _is_node_or_trial(region, name):
            return planned, Subject(word=name, what="node", folder=opened, region=region, node=name)
    return None


def _is_node_or_trial(region: RegionGraph, name: str) -> bool:
    node, own = region.find_node(name), parse_trial_range(name)
    as_written = own.first <= region.trials and own.name(own.first, region.trials) == name
    return node is not None and (node == name or as_written)


def _job(word: str, run: str | None) -> Subject:
    cluster = word.partition(".")[0]
    names = ["TrialfleetFolder", "TrialfleetRegion", "TrialfleetNode", "DAGNodeName"]
    try:
        ads = schedd.query(f"ClusterId == {cluster}", names)
    except PoolError:
        ads = []
    if ads and "TrialfleetFolder" in ads[0]:
        slug, node = (ads[0].get(f"Trialfleet{name}", "") for name in ("Region", "Node"))
        return _job_subject(word, Path(ads[0]["TrialfleetFolder"]), slug, node)
    if ads:
        raise InputError(
            f"the job {word} is not a job of trialfleet; to see what HTCondor says of it: "
            f"condor_q -better-analyze {word}{tools_hint()}"
        )
    if found := _in_logs(int(cluster), word, run):
        return found
    raise InputError(
        f"the job {word} is neither in HTCondor's queue nor in the logs of a run in "
        f"{str(RUNS.absolute())!r}; to list the queue: condor_q -nobatch{tools_hint()}"
    )


def _job_subject(word: str, root: Path, slug: str = "", node: str = "") -> Subject:
    graph = build_graph(load_frozen(RunFolder(root).study).study)
    region = next((region for region in graph.regions if region.slug == slug), None)
    what: What = "run" if region is None else "node" if node else "region"
    return Subject(word=word, what=what, folder=root, region=region, node=node)


def _in_logs(cluster: int, word: str, run: str | None) -> Subject | None:
    event = re.compile(rb"^\d{3} \(%03d\." % cluster, re.MULTILINE)
    here = (found.folder for found in runs_here() if found.is_readable)  # newest first
    folders = [find_run(run)] if run else here
    for folder in folders:
        for log, slug, node in _job_logs(RunFolder(folder.absolute())):
            if log.is_file() and event.search(log.read_bytes()):
                return _job_subject(word, _open_root(folder), slug, node)
    return None


def _job_logs(files: RunFolder) -> Iterator[tuple[Path, str, str]]:
    """Yield each log of a run's jobs, with the slug of a region and the name of a DAG node.

    Both are "" for a log of the whole run. The name is "" for the log of a whole region.
    """
    for region in sorted(files.regions.glob("*")):
        yield files.region(region.name).dag_files.log, region.name, ""
    yield files.dag_files.log, "", ""
    yield files.dag_files.nodes_log, "", ""
    for log in sorted(files.regions.glob("*/*/**/log")):
        slug, name = log.relative_to(files.regions).parts[0], log.parent.name
        yield log, slug, name if log.parent.parent.name == "trials" else f"{slug}.{name}"


def _days_here(study: str | None) -> list[Path]:
    found = sorted(journal.parent for journal in RUNS.absolute().glob("*/daily.db"))
    return [folder for folder in found if study in {None, folder.name}]


def _find_day(region: str, folder: Path) -> tuple[float, Path] | None:
    """Return when a region's newest outcome was recorded, in Unix seconds, and `folder`.

    If the region has no outcome yet, the time is the start of the last attempt that includes the
    region. If the outcome has a run in `folder`, the time is 0, so that the caller prefers the run.
    The result is None if no attempt has included the region, or if the journal is damaged.
    """
    try:
        journal = Journal(DailyFolder(folder).journal)
        attempts = [one for one in journal.attempts() if region in one.regions]
        outcomes = journal.outcomes()
    except TrialfleetError:
        return None
    if not attempts:
        return None
    said = [one for one in outcomes if one.region == region and one.recorded]
    newest = max(said, key=lambda one: (one.date, one.attempt), default=None)
    if newest is None or newest.recorded is None:
        return attempts[-1].started.timestamp(), folder
    # an existing run has the outcome itself
    is_in_a_run = newest.run is not None and (folder / newest.run).is_dir()
    return (0.0 if is_in_a_run else newest.recorded.timestamp()), folder


def _run_subject(word: str) -> Subject | None:
    try:
        folder = _open_root(find_run(word))
    except InputError:
        return None
    return Subject(word=word, what="run", folder=folder)


def _unknown_subject_text(word: str, run: str | None) -> str:
    before, _, name = word.partition("/")
    if run is None and name and before in _study_names():
        run, word = before, name
    if run is None and not runs_here():
        return (
            f"{word!r} is not a run, region, node, job or instance; there are no runs in "
            f"{str(RUNS.absolute())!r}: make one with: trialfleet plan STUDY, or name a run's "
            "folder with --run"
        )
    folder = _open_root(find_run(run))
    graph = build_graph(load_frozen(RunFolder(folder).study).study).regions
    known = [region.name for region in graph]
    return (
        f"{word!r} is not a job, an instance, or a region or node of the run {folder.name!r}"
        f"{did_you_mean(word, known)}; regions: {join_names(known, _SHOWN)}"
        f"; a node, for example: {_node_like(word, graph)}"
    )


def _node_like(word: str, graph: Sequence[RegionGraph]) -> str:
    meant = (one for one in graph if word.partition(".")[0] in {one.name, one.slug})
    return next(meant, graph[0]).trial_nodes[0]
