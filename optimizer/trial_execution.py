"""How a trial ran, whatever came of it: its job, and its reports of progress.

The reports are stored as Optuna's intermediate values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from trialfleet.optimizer.downsampling import thinned

MOST_REPORTS = 50  # a learning curve needs no more points


class TrialExecution(TypedDict, total=False):
    """What is stored of a trial beside its outcome.

    attempts: how often its job was started.
    job: what else is known of the job, as plain data.
    reports: the study's metric by step, as the trial reported it; infinite or NaN where it was.
    """

    attempts: int
    job: Mapping[str, Any] | None
    reports: Mapping[int, float]


def kept_reports(reports: Mapping[int, float]) -> dict[int, float]:
    """Return those of a trial's reports that are stored: at most `MOST_REPORTS`."""
    return {step: reports[step] for step in thinned(sorted(reports), MOST_REPORTS)}
