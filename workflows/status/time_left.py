"""How long a region, and its run, will still take, at the pace of the time between their pauses."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from trialfleet.optimizer.stored_trials import StoredTrial
from trialfleet.workflows.status.pauses import Span, paused_within

if TYPE_CHECKING:
    from trialfleet.workflows.status.run_status import RegionStatus


def seconds_left(
    first: float | None,
    finished: int,
    budget: int,
    hours: float | None,
    pauses: Sequence[Span] = (),
) -> float | None:
    """Remaining trials at the pace so far, finished trials / time since the first was asked.

    The time while the run was paused is none in which a trial could have finished.

    Args:
        first: when the first of a region's trials was asked for, in Unix seconds.
        finished: trials that are over.
        budget: trials that the region may run.
        hours: for which it may.
        pauses: when the run was paused.
    """
    if first is None or not finished:
        return None
    now = time.time()
    spent = now - first
    left = (spent - paused_within(pauses, first, now)) / finished * max(0, budget - finished)
    return left if hours is None else min(left, max(0.0, hours * 3600 - spent))


def seconds_left_of_run(
    regions: Iterable[RegionStatus], begun: float | None, pauses: Sequence[Span] = ()
) -> float | None:
    """The pace of all regions together so far: they share the pool, now these and now those.

    A region's full training counts as one trial. None until a tenth is done.

    Args:
        regions: of the run.
        begun: when its first trial was asked for, in Unix seconds.
        pauses: when it was stopped, or HTCondor was down.
    """
    regions = list(regions)
    done = sum(r.finished + (r.published is not None) for r in regions)
    left = sum(r.budget - r.finished + 1 for r in regions if not r.stage.is_over)
    if begun is None or not done or done < (done + left) / 10:
        return None
    now = time.time()
    return (now - begun - paused_within(pauses, begun, now)) / done * left


def begun(trials: Mapping[str, list[StoredTrial]]) -> float | None:
    """Return when the first trial of all regions was asked for, in Unix seconds."""
    return first_start(chain.from_iterable(trials.values()))


def first_start(trials: Iterable[StoredTrial]) -> float | None:
    """Return when the first of some trials was asked for, in Unix seconds."""
    first = min(filter(None, (trial.datetime_start for trial in trials)), default=None)
    return first.timestamp() if first else None
