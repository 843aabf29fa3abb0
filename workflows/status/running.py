"""The trials that run now, and how far each has come.

A node's job is at one trial at a time: that which is asked and not told. Its `progress.jsonl` is
where it executes. On the access point's own machine, as in the embedded pool, it is read there.
Elsewhere the job's agent brings the reports into `words/`, and has HTCondor carry the last one in
the job's ad, which comes with the news of what a job uses.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trialfleet import job_files
from trialfleet.workflows.dagman.job_queue import AT, STEP, VALUE, QueuedRun
from trialfleet.workflows.gang.records import ranks_and_generation, read_roster
from trialfleet.workflows.jobs.agent_words import read_order
from trialfleet.workflows.jobs.current import current_trial, place_at
from trialfleet.workflows.jobs.job_log import read_starts, sandbox_of
from trialfleet.workflows.plan.folder import TRIALS, RegionFolder, TrialFolder
from trialfleet.workflows.plan.graph import RegionGraph
from trialfleet.workflows.status.progress import last_report


@dataclass(frozen=True, kw_only=True)
class RunningTrial:
    """A trial, or a full training, whose job runs now.

    Attributes:
        node: its name; of a full training or a gate, and of a job between two trials, the node's.
        slot: where it runs, as HTCondor names it: `slot1_1@host`.
        started: since when, in Unix seconds.
        step: the last step that it reported, where that is known.
        value: the objective's metric in that report, if it was in it.
        ranks: of a gang, how many train now; 0 while a generation forms.
        generation: of a gang, its current one.
    """

    node: str
    slot: str | None
    started: float | None
    step: int | None
    value: float | None
    ranks: int | None = None
    generation: int | None = None


def running_trials(
    files: RegionFolder,
    region: RegionGraph,
    queued: QueuedRun | None,
    metric: str,
    unfinished: Collection[str] = (),
) -> tuple[RunningTrial, ...]:
    """Return how far each of a region's running trials has come, by their nodes.

    Args:
        files: the region's folder.
        region: its nodes.
        queued: what the job queue says of the run; None if it is out of reach.
        metric: the objective's.
        unfinished: the region's trials that are asked and not told, by their names.
    """
    jobs = queued.running_jobs if queued else {}
    ends = {region.best: files.best, region.gate: files.gate}
    own = jobs.keys() & {*region.trial_nodes, *ends}
    found = []
    for node in sorted(own):
        name = node if node in ends else current_trial(files, node, unfinished) or node
        place = ends.get(node) or files.trial(name)
        if name == node and (at := place_at(files, node)).root == files.best.root:
            name, place = region.best, at  # a lane's job has the full training
        found.append(_running_trial(name, place, jobs[node], metric))
    return tuple(found)


def _running_trial(
    name: str, place: TrialFolder, ad: Mapping[str, Any], metric: str
) -> RunningTrial:
    here = _report_here(place, metric) or _report_that_came(place, metric)
    step, value = here or _report_in(ad, place.root.name)
    started = ad.get("JobCurrentStartExecutingDate")
    if place.is_shared and (starts := read_starts(place)):
        started = starts[-1].began
    return RunningTrial(
        node=name,
        slot=str(ad["RemoteHost"]) if "RemoteHost" in ad else None,
        started=None if started is None else float(started),
        step=step,
        value=value,
        **ranks_and_generation(place),
    )


def _report_here(place: TrialFolder, metric: str) -> tuple[int, float | None] | None:
    """The last report of a job that executes on this machine."""
    roster = read_roster(place)
    sandbox = sandbox_of(place, roster.members[0].proc if roster and roster.members else 0)
    contract = _contract(place.trial_json)
    if sandbox is None or contract is None:
        return None
    sandbox = sandbox / TRIALS / place.root.name
    if _contract(sandbox / place.trial_json.name) != contract:
        return None  # another machine's: this one may have a folder of the same name
    return last_report(sandbox / place.progress.name, metric)


def _contract(file: Path) -> dict[str, Any] | None:
    """What a trial was given to train."""
    try:
        found = job_files.read_json(file, job_files.MOST_NOTES)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _report_that_came(place: TrialFolder, metric: str) -> tuple[int, float | None] | None:
    """The last report that the job's agent brought; it is of the trial that the job is at."""
    order = read_order(place)
    if place.is_shared and (order is None or order.name != place.root.name):
        return None
    return last_report(place.reports, metric)


def _report_in(ad: Mapping[str, Any], name: str) -> tuple[int | None, float | None]:
    step, value = ad.get(STEP), ad.get(VALUE)
    if ad.get(AT, name) != name:  # of what it was at before
        return None, None
    if not isinstance(step, int):
        return None, None
    return step, float(value) if isinstance(value, int | float) else None
