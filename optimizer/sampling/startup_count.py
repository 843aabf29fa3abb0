"""The number of start-up trials, and the first trial that the sampler's model proposes.

Ax, another optimiser, takes two start-up trials per parameter, at least 5 and at most a fifth of
the trials (`calculate_num_initialization_trials`, https://github.com/facebook/Ax). trialfleet also
takes two per parameter and at least 5, but has other limits:

- at most a third of the trials, even if that is less than 5
- at most 10, the number that Optuna's GPSampler always uses
- at least 2, even if that is more than a third
"""

from __future__ import annotations

import math

MOST = 10  # GPSampler's own
LEAST = 5  # Ax's, but at most a third of the budget
PER_PARAMETER = 2
PART = 3  # one in three trials of the budget


def default_startup(trials: int, parameters: int) -> int:
    """Return the number of start-up trials, at most `trials`.

    `parameters` is the number of parameters that have several values.
    """
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
    """Return the number of the first trial that the model proposes. Numbers begin at 1.

    `trials` is the number of all trials. The result is None if the model proposes none of them.
    `lanes` trials run in parallel, so `lanes` trials are created before the first result. With
    `has_previous`, earlier runs have results, and `startup` is halved. The function assumes that no
    trial fails: a failed trial would delay the model.
    """
    startup = halve_startup(startup) if has_previous else startup
    first = max(startup, min(lanes, trials) - 1 + results_awaited(startup)) + 1
    return first if first <= trials else None
