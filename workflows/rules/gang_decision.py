"""The decision which of a gang's jobs train next, and when their trial ends.

A gang is several jobs that train one trial. Each job has an agent, which runs a worker (one rank).
The roster has the orders for the agents. A generation (one set of ranks) first forms and then runs.
The new generation runs only after all workers of the previous one have ended. Otherwise the end of
an old worker would look like the loss of a new one, and would start another generation.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from trialfleet.classads import HELD_BY_A_PERSON, JobStatus
from trialfleet.nodes import CHECKPOINT
from trialfleet.nodes.gang import member
from trialfleet.nodes.gang.member import Member
from trialfleet.nodes.gang.packages import RESULT, Package, parse_package_name
from trialfleet.nodes.trial import EXIT_REJECTED
from trialfleet.workflows.facts.jobs.gang_roster import (
    DONE,
    FORM,
    RUN,
    Job,
    LeftOutAgent,
    RankAgent,
    Roster,
    Size,
    agents_by_proc,
)

# The beginning of the reason for the removal of a gang whose machines have faults.
MACHINE_FAULT = "machines with a fault leave the gang too few jobs"
SETTLE_SECONDS = 0.5  # the least time that a generation forms, so that all agents can be seen
SAVE_SECONDS = 20.0  # for rank 0 to save a checkpoint before a generation ends on purpose
JOIN_SECONDS = 5.0  # the least time that a generation trains before others join
MOST_FAILURES = 2  # of workers in living jobs, without a checkpoint between; one more is too many
HEARD_SECONDS = 6.0  # an agent sends a message every 3 s; after 6 s without, it may be unreachable
APART_SECONDS, LONGEST_APART_SECONDS = 60.0, 960.0  # first and longest wait of an agent left out


def decide(
    roster: Roster, size: Size, jobs: Collection[Job], files: Collection[str], now: float
) -> Roster:
    """Return the gang's next roster, which equals `roster` if nothing changes.

    `jobs` are the gang's jobs in the queue. `files` are the names of the packages (checkpoints and
    results) that have arrived from the jobs.
    """
    if roster.state == DONE or roster.code is not None:
        return roster
    agents = agents_by_proc(jobs)
    packages = [package for name in files if (package := parse_package_name(name))]
    if ended := _end_trial(roster, agents, packages):
        return ended
    if roster.state == FORM:
        return _form_gang(roster, size, jobs, agents, packages, now)
    heard = {job.agent.token for job in jobs if job.agent and job.quiet_for < HEARD_SECONDS}
    return _check_running(roster, size, agents, heard, packages, now)


def jobs_to_remove(roster: Roster, size: Size, jobs: Collection[Job], now: float) -> frozenset[int]:
    """Return which of a gang's jobs to remove from the queue, by their ProcId.

    Before the gang's end, all jobs are removed if fewer than `size.least` are left that don't lack
    a machine, or if anything but a person put a job on hold; else none is. After the gang's end,
    jobs are removed that don't run, or whose agent is silent; `SAVE_SECONDS` later, all are.
    """
    everyone = frozenset(job.proc for job in jobs)
    if roster.state == DONE:
        is_late = now - roster.since > SAVE_SECONDS
        return frozenset(
            job.proc for job in jobs if job.status != JobStatus.RUNNING or job.silent or is_late
        )
    over_limit = any(j.status == JobStatus.HELD and j.hold_code != HELD_BY_A_PERSON for j in jobs)
    left = sum(not job.lacks_machine for job in jobs)
    return everyone if over_limit or left < size.least else frozenset()


def unneeded_packages(roster: Roster, files: Collection[str]) -> frozenset[str]:
    """Return the names of packages that aren't needed any more.

    After the gang's end, no package is needed. While a generation forms, all are needed. While a
    generation runs, two kinds aren't needed: packages of earlier generations, and checkpoints older
    than the newest complete one. The checkpoint from which the generation started is always needed.
    """
    found = {
        name: package
        for name in files
        if (package := parse_package_name(name.removesuffix(".part")))
    }
    if roster.state == DONE:
        return frozenset(found)
    if roster.state == FORM:  # the last generation's checkpoint may still be on its way
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


def _agents_by_rank(roster: Roster, agents: Mapping[int, Member]) -> list[Member | None]:
    found = [agents.get(seat.proc) for seat in roster.members]
    return [
        agent if agent and agent.token == seat.token else None
        for seat, agent in zip(roster.members, found, strict=True)
    ]


def _end_trial(
    roster: Roster, agents: Mapping[int, Member], packages: Collection[Package]
) -> Roster | None:
    """Return a roster that ends the trial, or None if the trial goes on.

    The trial ends when the result of rank 0, or of a rank that failed for good, has arrived.
    """
    generation = roster.generation - (roster.state == FORM)
    if generation < roster.first:
        return None
    for rank, agent in enumerate(_agents_by_rank(roster, agents)):
        if agent is None or agent.generation != generation or agent.busy:
            continue
        is_result = rank == 0 and agent.phase == member.FINISHED
        if is_result or _is_final(agent):
            package = Package(RESULT, generation, roster.members[rank].proc)
            if package in packages:
                return _ended_roster(roster, agent, package)
    return None


def _is_final(agent: Member) -> bool:
    is_final = agent.code == EXIT_REJECTED or agent.over
    return agent.phase == member.FAILED and bool(is_final)


def _ended_roster(roster: Roster, agent: Member, package: Package) -> Roster:
    return replace(roster, code=agent.code, over=agent.over or None, result=package.name)


def _form_gang(
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
    is_settled = (
        now - roster.since >= SETTLE_SECONDS
        or now < roster.since  # a clock set back
        or roster.generation == roster.first > 1  # with the previous trial's agents
    )
    all_ready = len(ready) == len(present) and not any(job.is_starting for job in jobs)
    if roster.trial and len(ready) >= size.least and all_ready and is_settled:
        return _begin(roster, ready, packages, now)
    first = next(iter(_agents_by_rank(roster, agents)), None)
    saves = first is not None and first.busy and now - roster.since < SAVE_SECONDS
    return replace(roster, kill=roster.kill or not saves, short=len(present) < size.least)


def _begin(
    roster: Roster, ready: Mapping[int, Member], packages: Collection[Package], now: float
) -> Roster:
    """Return the roster with which the generation runs.

    After too many restarts that ranks asked for, each without a checkpoint of rank 0, the trial
    ends with the result of a rank that asked.
    """
    failures = roster.failures + roster.asked
    if _sent_before(roster, packages):
        failures = min(roster.failures, 1)
    others = {seat.proc for seat in roster.members[1:]}
    results = [
        p for p in packages if p[:2] == (RESULT, roster.generation - 1) and p.number in others
    ]
    if failures > MOST_FAILURES and results:
        return replace(roster, code=1, result=min(results).name, failures=failures)
    return replace(
        roster,
        state=RUN,
        since=now,
        members=tuple(
            RankAgent(proc, agent.token, agent.host, agent.port, agent.door)
            for proc, agent in sorted(ready.items())
        ),
        start=_newest(roster, packages),
        kill=False,
        asked=False,
        short=False,
        failures=failures,
    )


def _newest(roster: Roster, packages: Collection[Package]) -> str | None:
    """Return the checkpoint from which the new generation starts, or None if there is none.

    This is the last checkpoint that the previous generation sent. If it sent none, the new
    generation starts from the same checkpoint as the previous one. Checkpoints of older generations
    don't count, because a rank that seemed lost may have sent them late.
    """
    own = _sent_before(roster, packages)
    return max(own).name if own else roster.start


def _sent_before(roster: Roster, packages: Collection[Package]) -> list[Package]:
    """Return the checkpoints that the trial's previous generation sent."""
    if roster.generation == roster.first:  # the previous generation trained another trial
        return []
    return [p for p in packages if p[:2] == (CHECKPOINT, roster.generation - 1)]


