"""The roster of a gang, with the orders for its agents, and the gang's jobs in the queue.

A gang is several jobs that train one trial together. Each job has an agent, which runs one rank of
the training. One set of ranks is a generation. The next generation begins when ranks fail, are lost
or join, or when the next trial begins. A trial is over once the roster has a `code`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from trialfleet.classads import JobStatus
from trialfleet.files import checker
from trialfleet.nodes.gang.member import Member

FORM, RUN, DONE = "form", "run", "done"  # states
STARTING_SECONDS = 20.0  # the wait for the first message of a job's agent


class Seat(NamedTuple):
    """An agent's place in a generation; the place's index in `Roster.members` is the agent's rank.

    Other agents connect to the port `door` to test whether they reach the agent's machine.
    """

    proc: int
    token: str
    host: str
    port: int
    door: int = 0


class Apart(NamedTuple):
    """A living agent that the gang leaves out for now, because another agent can't reach it.

    `host` is the address of this agent's machine, and `other` that of the other agent's machine.
    The agent may join again at `until`, in Unix seconds, after a wait of `seconds`. If the agent is
    left out again, the wait is twice as long, up to a limit.
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
        cluster: the cluster of the gang's jobs; agents of other clusters ignore the roster.
        generation: the number of the present set of ranks, from 1.
        state: "form" while the generation forms, "run" while it trains, and "done" at the end.
        since: when `state` began, in Unix seconds.
        trial: the trial's name; empty while it is unknown.
        turn: the number of the gang's request that was answered with `trial`.
        first: the generation in which the trial began.
        members: the seats by rank; while a generation forms, the previous generation's seats.
        start: the name of the checkpoint to start from; None if training starts at the beginning.
        kill: whether the previous generation's workers (training processes) are killed while a
            generation forms; False as long as rank 0 may still save a checkpoint.
        short: whether a generation that forms has fewer agents than the gang's `min`.
        failures: how often workers in living jobs have failed since the last checkpoint.
        code: the trial's exit code, or minus the number of the signal that killed it; None until
            the trial ends. In the state "done", the exit code with which the agents are to leave.
        over: the limit that the trial exceeded (memory, time or disk); None if it exceeded none.
        result: the name of the package (files of one rank) with the trial's result.
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

    def to_json(self) -> dict[str, Any]:
        """Return the roster as plain data."""
        return {"schema": 1, **asdict(self)}

    @staticmethod
    def from_json(text: bytes) -> Roster:
        """Return the roster in a JSON text; ValueError if the text is not a roster."""
        found: Roster = checker(Roster).validate_json(text, strict=True)
        return found

    def is_apart(self, agent: Member, now: float) -> bool:
        """Return whether the gang leaves out an agent at the time `now`."""
        return any(each.token == agent.token and now < each.until for each in self.apart)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job of a gang, from the queue and its agent's messages.

    `status`, `began` and `hold_code` are the job's attributes JobStatus, JobCurrentStartDate and
    HoldReasonCode. `said` is the agent's last message. `quiet_for` is the seconds since the agent
    sent something new. `silent` is True if that is too long ago. `running_for` is the seconds since
    the job got its slot.
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
        """The last message of the job's agent; None if the agent is lost or has sent none."""
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


def next_trial_roster(roster: Roster, trial: str, turn: int, now: float) -> Roster:
    """Return the roster with which the present agents begin the trial `trial`."""
    if not roster.trial:  # the agents have waited for a trial
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


def finished_roster(roster: Roster, code: int, now: float) -> Roster:
    """Return `roster` with the order to all agents to leave with the exit code `code`."""
    return replace(roster, state=DONE, since=now, code=code)


def agents_by_proc(jobs: Iterable[Job]) -> dict[int, Member]:
    """Return the last message of each living agent, by the number (proc) of its job."""
    return {job.proc: job.agent for job in jobs if job.agent is not None}
