"""The number of start-up trials, and the first trial that the sampler's model proposes.

There are two start-up trials per parameter, but at least 5, as in Ax
(`calculate_num_initialization_trials`, https://github.com/facebook/Ax). The limits, of which a
later one precedes an earlier one, are:

- at most 10, the number that Optuna's GPSampler always uses
- at most a third of the trials (Ax: a fifth)
- at least 2
"""

from __future__ import annotations

import math

MOST = 10  # GPSampler's own
LEAST = 5  # Ax's, but at most a third of the budget
PER_PARAMETER = 2
PART = 3  # one in three trials of the budget


def default_startup(trials: int, parameters: int) -> int:
    """Return the number of start-up trials, for `parameters` with several values."""
    wanted = min(MOST, max(LEAST, PER_PARAMETER * parameters))
    # a single point, the defaults, shows the effect of no parameter
    return min(trials, max(2, min(wanted, math.ceil(trials / PART))))


def halve_startup(startup: int) -> int:
    """Return the number of start-up trials if earlier runs have results: half, rounded up."""
    return math.ceil(startup / 2)


def results_awaited(startup: int) -> int:
    """Return how many results the model needs before it proposes: half of `startup`, at least 1.

    If many trials run in parallel, all start-up trials are created before any of them ends. A model
    that proposes from the first result on would base many trials on few results.
    """
    return max(1, startup // 2)


def first_model_trial(
    startup: int, trials: int, lanes: int, *, has_previous: bool = False
) -> int | None:
    """Return the number, from 1, of the first of `trials` that the model proposes; None if none is.

    `lanes` trials run in parallel, so `lanes` trials are created before the first result. With
    `has_previous`, earlier runs have results, and `startup` is halved. A failed trial would delay
    the model.
    """
    startup = halve_startup(startup) if has_previous else startup
    first = max(startup, min(lanes, trials) - 1 + results_awaited(startup)) + 1
    return first if first <= trials else None
