"""The importance of parameters by Optuna's PED-ANOVA, if there are enough trials."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from trialfleet.objective import Direction, rank
from trialfleet.workflows.status.run_trials import Trial
from trialfleet.workflows.views.report.report_types import Importance

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

    from trialfleet.optimizer.space import Tunable

IMPORTANCE_TRIALS = 10
IMPORTANCE_TOP = 5
IMPORTANCE_BEST = 1 / 3  # of the trials


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
    weights = _weights(complete, {name: parameters[name] for name in judged}, direction, top)
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


def _weights(
    trials: Sequence[Trial], parameters: Mapping[str, Tunable], direction: Direction, top: int
) -> dict[str, float]:
    """Return each parameter's importance for being among the best `top` of completed trials."""
    import optuna  # takes a second, and most importers of this module make no report
    from optuna.importance import PedAnovaImportanceEvaluator

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    distributions: dict[str, BaseDistribution] = {
        name: parameter.distribution() for name, parameter in parameters.items()
    }
    study = optuna.create_study(direction=direction)
    for trial in trials:
        own = {
            name: parameter.nearest(trial.params[name])
            for name, parameter in parameters.items()
            if name in trial.params
        }
        had = {name: distributions[name] for name in own}
        study.add_trial(optuna.create_trial(value=trial.value, params=own, distributions=had))
    quantile = (top - 0.5) / len(trials)  # Optuna rounds up
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few trials may lack a parameter, which changes little
        return PedAnovaImportanceEvaluator(target_quantile=quantile).evaluate(
            study, list(parameters)
        )
