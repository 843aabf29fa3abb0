"""Estimates of the remaining time of a region and of a run, from their pace so far."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from trialfleet.optimizer.stored_trials import StoredTrial
from trialfleet.workflows.status.dagman_pauses import Span, pause_overlap

if TYPE_CHECKING:
    from trialfleet.workflows.status.status_types import RegionStatus


def seconds_left(
    first: float | None,
    finished: int,
    budget: int,
    hours: float | None,
    pauses: Sequence[Span] = (),
) -> float | None:
    """Return the seconds that a region still needs, at its pace since its first trial.

    Return None until a trial has ended. `first` is when the first trial was requested, in Unix
    seconds. `finished` trials have ended, of at most `budget`. `hours` is the region's time limit,
    if any: the result is at most the rest of this limit. Pauses use up the limit, but don't slow
    the pace.
    """
    if first is None or not finished:
        return None
    now = time.time()
    spent = now - first
    left = (spent - pause_overlap(pauses, first, now)) / finished * max(0, budget - finished)
    return left if hours is None else min(left, max(0.0, hours * 3600 - spent))


def seconds_left_of_run(
    regions: Iterable[RegionStatus],
    begun: float | None,
    pauses: Sequence[Span] = (),
    *,
    publishes: bool = True,
) -> float | None:
    """Return the seconds that a run still needs, at the pace of all its regions together.

    Return None until a tenth of all trials is done. `begun` is when the run's first trial was
    requested, in Unix seconds. If the study `publishes` models, a full training counts as a trial.
    """
    regions = list(regions)
    done = sum(r.finished + (r.published is not None) for r in regions)
    left = sum(r.budget - r.finished + publishes for r in regions if not r.stage.is_over)
    if begun is None or not done or done < (done + left) / 10:
        return None
    now = time.time()
    return (now - begun - pause_overlap(pauses, begun, now)) / done * left


def first_start(trials: Iterable[StoredTrial]) -> float | None:
    """Return when the first of `trials` was requested, in Unix seconds, or None if none was."""
    first = min(filter(None, (trial.datetime_start for trial in trials)), default=None)
    return first.timestamp() if first else None
