"""States of a gang: after each possible event, and then after all of them in every order."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from trialfleet.classads import JobStatus
from trialfleet.files import checker
from trialfleet.nodes.gang import member
from trialfleet.nodes.gang.member import Member
from trialfleet.workflows.facts.jobs.gang_roster import (
    DONE,
    FORM,
    OTHER_MACHINE_SECONDS,
    RUN,
    STARTING_SECONDS,
    Job,
    LeftOutAgent,
    RankAgent,
    Roster,
    Size,
    finished_roster,
    next_trial_roster,
)
from trialfleet.workflows.rules.gang_decision import (
    APART_SECONDS,
    JOIN_SECONDS,
    MOST_FAILURES,
    SAVE_SECONDS,
    decide,
    jobs_to_remove,
    unneeded_packages,
)

SIZE = Size(2, 3)
NOW = 1000.0
FIRST = "checkpoint.000001.000001.tar"
RESULT = "result.000001.000000.tar"


def agent(proc: int, phase: str, generation: int = 1, **more: object) -> Member:
    own = Member(
        token=f"t{proc}",
        began=1,
        host="h",
        port=10 + proc,
        phase=phase,
        generation=generation,
        busy=int(phase == member.RUNNING),
    )
    return replace(own, **more)  # type: ignore[arg-type]


def job(said: Member | int, **more: object) -> Job:
    """Return a running job with an agent, or a job that waits for a slot."""
    own = (
        Job(proc=said, status=JobStatus.IDLE)
        if isinstance(said, int)
        else Job(
            proc=int(said.token[1:]), status=JobStatus.RUNNING, began=1, said=said, running_for=60
        )
    )
    return replace(own, **more)  # type: ignore[arg-type]


def seats(*procs: int) -> tuple[RankAgent, ...]:
    return tuple(RankAgent(proc, f"t{proc}", "h", 10 + proc) for proc in procs)


def formed(**more: object) -> Roster:
    return replace(Roster(cluster=7, since=NOW - 1, trial="A.l1.t01"), **more)  # type: ignore[arg-type]


def training(*procs: int, **more: object) -> Roster:
    own = formed(state=RUN, since=NOW - 60, members=seats(*procs), kill=False, short=False)
    return replace(own, **more)  # type: ignore[arg-type]


def after(roster: Roster, jobs: Sequence[Job], *files: str, now: float = NOW) -> Roster:
    return decide(roster, SIZE, jobs, files, now)


ready = [job(agent(proc, member.READY)) for proc in range(3)]
trains = [job(agent(proc, member.RUNNING)) for proc in range(3)]


def test_a_member_is_read_back_from_its_json() -> None:
    own = agent(3, member.FAILED, 5, code=-9, ended=12.5, beat=4)
    assert checker(Member).validate_json(own.to_text(), strict=True) == own
    for damaged in ("", '{"token": "a"}', own.to_text()[:-1], "null"):
        with pytest.raises(ValueError, match="validation error"):
            checker(Member).validate_json(damaged, strict=True)


def test_a_roster_is_read_back_from_its_json() -> None:
    apart = (LeftOutAgent("t1", "h", "g", NOW, 60.0),)
    own = training(0, 2, start=FIRST, code=3, result=RESULT, over="time", apart=apart)
    assert Roster.from_json(json.dumps(own.to_json()).encode()) == own
    with pytest.raises(ValueError, match="cluster"):
        Roster.from_json(b"{}")


def disconnected_ranks(*pairs: tuple[int, int], generation: int = 1) -> list[Job]:
    """Ranks that train, of which the first of each pair can't reach the second."""
    lost = {proc: ",".join(f"t{b}" for a, b in pairs if a == proc) for proc in range(3)}
    return [job(agent(proc, member.RUNNING, generation, lost=lost[proc])) for proc in range(3)]


@pytest.mark.parametrize(
    ("pairs", "left"),
    [
        ([(2, 1)], (0, 1)),  # of two, the higher rank goes
        ([(1, 0), (2, 0)], (1, 2)),  # whom both others miss goes
        ([(1, 0)], (0, 2)),
    ],
)
def test_ranks_that_reach_each_other_continue_without_one_that_is_cut_off(
    pairs: list[tuple[int, int]], left: tuple[int, ...]
) -> None:
    forms = after(training(0, 1, 2), disconnected_ranks(*pairs))
    assert (forms.state, forms.generation, forms.failures) == (FORM, 2, 0)
    jobs = [job(agent(proc, member.READY, 2)) for proc in range(3)]
    again = after(replace(forms, since=NOW - 1), jobs)
    assert (again.state, again.members) == (RUN, seats(*left))
    waiting = [
        job(agent(proc, member.RUNNING if proc in left else member.WAITING, 2)) for proc in range(3)
    ]
    again = replace(again, since=NOW)
    assert after(again, waiting, now=NOW + APART_SECONDS - 1) == again
    assert after(again, waiting, now=NOW + APART_SECONDS).state == FORM, "it may join again"


