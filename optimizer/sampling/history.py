"""Results as a model takes them: smaller is better, and every value is finite."""

from __future__ import annotations

import math
from collections.abc import Sequence

from optuna.trial import FrozenTrial

from trialfleet.objective import Direction, loss


def losses(trials: Sequence[FrozenTrial], direction: Direction) -> list[float]:
    """Return each complete or failed trial's loss.

    A failed trial has no value. It gets the worst loss, or a model would propose its point again.
    An infinite value becomes the nearest finite one, as in Optuna's GPSampler; 0 if there is none.
    """
    values = [loss(trial.value, direction) for trial in trials]
    finite = [value for value in values if math.isfinite(value)] or [0.0]
    best, worst = min(finite), max(finite)
    return [min(max(value, best), worst) for value in values]
