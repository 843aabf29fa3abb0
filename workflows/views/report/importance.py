"""The importance of parameters by the method PED-ANOVA, if there are enough trials."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from trialfleet.objective import Direction, rank
from trialfleet.optimizer.ped_anova import divergence
from trialfleet.optimizer.space import Tunable
from trialfleet.workflows.status.run_trials import Trial
from trialfleet.workflows.views.report.report_types import Importance

IMPORTANCE_TRIALS = 10
IMPORTANCE_TOP = 5
IMPORTANCE_BEST = 1 / 3  # of the trials


def parameter_importances(
    trials: Sequence[Trial], parameters: Mapping[str, Tunable], direction: Direction
) -> tuple[tuple[Importance, ...], str | None]:
    """Return parameters' importances, greatest first, and a note on why some or all have none.

    PED-ANOVA (`optimizer/ped_anova.py`) compares a parameter's values in the best third of trials
    with those in all trials that had the parameter. A parameter gets an importance if at least ten
    trials had it, among them at least five of the best third (as Optuna's documentation
    recommends). In simulations with 20 to 60 trials, a parameter without effect got up to 0.9 of
    the total importance if only three to five trials had the parameter. With this rule, such a
    parameter seldom got more than 0.3.
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
        f"{name}, which {had[name]} of {len(complete)} trials had, {had_of_best[name]} of the best "
        f"{len(best)}"
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
    """Return a parameter's importance, not yet divided by the sum over all parameters."""
    of_best, of_all = (
        [trial.params[name] for trial in trials if name in trial.params]
        for trials in (best, complete)
    )
    return len(of_best) ** 2 / len(of_all) * divergence(parameter, of_best, of_all)
