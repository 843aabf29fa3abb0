"""A gang's roster: the orders for its agents, and the jobs that it has.

A trial is over once its roster has a `code`. Which trial follows is for the run's optimiser to say
(speaker.py): then `of_next` begins its first generation, or `finished` has all agents leave.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from trialfleet.classads import JobStatus
from trialfleet.files import checker
from trialfleet.nodes.gang.member import Member

FORM, RUN, DONE = "form", "run", "done"  # states
STARTING_SECONDS = 20.0  # a job whose agent hasn't spoken is waited for so long


class Seat(NamedTuple):
    """A member of a generation; its rank is its place in the roster."""

    proc: int
    token: str
    host: str
    port: int
    door: int = 0


class Apart(NamedTuple):
    """A living agent that another one of the gang can't reach.

    Attributes:
        token: its own.
        host: its machine's address.
        other: the address of one from which it can't be reached, or which it can't reach.
        until: when it may join again, in Unix seconds.
        seconds: how long it has to wait this time: twice as long the next time.
    """

    token: str
    host: str
    other: str
    until: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Roster:
    """The orders for the agents of a gang.

    Attributes:
        cluster: the submission that it is for: agents of another have nothing to do with it.
        generation: counted from 1.
        state: form, run or done.
        since: when this state began, in Unix seconds.
        trial: the name of its trial; empty while that is unknown.
        turn: the number of the gang's message that the trial's order answers.
        first: the generation in which the trial began.
        members: by rank; while one forms, those of the generation before it.
        start: name of the checkpoint to start from; None: from the beginning.
        kill: of a generation that forms: nothing is left to be saved, workers are to be killed.
        short: of a generation that forms: fewer than `min` have a slot.
        failures: workers that failed since the last checkpoint, their jobs living.
        code: how the trial ended, as an exit code or minus a signal's number, None until then; of a
            gang that is done, the agents' own exit code.
        over: the limit for which the trial was ended: memory, time or disk.
        result: name of the package of the deciding rank.
        apart: agents that are left out for a while, as the network keeps them from others.
    """

    cluster: int
    generation: int = 1
    state: str = FORM
    since: float = 0.0
    trial: str = ""
    turn: int = 0
    first: int = 1
    members: tuple[Seat, ...] = ()
    start: str | None = None
    kill: bool = True
    short: bool = True
    failures: int = 0
    code: int | None = None
    over: str | None = None
    result: str | None = None
    apart: tuple[Apart, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"schema": 1, **asdict(self)}

    @staticmethod
    def of_json(text: bytes) -> Roster:
        """Return the roster of a text, which a job may have replaced.

        Raises:
            ValueError: it is none.
        """
        found: Roster = checker(Roster).validate_json(text, strict=True)
        return found

    def is_apart(self, agent: Member, now: float) -> bool:
        """Return whether an agent is left out for now."""
        return any(each.token == agent.token and now < each.until for each in self.apart)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job of a gang, as the queue has it.

    Attributes:
        proc: which of the cluster.
        status: its JobStatus.
        began: its JobCurrentStartDate.
        said: what its agent said last.
        silent: it has said nothing new for too long.
        quiet_for: seconds since it said something new.
        running_for: seconds since it got its slot.
        hold_code: its HoldReasonCode, where it is on hold.
    """

    proc: int
    status: int
    began: int = 0
    said: Member | None = None
    silent: bool = False
    quiet_for: float = 0.0
    running_for: float = 0.0
    hold_code: int | None = None

    @property
    def agent(self) -> Member | None:
        """The last message of a living agent; None of one that is lost."""
        is_its = self.said is not None and self.said.began == self.began
        lives = self.status == JobStatus.RUNNING and is_its and not self.silent
        return self.said if lives else None

    @property
    def is_starting(self) -> bool:
        """True if it has a slot and its agent is about to send a message."""
        has_spoken = self.said is not None and self.said.began == self.began
        is_late = has_spoken or self.running_for >= STARTING_SECONDS
        return self.status == JobStatus.RUNNING and not is_late


class Size(NamedTuple):
    """The number of jobs that a gang may have."""

    least: int
    most: int


def of_next(roster: Roster, trial: str, turn: int, now: float) -> Roster:
    """Return the roster of a trial's first generation, with the present agents."""
    if not roster.trial:  # they have waited for it
        return replace(roster, trial=trial, turn=turn)
    return Roster(
        cluster=roster.cluster,
        generation=roster.generation + 1,
        since=now,
        trial=trial,
        turn=turn,
        first=roster.generation + 1,
        members=roster.members,
        short=False,
        apart=roster.apart,
    )


def finished(roster: Roster, code: int, now: float) -> Roster:
    """Return the roster by which all agents leave with an exit code."""
    return replace(roster, state=DONE, since=now, code=code)


def agents_of(jobs: Iterable[Job]) -> dict[int, Member]:
    """Return the last messages of the living agents, by their jobs' procs."""
    return {job.proc: job.agent for job in jobs if job.agent is not None}
