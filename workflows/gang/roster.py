"""What becomes of a gang next. Pure: what is known goes in, a roster comes out.

A trial of it is over once its roster has a `code`. Which trial follows is for the run's optimiser
to say (speaker.py): then `of_next` begins its first generation, or `finished` has all agents leave.

The two phases of a generation are needed: a roster that names new ranks while workers of the old
ones live has them end, which looks like a loss and asks for the next one, without an end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from trialfleet.files import checker
from trialfleet.nodes import CHECKPOINT
from trialfleet.nodes.gang import member
from trialfleet.nodes.gang.member import Member
from trialfleet.nodes.gang.packages import RESULT, Package, package_of

FORM, RUN, DONE = "form", "run", "done"  # states

SETTLE_SECONDS = 0.5  # from the first look at a generation's agents to its roster
STARTING_SECONDS = 20.0  # a job whose agent hasn't spoken is waited for so long
SAVE_SECONDS = 20.0  # rank 0 has so long to save before a generation ends in order
JOIN_SECONDS = 5.0  # a generation trains at least so long before others join
MOST_FAILURES = 2  # of workers whose jobs live, without a checkpoint between: then the gang fails
HEARD_SECONDS = 6.0  # an agent speaks every 3 s: one that has, is not cut off from the access point
APART_SECONDS, LONGEST_APART_SECONDS = 60.0, 960.0  # until one that others don't reach may join
EXIT_REJECTED = 64  # these parameters can't be trained: nothing is tried again

IDLE, RUNNING, HELD = 1, 2, 5  # JobStatus
HELD_BY_A_PERSON = 1  # HoldReasonCode


class Seat(NamedTuple):
    """A member of a generation; its rank is its place in the roster."""

    proc: int
    token: str
    host: str
    port: int
    door: int = 0


class Apart(NamedTuple):
    """An agent that lives, and that another of the gang can't reach.

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
    """What the agents of a gang are told.

    Attributes:
        cluster: the submission that it is for: agents of another have nothing to do with it.
        generation: counted from 1.
        state: form, run or done.
        since: when this state began, in Unix seconds.
        trial: the name of what it trains; empty while nobody knows that.
        turn: of the gang's words, that which the trial's order answers.
        first: the generation in which the trial began.
        members: by rank; while one forms, those of the generation before it.
        start: name of the checkpoint to start from; None: from the beginning.
        kill: of a generation that forms: nothing is left to be saved, workers are to be killed.
        short: likewise: fewer than `min` have a slot.
        failures: workers that failed since the last checkpoint, their jobs living.
        code: how the trial ended, as an exit code or minus a signal's number, None until then; of a
            gang that is done, the agents' own exit code.
        over: the limit for which the trial was ended: memory, time or disk.
        result: name of the package with what the rank that decided has left.
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
        """Whether an agent is left out for now."""
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
        """What an agent that lives said last; of one that is lost, nothing counts."""
        is_its = self.said is not None and self.said.began == self.began
        return self.said if self.status == RUNNING and is_its and not self.silent else None

    @property
    def is_starting(self) -> bool:
        """Whether it has a slot and its agent will speak soon."""
        has_spoken = self.said is not None and self.said.began == self.began
        return self.status == RUNNING and not has_spoken and self.running_for < STARTING_SECONDS


class Size(NamedTuple):
    """How many jobs a gang may have."""

    least: int
    most: int


def decide(
    roster: Roster, size: Size, jobs: Collection[Job], files: Collection[str], now: float
) -> Roster:
    """Return what the gang's roster is to be: the same one where nothing changes.

    Args:
        roster: what it is.
        size: the gang's.
        jobs: those of its cluster that are in the queue.
        files: names of the packages that its agents have delivered.
        now: the time, in Unix seconds.
    """
    if roster.state == DONE or roster.code is not None:
        return roster
    agents = agents_of(jobs)
    packages = [package for name in files if (package := package_of(name))]
    if ended := _ended(roster, agents, packages):
        return ended
    if roster.state == FORM:
        return _formed(roster, size, jobs, agents, packages, now)
    heard = {job.agent.token for job in jobs if job.agent and job.quiet_for < HEARD_SECONDS}
    return _running(roster, size, agents, heard, packages, now)


def of_next(roster: Roster, trial: str, turn: int, now: float) -> Roster:
    """Return the roster of a trial's first generation, of the agents that are there."""
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
    """Return what the agents that live said last, by their jobs' procs."""
    return {job.proc: job.agent for job in jobs if job.agent is not None}


