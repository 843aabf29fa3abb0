"""The timeline of a run's live page, with the jobs of all regions on each machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from trialfleet import untrusted_files
from trialfleet.optimizer.stored_trials import StoredTrial
from trialfleet.workflows.facts.jobs.job_log import parse_stays
from trialfleet.workflows.facts.runs.trial_executions import noted_job
from trialfleet.workflows.rules.states import TrialState, trial_state
from trialfleet.workflows.status.status_types import RegionStatus
from trialfleet.workflows.views.report.timeline import (
    FULL_TRAINING,
    GATE,
    UNKNOWN_MACHINE,
    Bar,
    Timeline,
    job_bars,
    lay_out,
)
from trialfleet.workflows.views.serve.live_runs import Snapshot


def timeline_of_run(snapshot: Snapshot) -> Timeline:
    """Return the timeline of a run's ended and running jobs."""
    found: list[Bar] = []
    for at, region in enumerate(snapshot.run.status.regions):
        for trial in snapshot.run.trials.get(region.name, ()):
            if trial.state.is_finished():  # its data no longer change
                name = "bars", region.slug, trial.number
                found += snapshot.kept.get(name, at, partial(_trial_bars, at, trial))
        found += _under_way(snapshot, at, region)
        found += _end_node_bars(snapshot, at, region)
    return lay_out(found)


def _trial_bars(region_index: int, trial: StoredTrial) -> tuple[Bar, ...]:
    stays = parse_stays(trial.user_attrs.get("job") or {})
    return tuple(job_bars(region_index, trial.number, trial_state(trial, {}), stays, 0.0))


def _under_way(snapshot: Snapshot, at: int, region: RegionStatus) -> Iterator[Bar]:
    graph, now = snapshot.graph[region.slug], snapshot.now.timestamp()
    trials: Sequence[StoredTrial] = snapshot.run.trials.get(region.name, ())
    numbers = {str(trial.user_attrs.get("node")): trial.number for trial in trials}
    ends = {graph.best: FULL_TRAINING, graph.gate: GATE}
    for each in region.running_trials:
        if each.started is not None and each.node in {*numbers, *ends}:
            state = ends.get(each.node, TrialState.RUNNING.value)
            machine = (each.slot or "").rpartition("@")[2] or UNKNOWN_MACHINE
            end = max(each.started, now)
            yield Bar(at, numbers.get(each.node), state, each.started, end, machine)


def _end_node_bars(snapshot: Snapshot, region_index: int, region: RegionStatus) -> Iterator[Bar]:
    files, running = snapshot.folder.region(region.slug), {t.node for t in region.running_trials}
    graph = snapshot.graph[region.slug]
    for place, node, state in (
        (files.best, graph.best, FULL_TRAINING),
        (files.gate, graph.gate, GATE),
    ):
        stamp = untrusted_files.file_stamp(place.job)
        if any(stamp) and node not in running:
            job = snapshot.kept.get(("job", node), stamp, partial(noted_job, place))
            yield from job_bars(region_index, None, state, parse_stays(job), 0.0)
