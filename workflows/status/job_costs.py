"""What a run's jobs have cost: as was noted when they ended, else by their logs or the queue."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from trialfleet import job_files
from trialfleet.errors import InputError
from trialfleet.optimizer.stored_trials import StoredTrial
from trialfleet.workflows.costs.budget import Spending
from trialfleet.workflows.costs.cost import SLOT_OF_JOB, cost, slot_price
from trialfleet.workflows.dagman.job_queue import QueuedRun
from trialfleet.workflows.jobs.job_log import Stay, read_stays, stays_of, total
from trialfleet.workflows.plan.folder import RegionFolder, TrialFolder
from trialfleet.workflows.record_shapes import JobNotes
from trialfleet.workflows.study.spec import Study

if TYPE_CHECKING:
    from trialfleet.workflows.status.causes import AnyTrial


def region_usd(
    files: RegionFolder,
    trials: Iterable[StoredTrial],
    queued: QueuedRun | None,
    study: Study,
) -> float | None:
    """Return what a region has cost so far, without a look at any log; None without any price.

    Args:
        files: the region's.
        trials: its trials; what those that aren't told cost in former attempts is missing.
        queued: what the job queue says of the run; None if it is out of reach.
        study: the run's.
    """
    jobs = [trial.user_attrs.get("job") or {} for trial in trials]
    jobs += [noted_job(place) for place in (files.best, files.gate)]
    recorded = [usd for job in jobs if (usd := job.get("usd")) is not None]
    running = queued.running_ads if queued else ()
    own = [ad for ad in running if ad.get("TrialfleetRegion") == files.root.name]
    so_far = (_so_far(ad, study.usd_per_hour) for ad in own)
    known = [*recorded, *(usd for usd in so_far if usd is not None)]
    return sum(known) if known else None


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
    full = place_stays(files.best, study, None if files.is_done else now)
    gate = place_stays(files.gate, study, None if files.is_done else now)
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
        others=total(gate) or 0.0,
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
    log = files.trial(str(trial.user_attrs["node"])).log
    failed = is_over and trial.state.name != "COMPLETE"
    return read_stays(log, study.usd_per_hour, failed=failed, now=None if is_over else now)


def place_stays(place: TrialFolder, study: Study, now: float | None) -> list[Stay]:
    """Return the executions of a full training, or of a gate's job; arguments as above."""
    if now is None and (noted := stays_of(noted_job(place))):
        return noted
    return read_stays(place.log, study.usd_per_hour, now=now)