def to_remove(roster: Roster, size: Size, jobs: Collection[Job], now: float) -> frozenset[int]:
    """Return the procs of the jobs that are to be removed from the queue.

    At the end those that wait for a slot, or don't leave by themselves. All of them before it,
    where one was held by its own limits, which are the trial's, or too few are left.
    """
    everyone = frozenset(job.proc for job in jobs)
    if roster.state == DONE:
        is_late = now - roster.since > SAVE_SECONDS
        waiting = {job.proc for job in jobs if job.status != RUNNING or job.silent or is_late}
        return frozenset(waiting)
    over_limit = any(j.status == HELD and j.hold_code != HELD_BY_A_PERSON for j in jobs)
    return everyone if over_limit or len(jobs) < size.least else frozenset()


def superseded(roster: Roster, files: Collection[str]) -> frozenset[str]:
    """Return the packages from which no generation starts any more: all of them at the end."""
    found = {name: package for name in files if (package := package_of(name.removesuffix(".part")))}
    if roster.state == DONE:
        return frozenset(found)
    if roster.state == FORM:  # what the last generation saved may still be on its way
        return frozenset()
    whole = [package for name, package in found.items() if name == package.name]
    newest = max((p for p in whole if p.kind == CHECKPOINT), default=None)
    return frozenset(
        name
        for name, package in found.items()
        if name != roster.start
        and (
            package.generation < roster.generation
            or (package.kind == CHECKPOINT and newest is not None and package < newest)
        )
    )


def _seated(roster: Roster, agents: Mapping[int, Member]) -> list[Member | None]:
    """The members' agents by rank; None for one that is lost."""
    found = [agents.get(seat.proc) for seat in roster.members]
    return [
        agent if agent and agent.token == seat.token else None
        for seat, agent in zip(roster.members, found, strict=True)
    ]


def _ended(
    roster: Roster, agents: Mapping[int, Member], packages: Collection[Package]
) -> Roster | None:
    """The trial's end, if rank 0 has left a result, or a rank says that nothing can come of it."""
    generation = roster.generation - (roster.state == FORM)
    if generation < roster.first:
        return None
    for rank, agent in enumerate(_seated(roster, agents)):
        if agent is None or agent.generation != generation or agent.busy:
            continue
        is_result = rank == 0 and agent.phase == member.FINISHED
        if is_result or _is_final(agent):
            package = Package(RESULT, generation, roster.members[rank].proc)
            if package in packages:
                return _over(roster, agent, package)
    return None


def _is_final(agent: Member) -> bool:
    """Whether a rank says that nothing can come of the trial."""
    is_final = agent.code == EXIT_REJECTED or agent.over
    return agent.phase == member.FAILED and bool(is_final)


def _over(roster: Roster, agent: Member, package: Package) -> Roster:
    """The roster of a trial that is over, as an agent decided with what it left."""
    return replace(roster, code=agent.code, over=agent.over or None, result=package.name)


def _formed(
    roster: Roster,
    size: Size,
    jobs: Collection[Job],
    agents: Mapping[int, Member],
    packages: Collection[Package],
    now: float,
) -> Roster:
    present = {
        proc: agent
        for proc, agent in agents.items()
        if agent.phase != member.LEAVING and not roster.is_apart(agent, now)
    }
    ready = {
        proc: agent
        for proc, agent in present.items()
        if agent.phase == member.READY and agent.generation == roster.generation
    }
    is_settled = now - roster.since >= SETTLE_SECONDS or now < roster.since  # a clock set back
    all_ready = len(ready) == len(present) and not any(job.is_starting for job in jobs)
    if roster.trial and len(ready) >= size.least and all_ready and is_settled:
        return replace(
            roster,
            state=RUN,
            since=now,
            members=tuple(
                Seat(proc, agent.token, agent.host, agent.port, agent.door)
                for proc, agent in sorted(ready.items())
            ),
            start=_newest(roster, packages),
            kill=False,
            short=False,
        )
    first = next(iter(_seated(roster, agents)), None)
    saves = first is not None and first.busy and now - roster.since < SAVE_SECONDS
    return replace(roster, kill=roster.kill or not saves, short=len(present) < size.least)


