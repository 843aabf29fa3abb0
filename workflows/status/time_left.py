"""How long a region's trials will still take, and a run's: at the pace so far."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trialfleet.optimizer.stored_trials import StoredTrial
    from trialfleet.workflows.status.run_status import RegionStatus


def seconds_left(trials: list[StoredTrial], budget: int, hours: float | None) -> float | None:
    """Remaining trials at the pace so far, finished trials / time since the first was asked."""
    begun = [t.datetime_start.timestamp() for t in trials if t.datetime_start]
    finished = sum(t.state.is_finished() for t in trials)
    if not begun or not finished:
        return None
    spent = time.time() - min(begun)
    left = spent / finished * max(0, budget - finished)
    return left if hours is None else min(left, max(0.0, hours * 3600 - spent))


def seconds_left_of_run(regions: Iterable[RegionStatus], begun: float | None) -> float | None:
    """The pace of all regions together so far: they share the pool, now these and now those.

    A region's full training counts as one trial. None until a tenth is done.

    Args:
        regions: of the run.
        begun: when its first trial was asked for, in Unix seconds.
    """
    regions = list(regions)
    done = sum(r.finished + (r.published is not None) for r in regions)
    left = sum(r.budget - r.finished + 1 for r in regions if not r.stage.is_over)
    if begun is None or not done or done < (done + left) / 10:
        return None
    return (time.time() - begun) / done * left
