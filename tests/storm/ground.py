"""A storm's surroundings: a pool, one run after another in it, and all possible disturbances."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal, Protocol

from tests.storm.audit import Audit
from tests.storm.watch import Progress, Seen


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A storm's settings.

    Attributes:
        kills: processes to kill; in the lab, events of any kind.
        seed: of the order of events; which process is there to be killed is the machine's word.
        regions: of each run.
        trials: of each region.
        mean: seconds between two events on average.
        clocks: the share of events that set the clock.
        ambushes: the share of events that kill at a moment of the talk of agent and service.
        stopping: whether trials are stopped early.
        trials_per_job: of all regions; None: all, 1 and 2, region by region.
    """

    kills: int
    seed: int
    regions: int
    trials: int
    mean: float
    clocks: float
    ambushes: float = 0.0
    stopping: bool = False
    trials_per_job: Literal["all"] | int | None = None


@dataclass(frozen=True, kw_only=True)
class Strike:
    """Something that befell the pool.

    Attributes:
        what: in words.
        counts: the names by which it is counted.
        lasts: seconds until its end.
        ends: what is done then.
        ended: that in words.
    """

    what: str
    counts: tuple[str, ...]
    lasts: float = 0.0
    ends: Callable[[], None] = lambda: None
    ended: str = ""


class Ground(Protocol):
    """A pool with a run in it.

    Attributes:
        shares: how often which event is, as a part of all; the rest are kills.
        left_out: events that can't be had here, and why.
        look_seconds: between two looks at the run.
        recovery_seconds: after the last event, for all to run again.
    """

    shares: Mapping[str, float]
    left_out: Sequence[str]
    look_seconds: float
    recovery_seconds: float

    def up(self) -> None:
        """Bring the pool up."""

    def tend(self) -> Sequence[str]:
        """Do what happens by itself on a machine; return what was done, in words."""

    def strike(self, event: str, random: Random) -> Strike | None:
        """Have something befall the pool; None where nothing is there that it could."""

    def plan(self, number: int) -> None:
        """Plan the run of this number."""

    def submit(self) -> None:
        """Hand it to HTCondor; PoolError while that is away."""

    def resume(self) -> None:
        """Do what a person does with a run that doesn't go on; PoolError as `submit`."""

    def look(self, before: Progress) -> Seen:
        """Return how the run stands; what can't be read now is as it was before."""

    def missing(self) -> list[str]:
        """Return what does not run of what should; empty where all does."""

    def close(self, audit: Audit) -> None:
        """Audit the run that is over; it is removed if nothing was found."""

    def down(self, kept: Path | None) -> None:
        """End everything; what the runs left is copied to a folder, if one is named."""
