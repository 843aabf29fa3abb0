"""How long a region's trials will still take, and a run's: at the pace so far."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trialfleet.optimizer.stored_trials import StoredTrial
    from trialfleet.workflows.status import RegionStatus


def seconds_left(trials: list[StoredTrial], budget: int, hours: float | None) -> float | None:
    """Remaining trials at the pace so far, finished trials / time since the first was asked."""
    begun = [t.datetime_start.timestamp() for t in trials if t.datetime_start]
    finished = sum(t.state.is_finished() for t in trials)
    if not begun or not finished:
        return None
    spent = time.time() - min(begun)
    left = spent / finished * max(0, budget - finished)
    return left if hours is None else min(left, max(0.0, hours * 3600 - spent))


def seconds_left_of_run(regions: Iterable[RegionStatus]) -> float | None:
    """The slowest region decides; regions that haven't begun are as slow as the mean of others."""
    regions = list(regions)
    known = [r.seconds_left for r in regions if r.seconds_left is not None]
    if not known:
        return None
    waiting = sum(r.phase == "waiting" for r in regions)
    return max(known) + waiting * sum(known) / len(known) / max(1, len(known))
