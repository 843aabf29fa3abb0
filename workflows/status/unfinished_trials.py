"""A run's unfinished trials, and the progress of the running ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trialfleet.optimizer.stored_trials import StoredTrial
from trialfleet.workflows.facts.dagman.job_queue import QueuedRun
from trialfleet.workflows.facts.jobs.agent_messages import read_order
from trialfleet.workflows.facts.jobs.gang_records import ranks_and_generation
from trialfleet.workflows.facts.jobs.job_log import read_starts
from trialfleet.workflows.facts.jobs.ordered_trial import current_trial, ordered_trial
from trialfleet.workflows.facts.jobs.progress import last_report
from trialfleet.workflows.facts.run_folder.dag_structure import RegionGraph
from trialfleet.workflows.facts.run_folder.folder import RegionFolder, TrialFolder
from trialfleet.workflows.rules.states import RunState, TrialState, unfinished_state


@dataclass(frozen=True, kw_only=True)
class RunningTrial:
    """A trial, full training or gate that a job executes now, or a job between two trials.

    Attributes:
        node: the trial's name. For a full training, a gate, or a job between two trials: the name
            of the DAG node.
        slot: HTCondor's name of the slot, such as `slot1_1@host`.
        started: when its execution began, in Unix seconds.
        value: the objective's metric in the last report.
        ranks: the number of a gang's jobs that train now, or 0 while the jobs get ready. None
            without a gang.
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
    """Return a region's running trials with their progress, sorted by DAG node.

    `unfinished` has the names of trials with no recorded result. If the queue is unreachable, the
    result is empty.
    """
    jobs = queued.running_jobs if queued else {}
    ends = {region.best, region.gate}
    own = jobs.keys() & {*region.trial_nodes, *ends}
    found = []
    for node in sorted(own):
        name = node if node in ends else current_trial(files, node, unfinished) or node
        place = files.node_folder(name)
        at = ordered_trial(files, node) if name == node else place
        if end := next((end for end in ends if files.node_folder(end).root == at.root), None):
            name, place = end, at  # also if a lane's job runs it
        found.append(_running_trial(name, place, jobs[node], metric, is_gang=region.gangs))
    return tuple(found)


def _running_trial(
    name: str, place: TrialFolder, ad: Mapping[str, Any], metric: str, *, is_gang: bool
) -> RunningTrial:
    step, value = _last_report(place, metric) or (None, None)
    started = ad.get("JobCurrentStartExecutingDate")
    if place.is_shared and (starts := read_starts(place)):
        started = starts[-1].began
    return RunningTrial(
        node=name,
        slot=str(ad["RemoteHost"]) if "RemoteHost" in ad else None,
        started=None if started is None else float(started),
        step=step,
        value=value,
        **(ranks_and_generation(place) if is_gang else {}),
    )


def _last_report(place: TrialFolder, metric: str) -> tuple[int, float | None] | None:
    """Return the step and the `metric` of a trial's last report.

    The result is None without a report, or if the trial's job now trains another trial.
    """
    order = read_order(place)
    if place.is_shared and (order is None or order.name != place.root.name):
        return None
    return last_report(place.reports, metric)


def unfinished_states(
    files: RegionFolder,
    region: RegionGraph,
    trials: list[StoredTrial],
    state: RunState,
    queued: QueuedRun | None,
) -> dict[str, TrialState]:
    """Return the states of a region's trials without a recorded result, by name."""
    running = queued.running if queued else frozenset()
    held = {job.node for job in queued.held} if queued else set()
    names = [str(trial.user_attrs.get("node")) for trial in trials if not trial.state.is_finished()]
    found = {}
    for name in names:
        node = region.find_node(name) or name
        is_current = current_trial(files, node, names) == name
        found[name] = unfinished_state(
            state, running=is_current and node in running, held=is_current and node in held
        )
    return found


def jobs_without_trial(
    files: RegionFolder,
    region: RegionGraph,
    unfinished: Iterable[str],
    queued: QueuedRun | None,
) -> int:
    """Return the number of a region's jobs that wait for a slot and will then ask for a trial."""
    if queued is None:
        return 0
    waiting = queued.idle.intersection(region.trial_nodes)
    if region.gangs:  # a gang may lack slots while some of its jobs have theirs
        some = queued.running.intersection(region.trial_nodes)
        orders = ((node, read_order(files.trial(node))) for node in some)
        waiting |= {node for node, order in orders if order and order.trial is None}
    return len(waiting - {region.find_node(name) for name in unfinished})
