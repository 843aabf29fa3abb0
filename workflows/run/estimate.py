"""How long a run will take, by the trials of earlier runs of its study."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from statistics import median

from trialfleet.errors import TrialfleetError
from trialfleet.optimizer.stored_trials import StoredTrial
from trialfleet.workflows.run.lookup import FoundRun, runs_here
from trialfleet.workflows.status.status import StatusReader, open_run
from trialfleet.workflows.study.frozen import load_frozen

_MOST_RUNS = 5  # the newest that have a complete trial


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The time that a run's trials will take.

    Attributes:
        seconds: of all of them.
        trial_seconds: the median of the trials that it is based on.
        based_on: how many those are.
    """

    seconds: float
    trial_seconds: float
    based_on: int


def estimate(study: str, trials: int, at_once: int) -> Estimate | None:
    """Return the time that trials will take; None without a complete trial of the study's before.

    Args:
        study: its name; its runs are those below `./runs`.
        trials: how many.
        at_once: so many run at a time; with 0 there is no telling.
    """
    if not at_once:
        return None
    runs = (run for run in runs_here() if run.study in {study, ""})  # "": in a folder of its own
    found = filter(None, (_seconds_of(run, study) for run in runs))
    known = [seconds for run in islice(found, _MOST_RUNS) for seconds in run]
    if not known:
        return None
    each = median(known)
    return Estimate(
        seconds=math.ceil(trials / at_once) * each, trial_seconds=each, based_on=len(known)
    )


def _seconds_of(found: FoundRun, study: str) -> list[float]:
    """What each complete trial of a run took; none where it is another's, or can't be read."""
    try:
        folder = open_run(found.folder)
        if load_frozen(folder.study).study.name != study:
            return []
        reader = StatusReader(folder)
        trials = [trial for region in reader.regions for trial in reader.trials(region)]
    except TrialfleetError:
        return []
    return list(_seconds(trial for trial in trials if trial.state.name == "COMPLETE"))


def _seconds(trials: Iterable[StoredTrial]) -> Iterable[float]:
    for trial in trials:
        job = trial.user_attrs.get("job") or {}
        seconds = job.get("wall_seconds") or trial.user_attrs.get("seconds")
        if seconds:
            yield float(seconds)