def test_no_rank_is_left_out_while_one_of_a_disconnected_pair_is_silent() -> None:
    """It may be lost, or back in a moment: no reachable rank is left out for it."""
    jobs = disconnected_ranks((2, 1))
    for quiet in (1, 2):
        unheard = [replace(one, quiet_for=7.0 if one.proc == quiet else 1.0) for one in jobs]
        assert after(training(0, 1, 2), unheard) == training(0, 1, 2)


def test_a_rank_that_stays_cut_off_is_retried_less_and_less_often() -> None:
    roster, waited = training(0, 1, 2), []
    for _ in range(6):
        jobs = disconnected_ranks((2, 1), generation=roster.generation)
        roster = replace(after(roster, jobs), state=RUN)
        waited.append(roster.apart[0].until - NOW)
    assert waited == [60, 120, 240, 480, 960, 960]


def test_a_gang_that_needs_all_its_machines_is_short_if_one_is_cut_off() -> None:
    roster = decide(training(0, 1, 2), Size(3, 3), disconnected_ranks((2, 1)), (), NOW)
    jobs = [job(agent(proc, member.READY, 2)) for proc in range(3)]
    now = decide(replace(roster, since=NOW - 1), Size(3, 3), jobs, (), NOW)
    assert (now.state, now.short) == (FORM, True)


def test_ready_agents_become_ranks_in_the_order_of_their_jobs() -> None:
    roster = after(formed(), ready[::-1])
    assert (roster.state, roster.members) == (RUN, seats(0, 1, 2))


@pytest.mark.parametrize(
    "jobs",
    [
        ready[:1],  # too few
        [*ready[:2], job(agent(2, member.WAITING))],  # it will be ready
        [*ready[:2], job(agent(2, member.READY, 0))],  # for another generation
        [*ready[:2], Job(proc=2, status=JobStatus.RUNNING, began=1, running_for=1)],  # it begins
        [*ready[:2], replace(ready[2], began=2, running_for=1)],  # it was lost, and begins again
    ],
)
def test_a_generation_waits_for_enough_ranks_and_for_jobs_with_a_slot(jobs: list[Job]) -> None:
    assert after(formed(), jobs).state == FORM


@pytest.mark.parametrize(
    "jobs",
    [
        [*ready[:2], job(2)],  # it has no slot
        [*ready[:2], replace(ready[2], silent=True)],
        [*ready[:2], job(agent(2, member.LEAVING))],
        [*ready[:2], Job(proc=2, status=JobStatus.RUNNING, began=1, running_for=STARTING_SECONDS)],
    ],
)
def test_a_generation_does_not_wait_for_jobs_that_may_not_join(jobs: list[Job]) -> None:
    roster = after(formed(), jobs)
    assert (roster.state, roster.members) == (RUN, seats(0, 1))


def test_a_generation_waits_for_a_moment_before_it_runs() -> None:
    assert after(formed(since=NOW - 0.1), ready).state == FORM
    assert after(formed(since=NOW + 900), ready).state == RUN, "the clock was set back"


def test_a_gang_is_short_only_if_it_lacks_slots() -> None:
    assert after(formed(), ready[:1]).short
    assert not after(formed(), [ready[0], job(agent(1, member.WAITING))]).short


def test_the_roster_is_unchanged_while_all_ranks_train() -> None:
    own = training(0, 1, 2)
    assert after(own, trains) == own
    assert after(own, trains, FIRST) == own


@pytest.mark.parametrize(
    "lost",
    [
        None,
        job(2),
        replace(trains[2], silent=True),
        replace(trains[2], began=2),
        replace(trains[2], said=agent(2, member.WAITING, token="another")),
        Job(proc=2, status=JobStatus.HELD, hold_code=1),
    ],
)
def test_the_loss_of_a_rank_begins_a_new_generation_at_once(lost: Job | None) -> None:
    roster = after(training(0, 1, 2), [*trains[:2], *([lost] if lost else [])])
    assert (roster.state, roster.generation, roster.kill) == (FORM, 2, True)
    assert roster.members == seats(0, 1, 2), "those of the generation that ended"


