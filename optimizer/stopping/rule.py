"""The rule of early stopping: which running trials of a region to stop.

A trial is stopped if, with probability `confidence` or more, it would end worse than the region's
best complete trial. These trials are not stopped:

- a trial with fewer than `LEAST_REPORTS` reports (values of the metric at a step)
- a trial whose last report is for a step before `min_steps`, or for the training's last step
- a trial whose last report is for the last step of all complete trials, or a later one
- any trial, until enough trials with reports are complete: `startup_trials`, but at least 2
- a trial that has already reported a better value than the region's best result

Two limits keep wrong predictions from stopping all trials. If several trials are running, fewer
than two thirds of them may be stopped at one time. In total, at most the share `max_stopped` of all
begun trials may be stopped.

Many trainers return the weights of the best epoch, not of the last. The rule assumes such a trainer
if the complete trials' results are closer to their best reports than to their last ones. It then
replaces each report by the trial's best report so far.

A result may also be measured in another way than the reports, for example on more rows. So a
prediction is shifted by the median difference between the complete trials' results and their last
reports. The more these differences vary, the less certain the prediction is.

Decisions depend only on the arguments, so a restarted service decides the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from trialfleet.objective import Direction, loss
from trialfleet.optimizer.stopping import FLOOR
from trialfleet.optimizer.stopping.curves import Curve, CurveModel
from trialfleet.spread import middle_and_spread

AT_ONCE = 2 / 3  # fewer than this part of the running trials stop at one time, but at least one
LEAST_REPORTS = 2


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Conditions for stopping a trial."""

    min_steps: int | None = None  # of a trial's last report; None: the share FLOOR of the last step
    max_steps: int | None = None  # last step of a training; None: that of the complete trials
    startup_trials: int = 4  # least number of complete trials
    confidence: float = 0.95  # least probability that the trial ends worse than the best trial
    max_stopped: float = 0.9  # largest share of the begun trials


@dataclass(frozen=True)
class Complete:
    """A complete trial: its learning curve, and its result as a loss. Smaller losses are better."""

    curve: Curve
    loss: float


@dataclass(frozen=True, kw_only=True)
class Decision:
    """A decision to stop a trial, and the prediction behind it."""

    step: int  # the trial's last reported step
    max_steps: int  # the last step of a complete training
    loss: float  # the trial's predicted result; smaller is better
    deviation: float  # the prediction's standard deviation
    chance: float  # probability that the trial would have been better than the best
    best: float  # the best complete trial's result; smaller is better


def build_curve(reports: Mapping[int, float], direction: Direction) -> Curve | None:
    """Return the learning curve of a trial's reports by step, or None if no report is finite."""
    steps = np.array(sorted(reports), dtype=float)
    losses = np.array([loss(reports[int(step)], direction) for step in steps], dtype=float)
    finite = np.isfinite(losses)
    return Curve(steps[finite], losses[finite]) if finite.any() else None


def choose_stops(
    rule: Rule,
    running: Mapping[str, Curve],
    complete: Sequence[Complete],
    *,
    begun: int,
    stopped: int,
) -> dict[str, Decision]:
    """Return the trials to stop, by name, the least promising first.

    `running` has the curves of the running trials that were not yet ordered to stop. `begun` is the
    number of all trials of the region that have begun. `stopped` of them were ordered to stop.
    """
    at_once = max(1, math.ceil(AT_ONCE * len(running)) - 1)
    free = min(int(rule.max_stopped * begun) - stopped, at_once)
    if free <= 0 or not running or len(complete) < max(rule.startup_trials, 2):
        return {}
    known = int(max(each.curve.steps[-1] for each in complete))
    end = rule.max_steps or known
    floor = FLOOR * end if rule.min_steps is None else rule.min_steps
    best = min(each.loss for each in complete)
    follow = _best_so_far if _keeps_best(complete) else lambda curve: curve
    curves = [follow(each.curve) for each in complete]
    ends = [float(curve.losses[-1]) for curve in curves]
    # of the trials' results from the ends of their curves
    shift, spread = middle_and_spread([x.loss - y for x, y in zip(complete, ends, strict=True)])
    old_enough = {
        name: follow(curve)
        for name, curve in running.items()
        if floor <= curve.steps[-1] < min(end, known)
        and len(curve.steps) >= LEAST_REPORTS
        and curve.losses.min() + shift >= best
    }
    if not old_enough:
        return {}
    predictor = CurveModel(curves, end)
    hopeless = []
    for name, curve in old_enough.items():
        prediction = predictor.predict(curve).shifted(shift, spread)
        if not math.isfinite(prediction.mean + prediction.deviation):
            continue  # the values nearly overflow a float
        decision = Decision(
            step=int(curve.steps[-1]),
            max_steps=end,
            loss=prediction.mean,
            deviation=prediction.deviation,
            chance=prediction.probability_below(best),
            best=best,
        )
        if decision.chance <= 1 - rule.confidence:
            hopeless.append((name, decision))
    hopeless.sort(key=lambda each: (each[1].chance, -each[1].loss, each[0]))
    return dict(hopeless[:free])


def _keeps_best(complete: Sequence[Complete]) -> bool:
    """Return whether the trials' results are closer to their best reports than to their last."""
    best = sum(abs(each.loss - float(each.curve.losses.min())) for each in complete)
    return best < sum(abs(each.loss - float(each.curve.losses[-1])) for each in complete)


def _best_so_far(curve: Curve) -> Curve:
    return replace(curve, losses=np.minimum.accumulate(curve.losses))
