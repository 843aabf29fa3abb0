"""The number of start-up trials, and the first trial that the model proposes.

Ax takes two start-up trials per parameter, at most a fifth of the trials, but at least 5
(`calculate_num_initialization_trials`, https://github.com/facebook/Ax). The rule here differs:

- The share of the trials is a third, because parallel trials are asked before the first results.
- This share takes precedence over the minimum of 5.
- The maximum is 10, the constant number of Optuna's GPSampler.
"""

from __future__ import annotations

import math

MOST = 10  # GPSampler's own
LEAST = 5  # Ax's, but at most a third of the budget
PER_PARAMETER = 2
PART = 3  # one in three trials of the budget


def default_startup(trials: int, parameters: int) -> int:
    """Return the default number of start-up trials, for `parameters` with several values each."""
    wanted = min(MOST, max(LEAST, PER_PARAMETER * parameters))
    # a single point, the defaults, shows the effect of no parameter
    return min(trials, max(2, min(wanted, math.ceil(trials / PART))))


def with_previous(startup: int) -> int:
    """Return the number of start-up trials if there are previous results: half of `startup`."""
    return math.ceil(startup / 2)


def results_awaited(startup: int) -> int:
    """Return the number of results before the model proposes.

    With many lanes all start-up trials are asked before any of them ends. Without this wait the
    first results would determine all further trials.
    """
    return max(1, startup // 2)


def first_model_trial(
    startup: int, trials: int, lanes: int, *, has_previous: bool = False
) -> int | None:
    """Return the first trial that the model proposes, counted from 1; None if there is none.

    `lanes` is the number of trials asked before the first result. Each failed trial delays the
    model.
    """
    startup = with_previous(startup) if has_previous else startup
    first = max(startup, min(lanes, trials) - 1 + results_awaited(startup)) + 1
    return first if first <= trials else None