def test_rank_0_saves_before_another_joins() -> None:
    joins = [*trains[:2], job(agent(2, member.WAITING, 0))]
    young = training(0, 1, since=NOW - JOIN_SECONDS + 1)
    assert after(young, joins) == young, "it has just begun"
    roster = after(training(0, 1), joins)
    assert (roster.state, roster.generation, roster.kill) == (FORM, 2, False)
    assert not after(roster, joins).kill, "it saves"
    assert after(roster, joins, now=NOW + SAVE_SECONDS).kill, "it had its time"
    saved = [job(agent(0, member.READY, 2)), *joins[1:]]
    assert after(roster, saved).kill, "it has saved"


def test_a_full_gang_admits_no_other_rank() -> None:
    own = training(0, 1, 2)
    assert after(own, [*trains, job(agent(3, member.WAITING))]) == own


def test_rank_0_saves_before_another_leaves() -> None:
    roster = after(training(0, 1, 2), [*trains[:2], job(agent(2, member.LEAVING, busy=1))])
    assert (roster.state, roster.kill) == (FORM, False)
    first_leaves = after(training(0, 1, 2), [job(agent(0, member.LEAVING, busy=1)), *trains[1:]])
    assert (first_leaves.state, first_leaves.kill) == (FORM, False)


def test_a_rank_that_asked_for_another_generation_gets_one() -> None:
    roster = after(training(0, 1, 2), [job(agent(0, member.SAVED)), *trains[1:]], FIRST)
    assert (roster.state, roster.kill) == (FORM, True)


def test_a_generation_starts_from_the_last_checkpoint_of_the_previous_one() -> None:
    own = formed(generation=3, start="checkpoint.000001.000009.tar")
    three = [job(agent(proc, member.READY, 3)) for proc in range(3)]
    late = "checkpoint.000001.000010.tar"  # of a rank that was thought lost
    part = "checkpoint.000002.000003.tar.part"
    assert after(own, three, late, part).start == own.start
    newer = ["checkpoint.000002.000001.tar", "checkpoint.000002.000002.tar"]
    assert after(own, three, late, part, *newer).start == newer[1]


def test_packages_are_removed_when_nothing_starts_from_them() -> None:
    names = [f"checkpoint.{g:06}.{n:06}.tar" for g in (1, 2) for n in (1, 2)]
    others = ["agent.0", "roster.json", "checkpoint.000001.000003.tar.part"]
    own = training(0, 1, generation=2, start=names[1])
    assert unneeded_packages(own, [*names, *others]) == {names[0], names[2], others[2]}
    assert unneeded_packages(replace(own, state=FORM), names) == set()
    assert unneeded_packages(replace(own, state=DONE), [*names, *others]) == {*names, others[2]}


@pytest.mark.parametrize("state", [RUN, FORM])
def test_the_result_of_rank_0_ends_the_trial(state: str) -> None:
    own = training(0, 1, 2) if state == RUN else training(0, 1, 2, state=FORM, generation=2)
    jobs = [job(agent(0, member.FINISHED)), *trains[1:]]
    assert after(own, jobs).code is None, "not delivered yet"
    roster = after(own, jobs, RESULT)
    assert (roster.code, roster.result) == (0, RESULT)
    assert after(roster, [], RESULT) == roster


def test_the_end_of_another_rank_does_not_end_the_trial() -> None:
    own = training(0, 1, 2)
    assert after(own, [trains[0], job(agent(1, member.FINISHED)), trains[2]], RESULT) == own


def test_parameters_that_a_rank_rejects_end_the_trial() -> None:
    own, left = training(0, 1, 2), "result.000001.000002.tar"
    said = agent(2, member.FAILED, code=64)
    assert after(own, [*trains[:2], job(replace(said, busy=1))]) == own, "why is on its way"
    roster = after(own, [*trains[:2], job(said)], left)
    assert (roster.code, roster.result, roster.over) == (64, left, None)


def test_a_rank_over_a_limit_ends_the_trial_with_that_limit() -> None:
    left = "result.000001.000002.tar"
    jobs = [*trains[:2], job(agent(2, member.FAILED, code=-9, over="memory"))]
    roster = after(training(0, 1, 2), jobs, left)
    assert (roster.code, roster.result, roster.over) == (-9, left, "memory")


def test_the_next_trial_uses_no_files_of_the_previous_one() -> None:
    own = replace(training(0, 1, generation=4, start=FIRST, failures=2), code=0, result=RESULT)
    roster = next_trial_roster(own, "A.l1.t02", 3, NOW)
    assert (roster.state, roster.generation, roster.first, roster.turn) == (FORM, 5, 5, 3)
    old = ["checkpoint.000004.000001.tar", "result.000004.000000.tar"]
    finished_before = [job(agent(0, member.FINISHED, 4)), *trains[1:]]
    assert after(roster, finished_before, *old).code is None, "it is the previous trial's end"
    everyone = [job(agent(proc, member.READY, 5)) for proc in range(3)]
    roster = after(replace(roster, since=NOW - 1), everyone, *old)
    assert (roster.state, roster.start, roster.members) == (RUN, None, seats(0, 1, 2))
    assert unneeded_packages(roster, old) == {*old}


