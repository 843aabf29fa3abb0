"""What a region's study is set to, what it answers to an ask, and what it is told of a trial."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

from trialfleet.objective import Direction
from trialfleet.optimizer.sampling.names import OWN, Sampler

Kind = Literal["space", "money", "all money", "deadline", "failures", "trials", "hours", "usd"]


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
    direction: Direction
    region: str
    seed: int
    trials: int
    startup_trials: int
    max_failures: int
    hours: float | None
    sampler: Sampler = OWN


@dataclass(frozen=True)
class Assignment:
    """What a node is to train: complete parameters (active ones and constants) and a seed."""

    number: int
    params: dict[str, Any]
    seed: int


@dataclass(frozen=True)
class Refused:
    """Something does not begin, such as a trial of a node whose own is finished."""

    reason: str
    kind: Kind | None = field(default=None, compare=False)


class Stopped(Refused):
    """No node of the region gets one: more trials failed for good than the study allows."""


class TrialExecution(TypedDict, total=False):
    """How a trial ran, whatever came of it: what is stored of it beside its outcome.

    attempts: how often its job was started.
    job: what else is known of the job, as plain data.
    reports: the study's metric by step, as the trial reported it; infinite or NaN where it was.
        They are stored as Optuna's intermediate values.
    """

    attempts: int
    job: Mapping[str, Any] | None
    reports: Mapping[int, float]


@dataclass(frozen=True, kw_only=True)
class Complete:
    """An attempt succeeded, and with it the trial.

    Attributes:
        metrics: every one, finite; the study's own is among them, and decides.
        seconds: how long it trained, if it said so.
        device: what it trained on, if it said so.
    """

    metrics: dict[str, float]
    seconds: float | None
    device: str | None


@dataclass(frozen=True, kw_only=True)
class StoppedEarly:
    """The trial was told to stop, and is over without a result of its own.

    It is PRUNED, as Optuna calls it, with the predicted result as its value: the sampler
    learns from that, and nothing that looks for a best trial ever finds it.

    Attributes:
        order: what it was told, as `stop.json` has it: the `predicted` result, and why.
        metrics: what it said when it stopped; the study's own need not be among them.
        seconds: how long it trained, if it said so.
        device: what it trained on, if it said so.
    """

    order: Mapping[str, Any]
    metrics: dict[str, float]
    seconds: float | None
    device: str | None


@dataclass(frozen=True, kw_only=True)
class Failed:
    """An attempt failed.

    Attributes:
        error: why.
        final: another with the same parameters would fail too.
        never_began: the trainer's command could not be run.
        by_machine: the machine is to blame, or HTCondor, by what the job left.
        got_nowhere: its job was started in vain again and again, or stayed in a state.
    """

    error: str
    final: bool
    never_began: bool = False
    by_machine: bool = False
    got_nowhere: bool = False


@dataclass(frozen=True, kw_only=True)
class GivenUp:
    """The trial is not trained to its end, through no fault of its parameters.

    It counts neither as a failure nor as a result.
    """

    error: str


class Unpaid(GivenUp):
    """The fleet's autoscaler ended the attempt: nothing pays for it any more."""


Outcome = Complete | StoppedEarly | Failed | GivenUp  # Unpaid among these
