"""What is concluded from a region's trials: status, best, comparison, importance, failures."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trialfleet.workflows.report.model import (
    Comparison,
    Failure,
    Importance,
    ParameterRange,
    Setting,
    Trial,
)
from trialfleet.workflows.report.source import RegionSource, ReportSource

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.study import Study
    from optuna.trial import FrozenTrial

IMPORTANCE_TRIALS = 10  # below this, half of the trials are fewer than the five PED-ANOVA wants
IMPORTANCE_TOP = 5
EDGE = 0.02  # of the range


def status_of(region: RegionSource, trials: Sequence[Trial]) -> str:
    """One of `model.STATUSES`: the first of them that holds."""
    states = [trial.state for trial in trials]
    complete, failed = states.count("complete"), states.count("failed")
    checks = {
        "published": region.published is not None,
        "stopped": region.stopped is not None,
        "trained": region.final is not None,
        "tuning": "running" in states,
        "not started": complete + failed == 0,
        "failed": complete == 0,
        "tuned": complete + failed >= region.budget_trials,
    }
    return next((status for status, holds in checks.items() if holds), "incomplete")


def best_of(trials: Sequence[Trial], direction: str) -> Trial | None:
    """The completed trial with the best objective, the earliest of equals."""
    sign = -1.0 if direction == "maximize" else 1.0
    ranked = [
        (sign * trial.objective, trial.number, trial)
        for trial in trials
        if trial.objective is not None
    ]
    return min(ranked, default=(0.0, 0, None), key=lambda item: item[:2])[2]


def compare(
    metric: str, direction: str, baseline: Trial | None, best: Trial | None, source: ReportSource
) -> Comparison:
    """`metric` of the best trial against that of the default settings."""

    def value(trial: Trial | None) -> float | None:
        if trial is None or trial.state != "complete":
            return None
        return trial.objective if metric == source.metric else trial.metrics.get(metric)

    return Comparison(
        metric=metric, direction=direction, default=value(baseline), tuned=value(best)
    )


def failures_of(trials: Sequence[Trial]) -> tuple[Failure, ...]:
    """The failed trials by their error, most frequent first."""
    groups: dict[str, list[int]] = {}
    for trial in trials:
        if trial.error is not None:
            groups.setdefault(trial.error, []).append(trial.number)
    failures = [Failure(error=error, trials=tuple(who)) for error, who in groups.items()]
    return tuple(sorted(failures, key=lambda failure: (-len(failure.trials), failure.trials)))


def settings_of(
    defaults: Mapping[str, Any],
    best: Trial | None,
    spaces: Sequence[Mapping[str, BaseDistribution]],
) -> tuple[Setting, ...]:
    """Every parameter's default and best value: the defaults' order, then the others by name.

    Args:
        defaults: the default settings.
        best: the best trial.
        spaces: each trial's distributions; a later one of the same parameter counts.
    """
    ranges = {name: _range(item) for space in spaces for name, item in space.items()}
    found = {} if best is None else best.params
    names = [*defaults, *sorted({*ranges, *found} - set(defaults))]
    return tuple(_setting(name, defaults, found, ranges.get(name)) for name in names)


def _setting(
    name: str, defaults: Mapping[str, Any], best: Mapping[str, Any], range_: ParameterRange | None
) -> Setting:
    place = range_.place(best.get(name)) if range_ is not None else None
    edge = (
        None if place is None else "low" if place <= EDGE else "high" if place >= 1 - EDGE else None
    )
    return Setting(
        name=name,
        default=defaults.get(name),
        default_active=name in defaults,
        best=best.get(name),
        best_active=name in best,
        range=range_,
        edge=edge,
    )


def _range(distribution: BaseDistribution) -> ParameterRange:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(distribution, CategoricalDistribution):
        return ParameterRange(low=None, high=None, log=False, choices=distribution.choices)
    assert isinstance(distribution, FloatDistribution | IntDistribution), distribution
    return ParameterRange(
        low=distribution.low, high=distribution.high, log=distribution.log, choices=None
    )


def importance_of(study: Study | None, direction: str) -> Importance:
    """PED-ANOVA importance (Watanabe et al. 2023) of all parameters, conditional ones too."""
    from optuna.trial import TrialState

    trials = (
        [] if study is None else study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    )
    names = sorted({name for trial in trials for name in trial.distributions})
    note = _why_no_importance(trials, names)
    if study is None or note is not None:
        return Importance(shares={}, trials=len(trials), note=note)
    shares = _shares(study, names, direction, len(trials))
    if shares is None:
        return Importance(shares={}, trials=len(trials), note="no parameter stands out")
    return Importance(shares=shares, trials=len(trials), note=None)


def _why_no_importance(trials: Sequence[FrozenTrial], names: Sequence[str]) -> str | None:
    if len(trials) < IMPORTANCE_TRIALS:
        return f"too few trials: {len(trials)} of at least {IMPORTANCE_TRIALS} completed ones"
    if len({trial.value for trial in trials}) == 1:
        return "every trial reached the same value"
    return None if names else "the study has no parameters"


def _shares(study: Study, names: list[str], direction: str, trials: int) -> dict[str, float] | None:
    """Each parameter's share, greatest first; None where the evaluator finds none at all."""
    from optuna.importance import PedAnovaImportanceEvaluator

    sign = -1.0 if direction == "maximize" else 1.0
    evaluator = PedAnovaImportanceEvaluator(target_quantile=max(0.1, IMPORTANCE_TOP / trials))
    with warnings.catch_warnings():
        # it warns that low targets are better (so they are, by `sign`) and that rare branches of
        # conditional parameters weigh little
        warnings.simplefilter("ignore")
        raw = evaluator.evaluate(
            study, names, target=lambda trial: sign * float(trial.value or 0.0)
        )
    total = sum(raw.values())
    if not total > 0:
        return None
    return {name: raw[name] / total for name in sorted(names, key=lambda name: (-raw[name], name))}