def _newest(roster: Roster, packages: Collection[Package]) -> str | None:
    """The checkpoint to start from.

    The last one of the generation that has ended. One of an earlier generation may have come too
    late, from a rank that was thought lost.
    """
    own = [p for p in packages if p[:2] == (CHECKPOINT, roster.generation - 1)]
    own = own if roster.generation > roster.first else []  # another trial's
    return max(own).name if own else roster.start


def _running(
    roster: Roster,
    size: Size,
    agents: Mapping[int, Member],
    heard: Collection[str],
    packages: Collection[Package],
    now: float,
) -> Roster:
    seated = _seated(roster, agents)
    own = [agent for agent in seated if agent and agent.generation == roster.generation]
    another = replace(
        roster, state=FORM, generation=roster.generation + 1, since=now, kill=True, short=False
    )
    if None in seated:
        return another
    if apart := _kept_apart(roster, own, heard, now):
        return replace(another, apart=apart)
    failed = [agent for agent in own if agent.phase == member.FAILED]
    if any(agent.busy and _is_final(agent) for agent in failed):  # what it left is on its way
        return roster
    if failed:
        return _after_failure(roster, another, failed, packages)
    first = seated[0]
    in_order = replace(another, kill=not (first and first.busy))
    if any(agent.phase in {member.LEAVING, member.SAVED} for agent in own):
        return in_order
    taken = {seat.token for seat in roster.members}
    joins = [
        agent
        for agent in agents.values()
        if agent.token not in taken and _wants_in(agent) and not roster.is_apart(agent, now)
    ]
    may_join = now - roster.since >= JOIN_SECONDS and len(roster.members) < size.most
    return in_order if joins and may_join else roster


def _kept_apart(
    roster: Roster, own: Collection[Member], heard: Collection[str], now: float
) -> tuple[Apart, ...]:
    """Who is to be left out, so that those who are left all reach each other; with those before.

    Whoever most of the others miss goes first; of two who miss each other, the higher rank. One
    that the access point doesn't hear either is lost, or soon back.
    """
    seats = {seat.token: (rank, seat) for rank, seat in enumerate(roster.members)}
    broken = {
        frozenset((agent.token, lost))
        for agent in own
        for lost in agent.lost.split(",")
        if {lost, agent.token} <= seats.keys() and {lost, agent.token} <= set(heard)
    }
    before = {each.token: each for each in roster.apart}
    found = {}
    while broken:
        token = max(
            {token for pair in broken for token in pair},
            key=lambda token: (sum(token in pair for pair in broken), seats[token][0]),
        )
        other = min((pair for pair in broken if token in pair), key=sorted) - {token}
        seconds = APART_SECONDS
        if token in before:
            seconds = min(2 * before[token].seconds, LONGEST_APART_SECONDS)
        found[token] = Apart(
            token, seats[token][1].host, seats[min(other)][1].host, now + seconds, seconds
        )
        broken = {pair for pair in broken if token not in pair}
    return tuple({**before, **found}.values()) if found else ()


def _wants_in(agent: Member) -> bool:
    return agent.phase in {member.WAITING, member.READY}


def _after_failure(
    roster: Roster, another: Roster, failed: list[Member], packages: Collection[Package]
) -> Roster:
    """A worker failed. Another generation, since a lost rank is often heard of by its neighbours.

    Where that happens again and again without a checkpoint between, the trainer is to blame. What
    ended first is the cause: the others then missed it.
    """
    has_saved = any(p[:2] == (CHECKPOINT, roster.generation) for p in packages)
    failures = 1 if has_saved else roster.failures + 1
    if failures <= MOST_FAILURES:
        return replace(another, failures=failures)
    first = min(failed, key=lambda agent: agent.ended)
    if first.busy:  # what it left is on its way
        return roster
    seats = {seat.token: seat.proc for seat in roster.members}
    package = Package(RESULT, roster.generation, seats[first.token])
    return replace(_over(roster, first, package), failures=failures)
