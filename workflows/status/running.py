"""The trials that run now, and how far each has come.

While a job runs, its `progress.jsonl` is where it executes: HTCondor brings it when the job ends.
On the access point's own machine, as in the embedded pool, it is read there. Elsewhere, with early
stopping, the trial's courier brings the reports into its folder. Without it `trial.py` has HTCondor
carry the last report in the job's ad, which comes with the news of what a job uses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trialfleet import job_files
from trialfleet.workflows.dagman.job_queue import STEP, VALUE, QueuedRun
from trialfleet.workflows.gang.records import ranks_and_generation, read_roster
from trialfleet.workflows.jobs.job_log import sandbox_of
from trialfleet.workflows.plan.folder import RegionFolder, TrialFolder
from trialfleet.workflows.plan.graph import RegionGraph
from trialfleet.workflows.status.progress import last_report


@dataclass(frozen=True, kw_only=True)
class RunningTrial:
    """A trial, or a full training, whose job runs now.

    Attributes:
        node: its DAG node.
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
    files: RegionFolder, region: RegionGraph, queued: QueuedRun | None, metric: str
) -> tuple[RunningTrial, ...]:
    """Return how far each of a region's running trials has come, by node.

    Args:
        files: the region's folder.
        region: its nodes.
        queued: what the job queue says of the run; None if it is out of reach.
        metric: the objective's.
    """
    jobs = queued.running_jobs if queued else {}
    ends = {region.best: files.best, region.gate: files.gate}
    own = jobs.keys() & {*region.trial_nodes, *ends}
    return tuple(
        _running_trial(node, ends.get(node) or files.trial(node), jobs[node], metric)
        for node in sorted(own)
    )


def _running_trial(
    node: str, place: TrialFolder, ad: Mapping[str, Any], metric: str
) -> RunningTrial:
    here = _report_here(place, metric) or last_report(place.reports, metric)
    step, value = here or _report_in(ad)
    started = ad.get("JobCurrentStartExecutingDate")
    return RunningTrial(
        node=node,
        slot=str(ad["RemoteHost"]) if "RemoteHost" in ad else None,
        started=None if started is None else float(started),
        step=step,
        value=value,
        **ranks_and_generation(place),
    )


def _report_here(place: TrialFolder, metric: str) -> tuple[int, float | None] | None:
    """The last report of a job that executes on this machine."""
    roster = read_roster(place)
    sandbox = sandbox_of(place.log, roster.members[0].proc if roster and roster.members else 0)
    if sandbox is None or not _is_of(sandbox, place):
        return None
    return last_report(sandbox / place.progress.name, metric)


def _is_of(sandbox: Path, place: TrialFolder) -> bool:
    """Whether the job's folder is on this machine: another may have one of the same name."""
    try:
        ours = job_files.read_bytes(place.trial_json, job_files.MOST_NOTES)
        theirs = job_files.read_bytes(sandbox / place.trial_json.name, job_files.MOST_NOTES)
    except OSError:
        return False
    return ours == theirs


def _report_in(ad: Mapping[str, Any]) -> tuple[int | None, float | None]:
    step, value = ad.get(STEP), ad.get(VALUE)
    if not isinstance(step, int):
        return None, None
    return step, float(value) if isinstance(value, int | float) else None
