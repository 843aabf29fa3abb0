"""When the machines ran which of a run's jobs: the report's timeline, of all regions, live."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from trialfleet import job_files
from trialfleet.optimizer.stored_trials import StoredTrial, is_stopped_early
from trialfleet.workflows.facts.jobs.job_log import Job, job_fields, stays_of
from trialfleet.workflows.facts.run_folder.folder import TrialFolder
from trialfleet.workflows.facts.runs.job_costs import noted_job
from trialfleet.workflows.rules.states import TrialState, trial_state
from trialfleet.workflows.status.run_status import RegionStatus
from trialfleet.workflows.views.report.timeline import GATE, Bar, Timeline, bars_of, lay_out
from trialfleet.workflows.views.serve.live import Snapshot

_MOST_KNOWN = 5_000  # regions whose finished trials are kept

# The executions of finished trials, by run and region: a trial that is finished stays as it is.
_known: dict[tuple[Path, str], dict[int, tuple[StoredTrial, tuple[Bar, ...]]]] = {}


def timeline_of_run(snapshot: Snapshot) -> Timeline:
    """Return what the jobs of a run noted when they ended, and those that run."""
    if len(_known) > _MOST_KNOWN:
        _known.clear()
    found: list[Bar] = []
    for at, region in enumerate(snapshot.look.status.regions):
        known = _known.setdefault((snapshot.folder.root, region.slug), {})
        for trial in snapshot.look.trials.get(region.name, ()):
            if not trial.state.is_finished():
                continue
            made = known.get(trial.number)
            if made is None or made[0] is not trial:
                made = known[trial.number] = trial, tuple(_of_trial(at, trial))
            found += made[1]
        found += _under_way(snapshot, at, region)
        found += _ends(snapshot, at, region)
    return lay_out(found)


def _of_trial(at: int, trial: StoredTrial) -> Iterator[Bar]:
    state = trial_state(trial.state.name, "", {}, stopped_early=is_stopped_early(trial))
    return _noted(at, trial.number, state, trial.user_attrs.get("job") or {})


def _noted(at: int, number: int | None, state: str, job: dict[str, Any]) -> Iterator[Bar]:
    yield from bars_of(at, number, state, Job(**job_fields(job)), stays_of(job), 0.0)


def _under_way(snapshot: Snapshot, at: int, region: RegionStatus) -> Iterator[Bar]:
    """What of a region runs now, until now."""
    graph, now = snapshot.graph[region.slug], snapshot.now.timestamp()
    trials: Sequence[StoredTrial] = snapshot.look.trials.get(region.name, ())
    numbers = {str(trial.user_attrs.get("node")): trial.number for trial in trials}
    ends = {graph.best: "full training", graph.gate: GATE}
    for each in region.running_trials:
        if each.started is None or each.node not in {*numbers, *ends}:
            continue
        state = ends.get(each.node, TrialState.RUNNING.value)
        job = Job(started=each.started, ended=max(each.started, now), slot=each.slot)
        yield from bars_of(at, numbers.get(each.node), state, job, (), now)


def _ends(snapshot: Snapshot, at: int, region: RegionStatus) -> Iterator[Bar]:
    """A region's full training and its gate, once they are over."""
    files, running = snapshot.folder.region(region.slug), {t.node for t in region.running_trials}
    graph = snapshot.graph[region.slug]
    for place, node, state in (
        (files.best, graph.best, "full training"),
        (files.gate, graph.gate, GATE),
    ):
        stamp = job_files.stamp_of(place.job)
        if any(stamp) and node not in running:
            yield from _noted(at, None, state, _job_in(place, stamp))


@lru_cache(maxsize=4096)
def _job_in(place: TrialFolder, _stamp: tuple[int, int]) -> dict[str, Any]:
    """What was noted of a job; read once."""
    return noted_job(place)
