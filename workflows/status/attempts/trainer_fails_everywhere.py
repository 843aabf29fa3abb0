"""The decision to end a run early because all its attempts fail with the same error.

Otherwise a trainer that always crashes, whatever the parameters are, would use up all attempts, on
rented machines.
"""

from __future__ import annotations

import time
from collections.abc import Sequence, Set
from typing import TYPE_CHECKING

from trialfleet import untrusted_files
from trialfleet.errors import PoolError
from trialfleet.workflows.facts.dagman.pool_slots import machines
from trialfleet.workflows.facts.jobs.job_log import Job, is_executing, read_job
from trialfleet.workflows.facts.runs.failed_attempts import failed_attempts, find_log, log_hint
from trialfleet.workflows.rules.useless_resume import ALIKE, all_alike

if TYPE_CHECKING:
    from trialfleet.workflows.facts.run_folder.folder import RegionFolder, TrialFolder
    from trialfleet.workflows.facts.runs.failed_attempts import AnyTrial

    Regions = Sequence[tuple[Sequence[AnyTrial], RegionFolder]]

TRIALS = 3  # with different parameters: those of one trial may be untrainable


def reason_to_abandon(regions: Regions) -> str | None:
    """Return why no further trial of these regions can succeed, or None if a trial may succeed.

    No trial can succeed if all of this is true:

    - No trial is complete.
    - Attempts at three or more trials have failed, all with the same error. Machines' faults don't
      count.
    - No first attempt does better: none has left a result, and none has run for longer than all
      failed attempts.
    - The trials ran on several machines, or failed before they reached a machine, or the pool has
      only one machine.
    """
    trials = [trial for own, _ in regions for trial in own]
    attempts = [attempt for attempt in failed_attempts(trials) if not attempt.blame]
    failed = {attempt.node for attempt in attempts}
    if any(trial.state.name == "COMPLETE" for trial in trials):
        return None
    if len(failed) < TRIALS or not all_alike(attempts):
        return None
    places = {
        node: folder.trial(node)
        for own, folder in regions
        for node in (str(trial.user_attrs["node"]) for trial in own)
    }
    jobs = {node: job for node, place in places.items() if (job := read_job(place))}
    untold = {str(t.user_attrs["node"]) for t in trials if not t.state.is_finished()}
    longest = max((jobs[node].last_wall_seconds or 0.0 for node in failed & jobs.keys()), default=0)
    first_attempts = (untold - failed) & jobs.keys()
    if any(_fares_better(places[node], jobs[node], longest) for node in first_attempts):
        return None
    if not _has_used_all_machines({job.machine for job in jobs.values() if job.machine}):
        return None
    last = attempts[-1]
    return f"{last.error}{log_hint(find_log(places[last.node]))}"


def reason_all_fail(regions: Regions) -> str | None:
    """Return why no trial of a run can succeed, or None if a trial may succeed.

    No trial can succeed if none has completed, and at least three attempts failed, all for the same
    cause. These may be attempts at one trial, and machines' faults count, unlike in
    `reason_to_abandon`. The result has the first attempt's error, so that it stays the same while
    more attempts fail.
    """
    trials = [trial for own, _ in regions for trial in own]
    if any(trial.state.name == "COMPLETE" for trial in trials):
        return None
    attempts = failed_attempts(trials)
    if not all_alike(attempts):
        return None
    first = attempts[0]
    folder = next(folder for own, folder in regions if first in failed_attempts(own))
    return (
        f"no trial has completed{ALIKE}{first.error}{log_hint(find_log(folder.trial(first.node)))}"
    )


def _fares_better(place: TrialFolder, job: Job, seconds: float) -> bool:
    if untrusted_files.file_size(place.result):
        return True
    return is_executing(place) and time.time() - (job.started or 0.0) > seconds


def _has_used_all_machines(used: Set[str]) -> bool:
    if len(used) != 1:  # none: they failed before a machine had them
        return True
    try:
        return machines() <= used
    except PoolError:
        return False
