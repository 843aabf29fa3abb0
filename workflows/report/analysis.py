"""What is concluded from a region's trials: best, comparison, importance, failures."""

from __future__ import annotations

import json
import math
import shlex
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trialfleet.files import shell_quoted_anywhere
from trialfleet.objective import Direction, loss
from trialfleet.optimizer.stored_trials import best_first
from trialfleet.spelling import did_you_mean
from trialfleet.workflows.formatting import column_decimals, fixed, signed
from trialfleet.workflows.report.model import (
    Comparison,
    Failure,
    Importance,
    ParameterRange,
    RegionReport,
    Setting,
    Trial,
)
from trialfleet.workflows.report.source import RegionSource, ReportSource

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.study import Study
    from optuna.trial import FrozenTrial

IMPORTANCE_TRIALS = 10
IMPORTANCE_TOP = 5
IMPORTANCE_BEST = 1 / 3  # of the trials
EDGE = 0.02  # of the range
AS_GOOD = 0.005  # of the value with default settings: less is no difference to speak of


def compare(
    metric: str,
    direction: Direction,
    baseline: Trial | None,
    best: Trial | None,
    source: ReportSource,
) -> Comparison:
    """`metric` of the best trial against that of the default settings."""

    def value(trial: Trial | None) -> float | None:
        if trial is None or trial.state != "complete":
            return None
        return trial.objective if metric == source.metric else trial.metrics.get(metric)

    return Comparison(
        metric=metric, direction=direction, default=value(baseline), tuned=value(best)
    )


def worse_of(objective: Comparison, report: Comparison) -> str | None:
    """How tuned settings are worse than the default ones; None if they aren't, or hardly.

    The best trial is never worse by the objective: only by another metric.
    """
    if report.gain is None or report.gain >= 0:
        return None
    if report.default is not None and -report.gain < AS_GOOD * abs(report.default):
        return None
    decimals = column_decimals([report.tuned, report.default])
    return (
        f"By {report.metric}, tuned settings reach {fixed(report.tuned, decimals)} against "
        f"{fixed(report.default, decimals)} with default ones ({signed(report.gain, decimals)}), "
        f"though they gained {signed(objective.gain, None)} by {objective.metric}, "
        "which chose them."
    )


def unreported(metric: str, regions: Sequence[RegionReport]) -> str:
    """Say that no completed trial reported the metric of the comparison; empty where one did."""
    complete = [trial for region in regions for trial in region.trials if trial.state == "complete"]
    reported = sorted({name for trial in complete for name in trial.metrics})
    is_objective = any(region.objective.metric == metric for region in regions)
    if not complete or is_objective or metric in reported:
        return ""
    return (
        f"Nothing is compared: no trial reported the report_metric {metric!r}"
        f"{did_you_mean(metric, reported)}; they reported: {', '.join(reported) or 'none'}."
    )


def advice_on_worse(source: ReportSource, regions: Sequence[RegionReport]) -> str:
    """What to do where tuned settings are worse than default ones; empty if they nowhere are."""
    if all(region.worse is None for region in regions):
        return ""
    return (
        f"{source.metric}, which chose the settings, and {source.report_metric} disagree. If both "
        "models are hardly better than a guess, look at the data first: are the labels right? Else "
        "few rows may be why: validate on more of them, or over several splits (cross-validation), "
        "and give the tuning more trials. Don't choose settings by the test rows: nothing would be "
        "left to say how good they are on new ones."
    )


def next_step_on_worse(region: RegionSource) -> tuple[str | None, str | None]:
    """What to do about a published model of settings that are worse than the default ones.

    Returns:
        The step in words, and the command for it; None where there is none.
    """
    if region.published is None or region.in_force is None:
        return None, None
    if region.in_force != region.published:
        return f"The region's latest model is not this one but run {region.in_force.name}'s.", None
    if region.previous is not None:
        command = f"trialfleet promote {shlex.quote(str(region.previous))}"
        earlier = f"run {region.previous.name}'s, which measured better"
        return f"Its model is the region's latest. To go back to {earlier}:", command
    data = {region.name: {"data": list(region.data)}} if region.data else [region.name]
    alone = json.dumps(data, ensure_ascii=False)
    return (
        "Its model is the region's latest, and no earlier one is known to be better. To publish a "
        f"model of the default settings, run a copy of the study with regions: {alone} and budget: "
        "{trials: 1}: the first trial has them."
    ), None