def test_a_gang_without_a_trial_waits_for_one_before_it_runs() -> None:
    waits = after(formed(trial=""), ready)
    assert (waits.state, waits.short) == (FORM, False)
    assert after(next_trial_roster(waits, "A.l1.t01", 1, NOW), ready).state == RUN


def test_a_finished_gang_is_done_and_needs_no_packages() -> None:
    assert finished_roster(training(0, 1), 0, NOW).state == DONE
    assert unneeded_packages(finished_roster(training(0, 1), 0, NOW), [FIRST, RESULT]) == {
        FIRST,
        RESULT,
    }


def test_a_trainer_that_fails_repeatedly_ends_the_trial() -> None:
    roster = training(0, 1, 2)
    for failures in range(1, MOST_FAILURES + 1):
        generation = roster.generation
        jobs = [
            job(agent(0, member.FAILED, generation, code=1, ended=2.0)),
            job(agent(1, member.FAILED, generation, code=7, ended=1.0)),
            job(agent(2, member.RUNNING, generation)),
        ]
        roster = after(roster, jobs)
        assert (roster.state, roster.failures, roster.kill) == (FORM, failures, True)
        everyone = [job(agent(proc, member.READY, generation + 1)) for proc in range(3)]
        roster = after(roster, everyone, now=NOW + 1)
        assert roster.state == RUN
    jobs = [replace(one, said=replace(one.said, generation=roster.generation)) for one in jobs]  # type: ignore[type-var]
    saved = f"checkpoint.{roster.generation:06}.000001.tar"
    assert after(roster, jobs, saved).failures == 1, "it got on meanwhile"
    busy = [replace(one, said=replace(one.said, busy=1)) for one in jobs]  # type: ignore[type-var]
    assert after(roster, busy) == roster, "its words are on their way"
    roster = after(roster, jobs)
    left = f"result.{roster.generation:06}.000001.tar"
    assert (roster.code, roster.result) == (7, left), "what failed first"


def restarted(roster: Roster, *files: str) -> Roster:
    """Return the roster after rank 1 asked for a restart, and all ranks are ready for it."""
    asks = [(0, member.RUNNING), (1, member.SAVED), (2, member.RUNNING)]
    forms = after(roster, [job(agent(n, phase, roster.generation)) for n, phase in asks])
    assert (forms.state, forms.kill, forms.failures) == (FORM, False, roster.failures)
    everyone = [job(agent(proc, member.READY, forms.generation)) for proc in range(3)]
    return after(forms, everyone, *files, now=NOW + 1)


def test_restarts_for_another_rank_are_limited_while_rank_0_saves_nothing() -> None:
    roster = training(0, 1, 2)
    for failures in range(1, MOST_FAILURES + 1):
        roster = restarted(roster)
        assert (roster.state, roster.failures) == (RUN, failures)
    left = f"result.{roster.generation:06}.000001.tar"
    over = restarted(roster, left)
    assert (over.code, over.result) == (1, left)
    assert restarted(roster).code is None, "its result has not arrived"


def test_a_restart_of_all_ranks_counts_as_no_failure_although_rank_0_saves_last() -> None:
    roster = training(0, 1, 2, failures=MOST_FAILURES)
    asked, saved = (f"{kind}.000001.000001.tar" for kind in ("result", "checkpoint"))
    begun = restarted(roster, asked, saved)
    assert (begun.state, begun.failures, begun.start) == (RUN, 1, saved), "a new checkpoint"
    forms = after(begun, [job(agent(n, member.SAVED, begun.generation)) for n in range(3)])
    assert (forms.state, forms.asked) == (FORM, False)


def test_jobs_that_are_no_longer_needed_are_removed() -> None:
    over = training(0, 1, state=DONE, code=0, since=NOW)
    jobs = [*trains[:1], job(1), replace(trains[2], silent=True)]
    assert jobs_to_remove(over, SIZE, jobs, NOW + 1) == {1, 2}
    assert jobs_to_remove(over, SIZE, jobs, NOW + SAVE_SECONDS + 1) == {0, 1, 2}


