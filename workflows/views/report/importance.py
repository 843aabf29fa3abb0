"""The importance of parameters by the method PED-ANOVA, if there are enough trials.

Source: Watanabe et al. 2023, arXiv 2304.10255. For conditional parameters: theorem 4.2 of
arXiv 2601.20800. A parameter's values are counted in the cells of a grid, and the counts are
smoothed:

    n       number of cells; a categorical parameter has one for each choice
    w       for each cell that isn't empty, the number of its values
    sigma   bandwidth of the smoothing kernels by Scott's rule, in cells
    p       for each cell, the smoothed share of the best trials' values
    q       likewise for all trials' values

A test compares the results with those of Optuna's own implementation.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trialfleet.objective import Direction, rank
from trialfleet.optimizer.parameters import CategoricalParameter, FloatParameter, IntParameter
from trialfleet.workflows.status.run_trials import Trial
from trialfleet.workflows.views.report.report_types import Importance

if TYPE_CHECKING:
    from trialfleet.optimizer.parameters import Scalar
    from trialfleet.optimizer.space import Tunable

IMPORTANCE_TRIALS = 10
IMPORTANCE_TOP = 5
IMPORTANCE_BEST = 1 / 3  # of the trials

Array = NDArray[np.float64]
_CELLS = 50
_LEAST_SIGMA = 0.5 / 1.64  # nine tenths of a kernel are within its cell
_TINY = 1e-12


def parameter_importances(
    trials: Sequence[Trial], parameters: Mapping[str, Tunable], direction: Direction
) -> tuple[tuple[Importance, ...], str | None]:
    """Return the parameters' importances, and the reason why some parameters have none.

    The greatest importance comes first. The reason may be None.

    PED-ANOVA compares a parameter's values in the best third of trials with its values in all
    trials. A parameter gets an importance only if at least ten trials had it, and at least five of
    these are in the best third (as Optuna's documentation recommends). With fewer trials, chance
    dominates: in simulations, a parameter without effect got up to 0.9 of the total importance if
    three to five trials had it. With this rule, it seldom got more than 0.3.
    """
    complete = rank(trials, direction, lambda trial: trial.value)
    had = Counter(name for trial in complete for name in trial.params if name in parameters)
    if note := _missing_importance_reason(complete, list(had)):
        return (), note
    top = max(IMPORTANCE_TOP, math.ceil(len(complete) * IMPORTANCE_BEST))
    best = complete[:top]
    had_of_best = Counter(name for trial in best for name in trial.params)
    judged = [
        name
        for name in sorted(had)
        if had[name] >= IMPORTANCE_TRIALS and had_of_best[name] >= IMPORTANCE_TOP
    ]
    few = [
        f"{name}, which {had[name]} of {len(complete)} trials had, among them {had_of_best[name]} "
        f"of the best {len(best)}"
        for name in sorted(had.keys() - judged)
    ]
    left_out = f"too few trials for {'; '.join(few)}" if few else None
    as_good = [trial for trial in complete[top:] if trial.value == best[-1].value]
    weights = {
        name: _weight(name, parameters[name], [*best, *as_good], complete) for name in judged
    }
    total = sum(weights.values())
    if not total > 0:
        return (), left_out or "no parameter stands out"
    found = [
        Importance(parameter=name, share=weights[name] / total, trials=had[name])
        for name in sorted(judged, key=lambda name: (-weights[name], name))
    ]
    return tuple(found), left_out


def _missing_importance_reason(trials: Sequence[Trial], names: Sequence[str]) -> str | None:
    if len(trials) < IMPORTANCE_TRIALS:
        return f"too few completed trials: {len(trials)} of at least {IMPORTANCE_TRIALS}"
    if len({trial.value for trial in trials}) == 1:
        return "every trial reached the same value"
    return None if names else "the study has no parameters"


def _weight(
    name: str, parameter: Tunable, best: Sequence[Trial], complete: Sequence[Trial]
) -> float:
    """Return a parameter's importance before it is divided by the sum over all parameters."""
    of_best, of_all = (
        [trial.params[name] for trial in trials if name in trial.params]
        for trials in (best, complete)
    )
    return len(of_best) ** 2 / len(of_all) * divergence(parameter, of_best, of_all)


def divergence(
    parameter: Tunable,
    best: Sequence[Scalar],
    all_values: Sequence[Scalar],
) -> float:
    """Return Pearson's divergence Σ q (p/q - 1)² of the best trials' values from all values.

    `best` has at least one value. `all_values` includes the values of the best trials.
    """
    p, q = (_density(parameter, values) + _TINY for values in (best, all_values))
    return float(q @ (p / q - 1) ** 2)


def _density(parameter: Tunable, values: Sequence[Scalar]) -> Array:
    if isinstance(parameter, CategoricalParameter):
        places = [parameter.choices.index(parameter.nearest(value)) for value in values]
        return _choice_shares(np.bincount(places, minlength=parameter.count))
    return _cell_shares(_counts(parameter, np.asarray(values, dtype=float)))


def _counts(parameter: FloatParameter | IntParameter, values: Array) -> NDArray[np.intp]:
    low, high = float(parameter.low), float(parameter.high)
    cells = min(_CELLS, parameter.count or _CELLS)
    if isinstance(parameter, IntParameter) and parameter.log:
        cells = min(_CELLS, math.ceil(math.log2(parameter.high - parameter.low + 1)) + 1)
    if parameter.log:
        low, high, values = math.log(low), math.log(high), np.log(values)
    places = np.ceil((values - low) / ((high - low) / (cells - 1)) - 0.5).astype(int)
    return np.bincount(np.clip(places, 0, cells - 1), minlength=cells)


def _choice_shares(counts: NDArray[np.intp]) -> Array:
    """Return each choice's share, smoothed by a kernel per observed choice and a uniform kernel."""
    seen = np.flatnonzero(counts)
    prior = 1 / (len(seen) + 1)
    each = np.full((len(seen), len(counts)), prior)
    each[np.arange(len(seen)), seen] += 1
    each /= each.sum(axis=1, keepdims=True)
    found: Array = (counts[seen] @ each + 1 / len(counts)) / (counts.sum() + 1)
    return found


def _cell_shares(counts: NDArray[np.intp]) -> Array:
    """Return each cell's share, smoothed by a normal kernel per observed cell and a wide kernel."""
    n, seen = len(counts), np.flatnonzero(counts)
    weights, grid = counts[seen], np.arange(n)
    # By the distance to a cell.
    sums = _normal_shares(np.arange(-n, n + 1) - 0.5, _bandwidth(seen, weights))
    shares = (sums[1:] - sums[:-1])[grid[:, None] - seen + n]
    within = sums[2 * n - seen] - sums[n - seen]
    edges = _normal_shares(np.arange(n + 1) - n / 2, float(n))
    prior = (edges[1:] - edges[:-1]) / (edges[-1] - edges[0])
    found: Array = ((shares / within) @ weights + prior) / (weights.sum() + 1)
    return found


def _bandwidth(seen: NDArray[np.intp], weights: NDArray[np.intp]) -> float:
    """Return Scott's bandwidth 1.059 · min(interquartile range / 1.34, deviation) · (Σw)^(-1/5).

    The result is at least `_LEAST_SIGMA`. `seen` has the indices of the cells that aren't empty,
    and `weights` has the number of values in each of these cells (w).
    """
    whole, below = int(weights.sum()), np.cumsum(weights)
    mean = (seen @ weights) / whole
    deviation = math.sqrt(((seen - mean) ** 2 @ weights) / max(1, whole - 1))
    first = np.searchsorted(below, whole // 4, side="left")
    third = min(len(seen) - 1, int(np.searchsorted(below, whole * 3 // 4, side="right")))
    spread = float(seen[third] - seen[first])
    return max(_LEAST_SIGMA, 1.059 * min(spread / 1.34, deviation) * math.pow(whole, -0.2))


def _normal_shares(distances: NDArray[Any], sigma: float) -> Array:
    """Return the share of a normal distribution that is below each distance from the mean."""
    return np.array([0.5 * (1 + math.erf(x)) for x in distances / (sigma * math.sqrt(2))])