def why_command(region: RegionSource) -> str | None:
    """The command that says why a region stands where it stands; None without a run's folder."""
    if region.folder is None:
        return None
    run = region.folder.absolute().parent.parent  # the report is read from anywhere
    return f"trialfleet why {shlex.quote(region.name)} --run {shell_quoted_anywhere(run)}"


def failures_of(trials: Sequence[Trial]) -> tuple[Failure, ...]:
    """The failed trials by their error, most frequent first."""
    groups: dict[str, list[int]] = {}
    for trial in trials:
        if trial.state == "failed" and trial.error is not None:
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


def importance_of(
    study: Study | None, direction: Direction
) -> tuple[tuple[Importance, ...], str | None]:
    """How much each parameter decided whether a trial was among the best third.

    By Optuna's PED-ANOVA (Watanabe et al. 2023, arXiv 2304.10255), which needs no scikit-learn as
    its fANOVA and mean decrease impurity do, and judges conditional parameters (theorem 4.2 of
    arXiv 2601.20800): it compares the values among the best trials with those among all, of the
    trials that had the parameter. Optuna's documentation wants five of the best trials for that,
    so a parameter is judged if ten trials had it, five of the best among them, and left out
    otherwise. In simulated studies of 20 to 60 trials a parameter without any effect got up to
    nine tenths of the whole by chance where three to five trials had it, and by this rule seldom
    more than three tenths.

    Returns:
        the importances, greatest first, and why there are none, or none of some parameters.
    """
    from optuna.trial import TrialState

    trials = (
        [] if study is None else study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    )
    had = Counter(name for trial in trials for name in trial.distributions)
    note = _why_no_importance(trials, list(had))
    if study is None or note is not None:
        return (), note
    best = best_first(trials, direction)
    best = best[: max(IMPORTANCE_TOP, math.ceil(len(trials) * IMPORTANCE_BEST))]
    had_of_best = Counter(name for trial in best for name in trial.distributions)
    judged = [
        name
        for name in sorted(had)
        if had[name] >= IMPORTANCE_TRIALS and had_of_best[name] >= IMPORTANCE_TOP
    ]
    few = [
        f"{name}, which {had[name]} of {len(trials)} trials had, {had_of_best[name]} of the best "
        f"{len(best)}"
        for name in sorted(had.keys() - judged)
    ]
    left_out = f"too few trials tell of {'; '.join(few)}" if few else None
    shares = _shares(study, judged, direction, (len(best) - 0.5) / len(trials)) if judged else None
    if shares is None:
        return (), left_out or "no parameter stands out"
    found = [
        Importance(parameter=name, share=share, trials=had[name]) for name, share in shares.items()
    ]
    return tuple(found), left_out


def _why_no_importance(trials: Sequence[FrozenTrial], names: Sequence[str]) -> str | None:
    if len(trials) < IMPORTANCE_TRIALS:
        return f"too few trials: {len(trials)} of at least {IMPORTANCE_TRIALS} completed ones"
    if len({trial.value for trial in trials}) == 1:
        return "every trial reached the same value"
    return None if names else "the study has no parameters"


def _shares(
    study: Study, names: list[str], direction: Direction, quantile: float
) -> dict[str, float] | None:
    """Each parameter's share, greatest first; None where the evaluator finds none at all."""
    from optuna.importance import PedAnovaImportanceEvaluator

    evaluator = PedAnovaImportanceEvaluator(target_quantile=quantile)
    with warnings.catch_warnings():
        # it warns that low targets are better: so they are
        warnings.simplefilter("ignore")
        raw = evaluator.evaluate(study, names, target=lambda trial: loss(trial.value, direction))
    total = sum(raw.values())
    if not total > 0:
        return None
    return {name: raw[name] / total for name in sorted(names, key=lambda name: (-raw[name], name))}
