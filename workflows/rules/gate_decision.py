"""The gate's decision whether a new model, the challenger, replaces the current one, the champion.

The champion stays if the challenger is worse by more than the tolerance (relevance), *and* if
chance alone doesn't explain the difference (significance). The source of this rule is Roychoudhury,
Scheuer and Neuenschwander (Beyond p-values: a phase II dual-criterion design, Clinical Trials 15,
2018). Two alternatives were rejected:

- *Keep the champion unless the challenger is shown to be non-inferior.* With a tolerance of 0 this
  requires proof that the challenger is better. On most days both models are equally good, so the
  champion would seldom be replaced.
- *Keep the champion if the challenger's metric is worse.* Of two equally good models, chance makes
  the challenger's metric worse in half of all cases.

If the trainer writes the loss of each row, a paired bootstrap decides whether chance explains the
difference (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13; Koehn,
Statistical significance tests for machine translation evaluation, 2004). Both models were measured
on the same rows, so rows are resampled in pairs.

To require both conditions has a disadvantage. If a slightly worse model passes each day, the models
slowly become worse. This is known as the creep of non-inferiority trials (D'Agostino, Massaro and
Sullivan, Statistics in Medicine 22, 2003).

The difference of the mean losses, positive if the challenger's is higher, counts as chance only if
its confidence interval reaches below zero by at least a quarter of the difference (`_AS_WELL`). One
row with a very large loss can make the interval begin just below zero, because a third of all
bootstrap samples don't contain the row, but not far below. The disadvantage: the gate rejects 9 %
instead of 5 % of the challengers that equal the champion. A rank test or a trimmed mean would
ignore how large the largest losses are.

If a day's labels are shuffled, both models look equally bad on the day's rows. So if the trainer
also measures a constant prediction, the challenger must be shown to be better than this prediction.

A champion can't be good on values that it never saw, such as categories with a new spelling. So the
challenger must also pass on the rows without such values. If more than half of all rows have such
values, the comparison is not fair, and the champion stays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from trialfleet.objective import Direction, loss
from trialfleet.workflows.facts.models.verdict import (
    BASELINE,
    CHALLENGER,
    CHAMPION,
    ComparedModel,
    GateMetrics,
    Verdict,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from trialfleet.workflows.study.spec import Study

Losses: TypeAlias = "npt.NDArray[np.float64]"

RESAMPLES = 10_000
_MOST_ROWS = 10_000  # drawn one by one; more rows are drawn in groups
_NUMBERS = 4_000_000  # drawn at a time, which bounds the memory
_AS_WELL = 0.25  # of a difference: it may be chance if its interval begins this far below zero
_LITTLE = 0.01  # of the champion's metric: a person may accept a smaller loss

_ENOUGH_SEEN = 0.5  # of the rows: the least part without values that are new to the champion

# names of the measurements on the rows without values that are new to the champion
SEEN = {name: f"{name}_seen" for name in (CHAMPION, CHALLENGER)}


@dataclass(frozen=True, kw_only=True)
class Rule:
    """The settings of a study's gate."""

    metric: str
    direction: Direction
    tolerance: float
    confidence: float
    baseline: bool
    seed: int


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The gate's measurement of a model.

    `metrics` has the finite metrics. `not_finite` has the others as text, such as "nan". `losses`
    has the model's loss in each row, if known. `note` has a remark on the measurement, for example
    that rows have values that the model never saw.
    """

    metrics: Mapping[str, float]
    not_finite: Mapping[str, str] = field(default_factory=dict)
    losses: Losses | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class PassedModel:
    """A model that passed the gate, although its metric may be worse than the champion's."""

    why: str
    is_worse: bool

    def __str__(self) -> str:
        """Return the message for a person, to be shown after the region's name."""
        if self.is_worse:
            return f"the gate let a model pass that measured worse: {self.why}"
        return f"the gate let it pass: {self.why}"


def passed_message(rule: Rule, verdict: Verdict) -> PassedModel | None:
    """Return the message about a model that passed a comparison with a champion, else None."""
    if not verdict.promoted or verdict.champion is None:
        return None
    worse = _loss_difference(rule, verdict.challenger.metrics, verdict.champion.metrics)
    return PassedModel(why=verdict.why, is_worse=worse > 0)


