"""How many trials are spread over the space before the model leads, and which one it leads first.

Optuna's GPSampler begins with 10 whatever the budget, and of 10 trials none would then follow a
model. Ax takes two for each parameter and at most a fifth of the trials, but at least 5
(`calculate_num_initialization_trials`, https://github.com/facebook/Ax). The rule here is Ax's, with
two changes: the budget's part is a third, because trials in parallel are asked before the first
results are known, and counts more than the least of 5; and 10 are enough, as for GPSampler.
"""

from __future__ import annotations

import math

MOST = 10  # GPSampler's own
LEAST = 5  # Ax's, as far as a third of the budget goes
PER_PARAMETER = 2
PART = 3  # of the budget: one in so many


def default_startup(trials: int, parameters: int) -> int:
    """Return the number of start-up trials where the study names none.

    Args:
        trials: the budget.
        parameters: how many parameters have more than one value, conditional ones among them.
    """
    wanted = min(MOST, max(LEAST, PER_PARAMETER * parameters))
    # one point, the defaults, says nothing of any parameter
    return min(trials, max(2, min(wanted, math.ceil(trials / PART))))


def with_former(startup: int) -> int:
    """Return how many start-up trials are left where former runs teach the model: half of them."""
    return math.ceil(startup / 2)


def results_awaited(startup: int) -> int:
    """Return how many results the model waits for.

    With many lanes all start-up trials are asked before any ends, and the first results would
    otherwise steer all further trials.
    """
    return max(1, startup // 2)


def first_led(startup: int, trials: int, lanes: int, *, has_former: bool = False) -> int | None:
    """Return the first trial, counted from 1, that follows the model; None if none of them does.

    Args:
        startup: the number of start-up trials.
        trials: the budget.
        lanes: so many trials are asked before the first result. A trial that fails puts it off.
        has_former: whether former runs teach the model.
    """
    startup = with_former(startup) if has_former else startup
    first = max(startup, min(lanes, trials) - 1 + results_awaited(startup)) + 1
    return first if first <= trials else None
