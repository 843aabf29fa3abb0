"""Values of tuned parameters, by their place in the range."""

from __future__ import annotations

import numpy as np

from trialfleet.optimizer.sampling.gp.domain import Domain
from trialfleet.optimizer.space import Scalar, Tunable


def value_at(entry: Tunable, unit: float) -> Scalar:
    """Return the value at the place `unit` of [0, 1], where every value has an equal share."""
    domain = Domain({"x": entry.distribution()})
    return entry.nearest(domain.decode(domain.spread(np.array([[unit]]))[0])["x"])