def kept_words(champion: str | None) -> str:
    """Return a text about a new model: its region kept the current one, of the run `champion`."""
    return f"kept the current model{f' (run {champion})' if champion else ''} instead of this one"


def gate_rule(study: Study) -> Rule:
    """Return the settings of a study's gate, which the study must have."""
    gate = study.gate
    assert gate is not None, "the study has no gate"
    metric = gate.metric or study.compared_metric
    is_objective = metric == study.objective.metric
    return Rule(
        metric=metric,
        direction=gate.direction
        or (study.objective.direction if is_objective else study.compared_direction),
        tolerance=gate.tolerance,
        confidence=gate.confidence,
        baseline=gate.baseline,
        seed=study.seed,
    )


def decide(
    rule: Rule, measured: Mapping[str, Measurement], *, champion: str, challenger: str
) -> Verdict:
    """Return the verdict on two models that were measured on the same rows.

    `measured` has the keys "champion" and "challenger". It may also have "baseline", a constant
    prediction. It may have "champion_seen" and "challenger_seen", which are the same models,
    measured only on rows whose values the champion knows. `champion` and `challenger` are the ids
    of the models' runs.
    """
    promoted, why, interval = _decision(rule, measured)
    if note := measured[CHAMPION].note:
        doubt = _new_values_reason(rule, measured) if promoted else None
        promoted, why = promoted and not doubt, f"{doubt or why}; {note}"
    metrics = {name: dict(each.metrics) for name, each in measured.items()}
    return Verdict(
        verdict="promoted" if promoted else "kept",
        why=why,
        metric=rule.metric,
        champion=ComparedModel(run=champion, metrics=metrics[CHAMPION]),
        challenger=ComparedModel(run=challenger, metrics=metrics[CHALLENGER]),
        baseline=GateMetrics(metrics=metrics[BASELINE]) if BASELINE in metrics else None,
        interval=interval,
    )


def _decision(
    rule: Rule, measured: Mapping[str, Measurement]
) -> tuple[bool, str, tuple[float, float] | None]:
    for name in (CHALLENGER, CHAMPION):
        if value := measured[name].not_finite.get(rule.metric):
            return False, f"the {name}'s {rule.metric} is {value}", None
        if rule.metric not in measured[name].metrics:
            there = ", ".join(sorted(measured[name].metrics)) or "none"
            return False, f"the {name} has no number {rule.metric!r}; its numbers: {there}", None
    differences = _differences(measured[CHALLENGER], measured[CHAMPION])
    interval = _confidence_interval(rule, differences)
    if no_better := _constant_model_reason(rule, measured):
        return False, no_better, interval
    worse = _loss_difference(rule, measured[CHALLENGER].metrics, measured[CHAMPION].metrics)
    values = _values(rule, measured, CHAMPION)
    if worse <= rule.tolerance:
        allowed = f", within the tolerance of {rule.tolerance:g}" if worse > 0 else ""
        return True, values + allowed, interval
    values_and_loss = f"{values}: worse by {worse:.4g}"
    if rule.tolerance:
        values_and_loss += f" (tolerance {rule.tolerance:g})"
    if interval is None or differences is None:
        return False, values_and_loss + _unpairable_text(measured), None
    sure = f"{rule.confidence:.0%} confidence"
    if interval[0] > 0:
        loss = (
            "the new model's losses per row are higher by at least "
            f"{interval[0]:.4g} on average with {sure}"
        )
        advice = _small_loss_text(rule, worse, measured[CHAMPION])
        return False, f"{values_and_loss}, and {loss}{advice}", interval
    higher = float(differences.mean())
    if -interval[0] < _AS_WELL * higher:
        few = (
            f"the new model's losses per row are higher by {higher:.4g} on average; a few rows may "
            f"cause that, but chance alone does not: the interval of {sure} reaches only "
            f"{-interval[0]:.4g} below zero"
        )
        return False, f"{values_and_loss}, and {few}", interval
    return True, f"{values}; the new model is worse, but this may be chance ({sure})", interval


def _small_loss_text(rule: Rule, worse: float, champion: Measurement) -> str:
    if worse > _LITTLE * abs(champion.metrics[rule.metric]):
        return ""
    unit = 10.0 ** math.floor(math.log10(worse))  # rounded up to one digit that isn't zero
    say = math.ceil(worse / unit) * unit
    return f"; if such a small loss is acceptable, set gate.tolerance, to {say:g} for example"


