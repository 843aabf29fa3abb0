"""Which of a region's running trials are told to stop.

A trial is told when it is sure enough (`confidence`) that it would end behind the best complete
trial of its region, which is what the region needs a trial to beat. Never is one told

- whose last report is before `min_steps`, or that has reported fewer than `LEAST_REPORTS` times,
- while fewer than `startup_trials` trials with curves are complete,
- that has already reported better than the region's best result,
- if two thirds of the region's trials that run were told at once, or more than `max_stopped` of
  those that have begun were told so far: a model of curves that is wrong must not leave a region
  without results.

Many trainers give the best epoch's weights as their result, not the last one's. Where that explains
the complete trials' results better, it is the best value so far that is followed along a curve.

Pure: the same curves give the same decisions, so that a service that was killed decides again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from trialfleet.objective import Direction, loss
from trialfleet.optimizer.stopping import FLOOR
from trialfleet.optimizer.stopping.curves import Curve, CurveModel, Prediction

AT_ONCE = 2 / 3  # of the trials that run are never told at one look, unless only one is
LEAST_REPORTS = 2


@dataclass(frozen=True, kw_only=True)
class Rule:
    """When a trial may be told to stop.

    Attributes:
        min_steps: reported before; None: FLOOR of the end.
        max_steps: where a training ends; None: where the complete ones did.
        startup_trials: complete before.
        confidence: that it ends behind the best.
        max_stopped: part of the trials that were begun, at most.
    """

    min_steps: int | None = None
    max_steps: int | None = None
    startup_trials: int = 4
    confidence: float = 0.95
    max_stopped: float = 0.9


@dataclass(frozen=True)
class Complete:
    """A trial that came to its end: its curve, and its result, smaller being better."""

    curve: Curve
    loss: float


@dataclass(frozen=True, kw_only=True)
class Decision:
    """That a trial is to stop.

    Attributes:
        step: the last that it had reported.
        max_steps: where its training would have ended.
        loss: its predicted result, smaller being better.
        deviation: the prediction's standard deviation.
        chance: that it would have been better than the best.
        best: the best complete trial's result, smaller being better.
    """

    step: int
    max_steps: int
    loss: float
    deviation: float
    chance: float
    best: float


def curve_of(reports: Mapping[int, float], direction: Direction) -> Curve | None:
    """Return the curve of a trial's reports by step; None where none is finite."""
    steps = np.array(sorted(reports), dtype=float)
    losses = np.array([loss(reports[int(step)], direction) for step in steps], dtype=float)
    finite = np.isfinite(losses)
    return Curve(steps[finite], losses[finite]) if finite.any() else None


def to_stop(
    rule: Rule,
    running: Mapping[str, Curve],
    complete: Sequence[Complete],
    *,
    begun: int,
    stopped: int,
) -> dict[str, Decision]:
    """Return who is to stop, by name: the least promising first.

    Args:
        rule: when a trial may be told.
        running: the curves of the trials that run and were not told.
        complete: those that came to their ends.
        begun: how many of the region's trials have begun.
        stopped: how many of them were told so far.
    """
    at_once = max(1, math.ceil(AT_ONCE * len(running)) - 1)
    free = min(int(rule.max_stopped * begun) - stopped, at_once)
    if free <= 0 or not running or len(complete) < max(rule.startup_trials, 2):
        return {}
    end = rule.max_steps or int(max(each.curve.steps[-1] for each in complete))
    floor = FLOOR * end if rule.min_steps is None else rule.min_steps
    best = min(each.loss for each in complete)
    follow = _best_so_far if _keeps_best(complete) else lambda curve: curve
    old_enough = {
        name: follow(curve)
        for name, curve in running.items()
        if floor <= curve.steps[-1] < end
        and len(curve.steps) >= LEAST_REPORTS
        and curve.losses.min() >= best
    }
    if not old_enough:
        return {}
    predictor = CurveModel([follow(each.curve) for each in complete], end)
    chances = {}
    for name, curve in old_enough.items():
        prediction = predictor.predict(curve)
        if not math.isfinite(prediction.mean + prediction.deviation):
            continue  # values near the end of what a float holds
        chances[name] = (prediction.below(best), prediction)
    hopeless = sorted(
        (name for name, (chance, _) in chances.items() if chance <= 1 - rule.confidence),
        key=lambda name: (chances[name][0], -chances[name][1].mean, name),
    )
    return {
        name: _decision(old_enough[name], end, best, *chances[name]) for name in hopeless[:free]
    }


def _keeps_best(complete: Sequence[Complete]) -> bool:
    """Whether results are rather the best reports than the last ones."""
    best = sum(abs(each.loss - float(each.curve.losses.min())) for each in complete)
    return best < sum(abs(each.loss - float(each.curve.losses[-1])) for each in complete)


def _best_so_far(curve: Curve) -> Curve:
    return replace(curve, losses=np.minimum.accumulate(curve.losses))


def _decision(
    curve: Curve, end: int, best: float, chance: float, prediction: Prediction
) -> Decision:
    return Decision(
        step=int(curve.steps[-1]),
        max_steps=end,
        loss=prediction.mean,
        deviation=prediction.deviation,
        chance=chance,
        best=best,
    )