def _check_running(
    roster: Roster,
    size: Size,
    agents: Mapping[int, Member],
    heard: Collection[str],
    packages: Collection[Package],
    now: float,
) -> Roster:
    seated = _agents_by_rank(roster, agents)
    own = [agent for agent in seated if agent and agent.generation == roster.generation]
    another = replace(
        roster, state=FORM, generation=roster.generation + 1, since=now, kill=True, short=False
    )
    if None in seated:
        return another
    if apart := _kept_apart(roster, own, heard, now):
        return replace(another, apart=apart)
    failed = [agent for agent in own if agent.phase == member.FAILED]
    if any(agent.busy and _is_final(agent) for agent in failed):  # its result is on its way
        return roster
    if failed:
        return _after_failure(roster, another, failed, packages)
    first = seated[0]
    in_order = replace(another, kill=not (first and first.busy))
    phases = {agent.phase for agent in own}
    if member.LEAVING in phases or (first and first.phase == member.SAVED):
        return in_order
    if member.SAVED in phases:  # rank 0 may be about to save, too
        return replace(in_order, asked=True)
    taken = {seat.token for seat in roster.members}
    joins = [
        agent
        for agent in agents.values()
        if agent.phase in {member.WAITING, member.READY}
        and agent.token not in taken
        and not roster.is_apart(agent, now)
    ]
    may_join = now - roster.since >= JOIN_SECONDS and len(roster.members) < size.most
    return in_order if joins and may_join else roster


def _kept_apart(
    roster: Roster, own: Collection[Member], heard: Collection[str], now: float
) -> tuple[LeftOutAgent, ...]:
    """Return the agents to leave out, so that all others are connected with each other.

    The agent with the most broken connections is left out first. A broken connection counts only if
    both of its agents have sent a message recently (`heard`). The result is empty if no broken
    connection counts. Otherwise it includes the agents that were left out before.
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
        found[token] = LeftOutAgent(
            token, seats[token][1].host, seats[min(other)][1].host, now + seconds, seconds
        )
        broken = {pair for pair in broken if token not in pair}
    return tuple({**before, **found}.values()) if found else ()


def _after_failure(
    roster: Roster, another: Roster, failed: list[Member], packages: Collection[Package]
) -> Roster:
    """Return the roster after a worker's failure.

    The result is usually `another`, the roster for a new generation. More than `MOST_FAILURES`
    failures without a checkpoint in between are the trainer's fault. Then the trial ends with the
    result of the worker that ended first, because the others ended when they lost their connection
    to it. While that result is on its way, return `roster`.
    """
    has_saved = any(p[:2] == (CHECKPOINT, roster.generation) for p in packages)
    failures = 1 if has_saved else roster.failures + 1
    if failures <= MOST_FAILURES:
        return replace(another, failures=failures)
    first = min(failed, key=lambda agent: agent.ended)
    if first.busy:  # its result is on its way
        return roster
    seats = {seat.token: seat.proc for seat in roster.members}
    package = Package(RESULT, roster.generation, seats[first.token])
    return replace(_ended_roster(roster, first, package), failures=failures)
