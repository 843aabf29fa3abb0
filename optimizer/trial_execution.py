"""How a trial ran, whatever came of it: its job, and its reports of progress.

The reports are stored as Optuna's intermediate values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypedDict

from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial

from trialfleet.optimizer.downsampling import thinned

# Each is a transaction of its own, 2 ms on SQLite and more on PostgreSQL, while all regions' nodes
# wait for the service: a learning curve needs no more points than these.
MOST_REPORTS = 50


class TrialExecution(TypedDict, total=False):
    """What is stored of a trial beside its outcome.

    attempts: how often its job was started.
    job: what else is known of the job, as plain data.
    reports: the study's metric by step, as the trial reported it; infinite or NaN where it was.
    """

    attempts: int
    job: Mapping[str, Any] | None
    reports: Mapping[int, float]


def store_reports(storage: BaseStorage, trial: FrozenTrial, reports: Mapping[int, float]) -> None:
    """Store at most `MOST_REPORTS` of an unfinished trial; doing so again changes nothing.

    Optuna can't remove a value: one that a tell left behind, which crashed before the trial was
    trained anew, becomes NaN.

    Args:
        storage: where the trial is.
        trial: as it is stored there.
        reports: value by step; infinite and NaN where the trainer's was.
    """
    steps = thinned(sorted(reports), MOST_REPORTS)
    wanted = {step: reports[step] for step in steps}
    left = dict.fromkeys(trial.intermediate_values.keys() - wanted.keys(), math.nan)
    for step, value in (left | wanted).items():
        storage.set_trial_intermediate_value(trial._trial_id, step, value)
