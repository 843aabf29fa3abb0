"""The classes that a region's study uses: settings, answers to requests for a trial, outcomes.

An answer is a trial (`Assignment`) or a refusal (`Refused`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

from trialfleet.objective import Direction
from trialfleet.optimizer.sampling.names import OWN, Sampler

Kind = Literal["space", "money", "all money", "deadline", "failures", "trials", "hours", "usd"]


@dataclass(frozen=True, kw_only=True)
class RegionSettings:
    """The settings of a region's study, without its search space."""

    metric: str
    direction: Direction
    region: str  # region and seed determine the suggestions in every run
    seed: int
    trials: int  # budget, including failed trials
    startup_trials: int  # before the model proposes, including the default settings
    max_failures: int  # trials that may fail for good; one more stops the region
    hours: float | None  # budget since the first ask; None for no limit
    sampler: Sampler = OWN


@dataclass(frozen=True)
class Assignment:
    """A trial for a job: its number, its parameters with the study's constants, and its seed."""

    number: int
    params: dict[str, Any]
    seed: int


@dataclass(frozen=True)
class Refused:
    """A refusal to begin a trial or other work, and the reason for the refusal."""

    reason: str
    kind: Kind | None = field(default=None, compare=False)


class Stopped(Refused):
    """A refusal of all further trials, because too many of the region's trials failed for good."""


class TrialExecution(TypedDict, total=False):
    """Facts about a trial's execution, which are stored with any outcome."""

    attempts: int
    job: Mapping[str, Any] | None  # other facts about the job, as plain data
    reports: Mapping[int, float]  # the study's metric by step; may be infinite or NaN


@dataclass(frozen=True, kw_only=True)
class Complete:
    """The outcome of a trial that has a successful attempt."""

    metrics: dict[str, float]  # all finite; the objective's is the trial's value
    seconds: float | None  # duration of the training, if reported
    device: str | None  # of the training, if reported


@dataclass(frozen=True, kw_only=True)
class StoppedEarly:
    """The outcome of a trial that was stopped early: a predicted result, but no measured one.

    The trial's state is PRUNED, and its value is the predicted result. The sampler learns from this
    value, but the trial never counts as the best one.
    """

    order: Mapping[str, Any]  # as in `stop.json`: the `predicted` result, and the reason
    metrics: dict[str, float]  # reported before the stop; the objective's may be missing
    seconds: float | None
    device: str | None


@dataclass(frozen=True, kw_only=True)
class Failed:
    """The outcome of a failed attempt at a trial."""

    error: str
    final: bool  # another attempt with the same parameters would fail, too
    never_began: bool = False  # the trainer's command could not be run
    by_machine: bool = False  # the job's files show a fault of the machine or of HTCondor
    got_nowhere: bool = False  # the job started repeatedly without progress, or stayed in one state


@dataclass(frozen=True, kw_only=True)
class Abandoned:
    """The outcome of a trial that ended without a result, through no fault of its parameters.

    The trial does not count as a failure.
    """

    error: str


class OutOfMoney(Abandoned):
    """The outcome of a trial, full training or gate that was ended because of the cost cap."""


Outcome = Complete | StoppedEarly | Failed | Abandoned  # OutOfMoney among these
