"""What a run's jobs have cost: as was noted when they ended, else by their logs or the queue."""

from __future__ import annotations

import time
from collections.abc import Container, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from trialfleet import job_files
from trialfleet.errors import InputError
from trialfleet.optimizer.stored_trials import StoredTrial
from trialfleet.workflows.costs.budget import Spending
from trialfleet.workflows.costs.cost import SLOT_OF_JOB, cost, slot_price
from trialfleet.workflows.dagman.job_queue import QueuedRun
from trialfleet.workflows.jobs.current import end_place, in_lane, lane_of, shared_nodes
from trialfleet.workflows.jobs.job_log import (
    JobNotes,
    Stay,
    read_between,
    read_stays,
    stays_of,
    total,
)
from trialfleet.workflows.plan.folder import RegionFolder, TrialFolder
from trialfleet.workflows.study.spec import Study

if TYPE_CHECKING:
    from trialfleet.workflows.status.causes import AnyTrial


def region_usd(
    files: RegionFolder,
    trials: Iterable[StoredTrial],
    queued: QueuedRun | None,
    study: Study,
) -> float | None:
    """Return what a region has cost so far; None without any price.

    Only of jobs that train several trials the logs are looked at.

    Args:
        files: the region's.
        trials: its trials; what those that aren't told cost in former attempts is missing, where
            their jobs train no others.
        queued: what the job queue says of the run; None if it is out of reach.
        study: the run's.
    """
    shared = shared_nodes(files)
    trials = list(trials)
    jobs = [trial.user_attrs.get("job") or {} for trial in trials]
    jobs += [] if shared else [noted_job(place) for place in (files.best, files.gate)]
    recorded = [usd for job in jobs if (usd := job.get("usd")) is not None]
    running = queued.running_ads if queued else ()
    own = [
        ad
        for ad in running
        if ad.get("TrialfleetRegion") == files.root.name and ad["TrialfleetNode"] not in shared
    ]
    so_far = [_so_far(ad, study.usd_per_hour) for ad in own]
    if shared:
        so_far += _of_shared(files, trials, queued.running if queued else (), study)
    known = [*recorded, *(usd for usd in so_far if usd is not None)]
    return sum(known) if known else None


def _of_shared(
    files: RegionFolder, trials: Iterable[StoredTrial], running: Container[str], study: Study
) -> list[float | None]:
    """What of the jobs that train several trials isn't noted with a trial, by their logs."""
    now, stays = time.time(), []
    for trial in trials:
        place = files.trial(str(trial.user_attrs.get("node")))
        if place.is_shared and not trial.user_attrs.get("job"):
            stays += trial_stays(files, trial, study, _if_runs(place, running, now))
    for node in shared_nodes(files):
        place = files.trial(node)
        stays += read_between(place.log, study.usd_per_hour, now=_if_runs(place, running, now))
    for end in (files.best, files.gate):
        stays += end_stays(files, end, study, _if_runs(end_place(files, end), running, now))
    return [stay.usd for stay in stays]


def _if_runs(place: TrialFolder, running: Container[str], now: float) -> float | None:
    return now if place.node_root.name in running else None


def _so_far(ad: Mapping[str, Any], price: float | None) -> float | None:
    """What the execution that goes on has cost, by the job's ad."""
    slot = {name: ad.get(attribute) for name, attribute in SLOT_OF_JOB.items()}
    hourly, began = slot_price(slot, price), ad.get("JobCurrentStartExecutingDate")
    if hourly is None or began is None:
        return None
    return cost(hourly, 1.0, max(0.0, time.time() - began))


def noted_job(place: TrialFolder) -> dict[str, Any]:
    """Return what was noted of a full training's job, or a gate's; nothing where that is damaged.

    Its event log says the same.
    """
    try:
        return job_files.read_record(place.job, shape=JobNotes)
    except InputError:
        return {}


def region_spending(
    files: RegionFolder, trials: Iterable[AnyTrial], study: Study, now: float | None
) -> Spending:
    """Return what a region has spent of its budget; what nobody knows the price of is nothing.

    Args:
        files: the region's.
        trials: its trials, each with its node.
        study: the run's.
        now: until when those execute that may do so still; None: none does.
    """
    costs = {trial.number: (trial, trial_stays(files, trial, study, now)) for trial in trials}
    full = end_stays(files, files.best, study, None if files.is_done else now)
    gate = end_stays(files, files.gate, study, None if files.is_done else now)
    between = between_stays(files, study, now)
    return Spending(
        trials=tuple(
            usd
            for trial, stays in costs.values()
            if trial.state.is_finished() and (usd := total(stays)) is not None
        ),
        under_way=tuple(
            total(stays) or 0.0 for trial, stays in costs.values() if not trial.state.is_finished()
        ),
        full=total(full) if full else None,
        full_is_over=files.is_done or files.stopped.exists() or not study.publishes,
        others=(total(gate) or 0.0) + (total(between) or 0.0),
    )


def trial_stays(
    files: RegionFolder, trial: AnyTrial, study: Study, now: float | None
) -> list[Stay]:
    """Return the executions of a trial.

    Args:
        files: its region's.
        trial: as the storage has it.
        study: the run's.
        now: until when a trial executes that may do so still; None: none does.
    """
    is_over = trial.state.is_finished()
    if is_over and (noted := stays_of(trial.user_attrs.get("job") or {})):
        return noted
    place = files.trial(str(trial.user_attrs["node"]))
    failed = is_over and trial.state.name != "COMPLETE"
    return read_stays(place, study.usd_per_hour, failed=failed, now=None if is_over else now)


def between_stays(files: RegionFolder, study: Study, now: float | None) -> list[Stay]:
    """Return when jobs that train several trials were at none; arguments as above.

    With the stays of their trials that is all that these jobs are to be paid for.
    """
    until = None if files.is_done else now
    logs = (files.trial(node).log for node in shared_nodes(files))
    return [stay for log in logs for stay in read_between(log, study.usd_per_hour, now=until)]


def end_stays(files: RegionFolder, end: TrialFolder, study: Study, now: float | None) -> list[Stay]:
    """Return the executions of a full training, or a gate: in a lane's job, in its own, or in both.

    Args:
        files: its region's.
        end: its folder.
        study: the run's.
        now: as above.
    """
    nodes, lane = shared_nodes(files), lane_of(files, end)
    if not nodes:
        return _stays_of_own(end, study, now)
    found = read_stays(end, study.usd_per_hour, now=now)
    for node in nodes:
        in_vain = node != lane  # it failed there, and was tried again
        place = in_lane(files, end, node)
        found += read_stays(place, study.usd_per_hour, failed=in_vain, now=now)
    return sorted(found, key=lambda stay: stay.began) or stays_of(noted_job(end))


def _stays_of_own(place: TrialFolder, study: Study, now: float | None) -> list[Stay]:
    """The executions of a full training, or a gate, that has a job of its own."""
    if now is None and (noted := stays_of(noted_job(place))):
        return noted
    return read_stays(place, study.usd_per_hour, now=now)
