"""The roster of a gang, which has the orders for the gang's agents.

A gang is several jobs that train one trial together. Each job has an agent, which runs one rank of
the training. One set of ranks is a generation. The next generation begins when a rank fails, is
lost or joins, and when the next trial begins.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from trialfleet.classads import JobStatus
from trialfleet.files import checker
from trialfleet.nodes.gang.member import Member
from trialfleet.nodes.job.agent import EXIT_MACHINE_FAULT

FORM, RUN, DONE = "form", "run", "done"  # states
STARTING_SECONDS = 20.0  # the wait for the first message of a job's agent
# A job's wait for another machine after a machine's fault; a fleet starts a node in a few minutes.
OTHER_MACHINE_SECONDS = 600.0


class RankAgent(NamedTuple):
    """The agent of one rank in a generation, and its address.

    Other agents connect to the port `door` to test whether they reach this agent's machine.
    """

    proc: int
    token: str
    host: str
    port: int
    door: int = 0


class LeftOutAgent(NamedTuple):
    """A living agent that the gang leaves out for now, because another agent can't reach it.

    `host` is the address of this agent's machine, and `other` that of the other agent's machine.
    The agent may join again at `until`, in Unix seconds. `seconds` is the length of this wait. The
    next wait is twice as long, up to a limit.
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
        cluster: the first part of the ids of the gang's jobs; other jobs' agents ignore the roster.
        generation: the number of the present set of ranks, from 1.
        state: "form" while the generation forms, "run" while it trains, and "done" at the end.
        since: when `state` began, in Unix seconds.
        trial: the trial's name; empty while it is unknown.
        turn: the number of the gang's request that was answered with `trial`.
        first: the generation in which the trial began.
        members: the agents by rank. While a generation forms, these are the agents of the previous
            generation.
        start: the name of the checkpoint to start from; None if training starts at the beginning.
        kill: whether agents kill the training processes of the previous generation. False while
            rank 0 may still save a checkpoint.
        asked: whether a generation forms because another rank than rank 0 asked for a restart. If
            rank 0 sends no checkpoint meanwhile, this counts as a failure.
        short: whether a generation that forms has fewer agents than the gang's `min`.
        failures: how often training processes have failed since the last checkpoint. Processes of
            lost jobs don't count.
        code: the trial's exit code, or minus the number of the signal that killed it; None until
            the trial ends. In the state "done", the agents leave with this code.
        over: the limit that the trial exceeded (memory, time or disk); None if it exceeded none.
        result: the name of the package with the trial's result.
        apart: agents that the gang leaves out, and agents that it left out earlier.
    """

    cluster: int
    generation: int = 1
    state: str = FORM
    since: float = 0.0
    trial: str = ""
    turn: int = 0
    first: int = 1
    members: tuple[RankAgent, ...] = ()
    start: str | None = None
    kill: bool = True
    asked: bool = False
    short: bool = True
    failures: int = 0
    code: int | None = None
    over: str | None = None
    result: str | None = None
    apart: tuple[LeftOutAgent, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the roster as plain data."""
        return {"schema": 1, **asdict(self)}

    @staticmethod
    def from_json(text: bytes) -> Roster:
        """Return the roster in a JSON text; ValueError if the text is invalid."""
        found: Roster = checker(Roster).validate_json(text, strict=True)
        return found

    def is_apart(self, agent: Member, now: float) -> bool:
        """Return whether the gang leaves out an agent at the time `now`, in Unix seconds."""
        return any(each.token == agent.token and now < each.until for each in self.apart)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job of a gang, with the last message of its agent.

    Attributes:
        status: the job's attribute JobStatus.
        began: the job's attribute JobCurrentStartDate.
        silent: whether the agent has sent nothing new for too long.
        quiet_for: the seconds since the agent sent something new.
        running_for: the seconds since the job got its slot, or since it waits for one.
        hold_code: the job's attribute HoldReasonCode.
        exit_code: the agent's exit code when it last ended, or None.
    """

    proc: int
    status: int
    began: int = 0
    said: Member | None = None
    silent: bool = False
    quiet_for: float = 0.0
    running_for: float = 0.0
    hold_code: int | None = None
    exit_code: int | None = None

    @property
    def lacks_machine(self) -> bool:
        """True if its machine had a fault, and it has waited too long for another one."""
        waits = self.status == JobStatus.IDLE and self.exit_code == EXIT_MACHINE_FAULT
        return waits and self.running_for > OTHER_MACHINE_SECONDS

    @property
    def agent(self) -> Member | None:
        """The last message of the job's present agent; None if it is lost or has sent none."""
        is_its = self.said is not None and self.said.began == self.began
        lives = self.status == JobStatus.RUNNING and is_its and not self.silent
        return self.said if lives else None

    @property
    def is_starting(self) -> bool:
        """True if the job has just got a slot, and its agent has sent no message yet."""
        has_spoken = self.said is not None and self.said.began == self.began
        is_late = has_spoken or self.running_for >= STARTING_SECONDS
        return self.status == JobStatus.RUNNING and not is_late


class Size(NamedTuple):
    """The smallest and the largest allowed number of jobs in a gang."""

    least: int
    most: int


def next_trial_roster(roster: Roster, trial: str, turn: int, now: float) -> Roster:
    """Return the orders with which the present agents begin the trial `trial`.

    `turn` is the number of their request for a trial. `now` is in Unix seconds.
    """
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
    """Return the orders for all agents to leave with the exit code `code`."""
    return replace(roster, state=DONE, since=now, code=code)


def agents_by_proc(jobs: Iterable[Job]) -> dict[int, Member]:
    """Return the last message of each living agent, by the number of its job in the gang."""
    return {job.proc: job.agent for job in jobs if job.agent is not None}