def test_a_job_held_at_a_limit_removes_all_jobs_of_the_trial() -> None:
    own = training(0, 1, 2)
    held = Job(proc=2, status=JobStatus.HELD, hold_code=34)
    assert jobs_to_remove(own, SIZE, [*trains[:2], held], NOW) == {0, 1, 2}
    by_person = replace(held, hold_code=1)
    assert jobs_to_remove(own, SIZE, [*trains[:2], by_person], NOW) == set()
    assert jobs_to_remove(own, SIZE, trains[:1], NOW) == {0}, "fewer than it needs are left"


def test_a_gang_ends_if_too_few_jobs_have_a_machine_without_a_fault() -> None:
    own = training(0, 1, 2)
    waiting = [Job(proc=proc, status=JobStatus.IDLE, exit_code=87) for proc in (1, 2)]
    left = [replace(job, running_for=OTHER_MACHINE_SECONDS + 1) for job in waiting]
    assert jobs_to_remove(own, SIZE, [trains[0], *waiting], NOW) == set()
    assert jobs_to_remove(own, SIZE, [*trains[:2], left[1]], NOW) == set()
    assert jobs_to_remove(own, SIZE, [trains[0], *left], NOW) == {0, 1, 2}
    elsewhere = replace(trains[1], exit_code=87)
    assert jobs_to_remove(own, SIZE, [trains[0], elsewhere, left[1]], NOW) == set()


# Random events: agents that act as agents do, and an environment that kills them.


class World:
    """Three agents, each as `nodes/gang/agent.py` behaves, on slots that come and go."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)  # noqa: S311
        self.now = NOW
        self.roster = Roster(cluster=7, since=NOW, trial="A.l1.t01")
        self.jobs = [Job(proc=proc, status=JobStatus.IDLE) for proc in range(3)]
        self.files: set[str] = set()
        self.trained = self.saved = 0  # steps; those that a checkpoint holds
        self.steps_of = {"": 0}

    def turn(self, *, disturb: bool) -> None:
        self.now += 0.25
        if disturb and self.chance.random() < 0.05:
            self.lose(self.chance.randrange(3))
        self.jobs = [self.act(one) for one in self.jobs]
        previous = self.roster
        self.roster = decide(previous, SIZE, self.jobs, self.files, self.now)
        if self.roster.state == RUN and previous.state == FORM:
            self.trained = self.steps_of[self.roster.start or ""]
        assert self.roster.generation - previous.generation in {0, 1}

    def lose(self, proc: int) -> None:
        one = self.jobs[proc]
        self.jobs[proc] = replace(one, status=JobStatus.IDLE, said=one.said)

    def act(self, one: Job) -> Job:
        if one.status == JobStatus.IDLE:
            if self.chance.random() < 0.3:
                return replace(one, status=JobStatus.RUNNING, began=one.began + 1, running_for=0.0)
            return one
        one = replace(one, running_for=one.running_for + 0.25)
        if one.agent is None:
            token = f"t{one.proc}.{one.began}"
            new = agent(one.proc, member.WAITING, 0, token=token, began=one.began)
            return replace(one, said=new)
        return replace(one, said=self.step(one.proc, one.agent))

    def step(self, proc: int, own: Member) -> Member:
        roster = self.roster
        rank = next((r for r, seat in enumerate(roster.members) if seat.token == own.token), None)
        if roster.state == FORM and roster.generation > own.generation:
            if own.busy and not roster.kill:
                if rank == 0:
                    self.save(own.generation)
                    return replace(own, busy=0)
                return own
            return replace(own, phase=member.READY, generation=roster.generation, busy=0)
        if roster.state == RUN and roster.generation == own.generation and rank is not None:
            if own.phase == member.READY:
                return replace(own, phase=member.RUNNING, busy=1)
            if rank == 0 and own.phase == member.RUNNING:
                self.trained += 1
                if self.trained % 10 == 0:
                    self.save(own.generation)
                if self.trained >= 400:
                    self.files.add(f"result.{own.generation:06}.{proc:06}.tar")
                    return replace(own, phase=member.FINISHED, busy=0)
        elif roster.state == RUN and roster.generation >= own.generation:
            return replace(own, phase=member.WAITING, generation=roster.generation - 1, busy=0)
        return own

    def save(self, generation: int) -> None:
        number = 1 + sum(name.startswith(f"checkpoint.{generation:06}") for name in self.files)
        name = f"checkpoint.{generation:06}.{number:06}.tar"
        self.files.add(name)
        self.steps_of[name] = self.trained


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_a_gang_completes_its_trial_although_agents_are_lost(seed: int) -> None:
    world = World(seed)
    for turn in range(6000):
        world.turn(disturb=turn < 3000)
        if world.roster.code is not None:
            break
    assert world.roster.code == 0
    assert world.trained == 400
