"""What a region's study is set to, and what it answers when it is asked for a trial."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from trialfleet.errors import InputError
from trialfleet.optimizer.sampling.names import OWN, Sampler


@dataclass(frozen=True, kw_only=True)
class RegionSettings:
    """What a region's study needs to know besides its search space.

    Attributes:
        metric: name of the metric that decides.
        direction: whether a small or a large value of it is good.
        region: the region's name: with the seed it decides the suggestions, whatever the run.
        seed: of the whole study.
        trials: budget of trials, failed ones included.
        startup_trials: trials before the model proposes, the default settings among them.
        max_failures: so many trials may fail for good; one more stops the region.
        hours: budget of time from the first ask on, None for none.
        sampler: what proposes after the start-up trials.
    """

    metric: str
    direction: Literal["minimize", "maximize"]
    region: str
    seed: int
    trials: int
    startup_trials: int
    max_failures: int
    hours: float | None
    sampler: Sampler = OWN

    def objective_value(self, node: str, metrics: Mapping[str, float]) -> float:
        """Return the metric that decides, of a node's result.

        Raises:
            InputError: it is missing, or a metric is not a finite number.
        """
        metric = self.metric
        if metric not in metrics:
            given = ", ".join(metrics) or "none"
            raise InputError(f"{node}: no metric {metric!r} in the result; metrics: {given}")
        for name, value in metrics.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InputError(f"{node}: metric {name!r} is {value!r}, not a number")
            if not math.isfinite(value):
                raise InputError(f"{node}: metric {name!r} is {value}, not a finite number")
        return float(metrics[metric])


@dataclass(frozen=True)
class Assignment:
    """What a node is to train: complete parameters (active ones and constants) and a seed."""

    number: int
    params: dict[str, Any]
    seed: int
    baseline: bool


@dataclass(frozen=True)
class AlreadyTold:
    """The node's trial is finished and told: there is nothing left to train."""

    number: int


@dataclass(frozen=True)
class Spent:
    """The region's budget of trials or hours is used up: no new node gets a trial."""

    reason: str


@dataclass(frozen=True)
class Stopped:
    """More trials failed for good than the study allows."""

    reason: str
