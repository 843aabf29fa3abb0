"""Where a storm takes place: a pool, one run after another in it, and all possible failures."""

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
        kills: number of processes to kill; in the lab, of events of any kind.
        seed: of the order of events; which processes exist to be killed depends on the machine.
        regions: of each run.
        trials: of each region.
        mean: mean number of seconds between two events.
        clocks: the share of events that set the clock.
        ambushes: the share of events that kill during a message between a job's agent and the
            optimiser's service.
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
    """A failure that was caused.

    Attributes:
        what: description.
        counts: the names by which it is counted.
        lasts: seconds until its end.
        ends: ends it.
        ended: description of its end.
    """

    what: str
    counts: tuple[str, ...]
    lasts: float = 0.0
    ends: Callable[[], None] = lambda: None
    ended: str = ""


class Ground(Protocol):
    """A pool with a run in it.

    Attributes:
        shares: the share of each kind of event among all events; the rest are kills.
        left_out: events that are not possible on this machine, and why.
        look_seconds: between two looks at the run.
        recovery_seconds: the time after the last event until all processes must run again.
    """

    shares: Mapping[str, float]
    left_out: Sequence[str]
    look_seconds: float
    recovery_seconds: float

    def up(self) -> None:
        """Start the pool."""

    def tend(self) -> Sequence[str]:
        """Do what a machine's systemd would do; return descriptions of what was done."""

    def strike(self, event: str, random: Random) -> Strike | None:
        """Cause a failure of kind `event`; None if nothing is there that can fail so."""

    def plan(self, number: int) -> None:
        """Plan the run of this number."""

    def submit(self) -> None:
        """Submit the planned run to HTCondor; PoolError while HTCondor can't be reached."""

    def resume(self) -> None:
        """Resume the run, as a person does with a stalled run; PoolError as for `submit`."""

    def look(self, before: Progress) -> Seen:
        """Return the run's state; what can't be read now is as in `before`."""

    def missing(self) -> list[str]:
        """Return the processes and jobs that should run and don't; empty if all run."""

    def close(self, audit: Audit) -> None:
        """Audit the run, which is over; remove it if there is no fault."""

    def down(self, kept: Path | None) -> None:
        """Stop the pool, and copy the runs' folders to `kept` if given."""
