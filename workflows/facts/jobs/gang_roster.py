"""A gang's roster, with the orders for its agents, and the gang's jobs.

A trial is over once its roster has a `code`. The run's optimiser then chooses the next trial
(speaker.py). `of_next` begins that trial's first generation. Without a next trial, `finished` makes
all agents leave.
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
    """A rank of a generation: its agent and address. The place in the roster is the rank."""

    proc: int
    token: str
    host: str
    port: int
    door: int = 0


class Apart(NamedTuple):
    """A living agent that can't be reached by another agent of its gang.

    Attributes:
        token: the agent's token.
        host: the address of the agent's machine.
        other: the address of another agent with which it has no connection.
        until: when the agent may join again, in Unix seconds.
        seconds: how long the agent waits this time; the next time it waits twice as long.
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
        cluster: the submission of the gang's jobs; the roster doesn't apply to agents of other
            submissions.
        generation: counted from 1.
        state: form, run or done.
        since: when this state began, in Unix seconds.
        trial: the name of the trial; empty while it is unknown.
        turn: the number of the gang's message to which the trial's order is the answer.
        first: the generation in which the trial began.
        members: the seats by rank; while a generation forms, those of the previous generation.
        start: the name of the checkpoint to start from; None: start from the beginning.
        kill: while a generation forms: workers are killed, because nothing is left to be saved.
        short: while a generation forms: fewer than `min` jobs have a slot.
        failures: the number of workers that failed since the last checkpoint while their jobs
            lived.
        code: the trial's exit code, or minus the signal's number; None until the trial ends. In the
            state "done" it is the exit code of the agents.
        over: the limit for which the trial was ended: memory, time or disk.
        result: the name of the package of the rank whose result counts.
        apart: agents that are left out for a while, because the network separates them from others.
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
        """Return the roster as plain data."""
        return {"schema": 1, **asdict(self)}

    @staticmethod
    def of_json(text: bytes) -> Roster:
        """Return the roster in a JSON text, which a job may have changed.

        Raises:
            ValueError: the text is not a roster.
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
        proc: the job's number in the cluster.
        status: its JobStatus.
        began: its JobCurrentStartDate.
        said: the last message of its agent.
        silent: whether the agent has sent nothing new for too long.
        quiet_for: seconds since the agent last sent something new.
        running_for: seconds since the job got its slot.
        hold_code: its HoldReasonCode, if it is on hold.
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
        """The last message of the job's agent; None if the agent is lost."""
        is_its = self.said is not None and self.said.began == self.began
        lives = self.status == JobStatus.RUNNING and is_its and not self.silent
        return self.said if lives else None

    @property
    def is_starting(self) -> bool:
        """True if the job has just got a slot and its agent has not sent a message yet."""
        has_spoken = self.said is not None and self.said.began == self.began
        is_late = has_spoken or self.running_for >= STARTING_SECONDS
        return self.status == JobStatus.RUNNING and not is_late


class Size(NamedTuple):
    """The least and the greatest number of jobs that a gang may have."""

    least: int
    most: int


def of_next(roster: Roster, trial: str, turn: int, now: float) -> Roster:
    """Return the roster of the next trial's first generation, with the present agents."""
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
    """Return the roster that makes all agents leave with an exit code."""
    return replace(roster, state=DONE, since=now, code=code)


def agents_of(jobs: Iterable[Job]) -> dict[int, Member]:
    """Return the last message of each living agent, by its job's proc."""
    return {job.proc: job.agent for job in jobs if job.agent is not None}