def _unpairable_text(measured: Mapping[str, Measurement]) -> str:
    """Return a note that the losses can't be compared by row, or "" if a model has no losses."""
    one, other = measured[CHAMPION].losses, measured[CHALLENGER].losses
    if one is None or other is None:
        return ""
    return f" (the losses, of {len(one)} and {len(other)} rows, can't be compared row by row)"


def _constant_model_reason(rule: Rule, measured: Mapping[str, Measurement]) -> str | None:
    baseline, challenger = measured.get(BASELINE), measured[CHALLENGER]
    if not rule.baseline or baseline is None or rule.metric not in baseline.metrics:
        return None
    current = measured[CHAMPION].metrics[rule.metric]
    values = f"{_values(rule, measured, BASELINE)}, {CHAMPION} {current:.4g}"
    if _loss_difference(rule, challenger.metrics, baseline.metrics) >= 0:
        return f"no better than a constant prediction ({values}); are the labels right?"
    interval = _confidence_interval(rule, _differences(challenger, baseline))
    if interval and interval[1] >= 0:
        return (
            "the losses per row don't show that the new model is better than a constant prediction "
            f"({values}; {rule.confidence:.0%} confidence); are the labels right?"
        )
    return None


def _new_values_reason(rule: Rule, measured: Mapping[str, Measurement]) -> str | None:
    """Return why the challenger may be better only thanks to values new to the champion.

    Return None if it also passes on the rows without such values, or if these weren't measured.
    """
    seen = {name: measured[alias] for name, alias in SEEN.items() if alias in measured}
    if len(seen) < len(SEEN):
        return None
    share = _rows(seen[CHAMPION]) / max(1, _rows(measured[CHAMPION]))
    if share < _ENOUGH_SEEN or any(rule.metric not in each.metrics for each in seen.values()):
        return f"{_values(rule, measured, CHAMPION)}, which is no fair comparison"
    promoted, why, _ = _decision(rule, seen)
    return None if promoted else f"on the rows whose values the champion knows: {why}"


def _rows(model: Measurement) -> int:
    return 0 if model.losses is None else len(model.losses)


def _values(rule: Rule, measured: Mapping[str, Measurement], other: str) -> str:
    new, old = (measured[name].metrics[rule.metric] for name in (CHALLENGER, other))
    digits = next((n for n in range(4, 17) if f"{new:.{n}g}" != f"{old:.{n}g}"), 4)
    return f"{rule.metric} {new:.{digits}g}, {other} {old:.{digits}g}"


def _loss_difference(rule: Rule, new: Mapping[str, float], old: Mapping[str, float]) -> float:
    """Return by how much the new metric is worse than the old one, or below 0 if it is better."""
    return loss(new[rule.metric], rule.direction) - loss(old[rule.metric], rule.direction)


def _differences(challenger: Measurement, other: Measurement) -> Losses | None:
    """Return the challenger's losses minus the other's, or None if rows can't be paired."""
    one, two = challenger.losses, other.losses
    if one is None or two is None or len(one) != len(two) or len(one) < 2:
        return None
    return one - two


def _confidence_interval(rule: Rule, differences: Losses | None) -> tuple[float, float] | None:
    return None if differences is None else bootstrap(differences, rule.confidence, rule.seed)


def bootstrap(differences: Losses, confidence: float, seed: int) -> tuple[float, float]:
    """Return a lower and an upper bound of the mean of `differences`.

    Each of the bounds holds with the confidence `confidence`. At least two differences are needed.
    The same `seed` gives the same result.
    """
    import numpy as np

    random = np.random.default_rng(seed)
    values = differences
    if len(values) > _MOST_ROWS:  # the mean of the groups' means varies as much as that of the rows
        groups = np.array_split(random.permutation(values), _MOST_ROWS)
        values = np.array([group.mean() for group in groups])
    count = len(values)
    block = max(1, _NUMBERS // count)
    means = np.concatenate(
        [
            values[random.integers(0, count, (min(block, RESAMPLES - begin), count))].mean(1)
            for begin in range(0, RESAMPLES, block)
        ]
    )
    low, high = np.quantile(means, [1 - confidence, confidence])
    return float(low), float(high)
