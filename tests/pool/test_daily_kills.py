"""Kills of `trialfleet daily run` and of the pool: each region's day ends once, in one run."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from datetime import date, timedelta
from pathlib import Path

import pytest

from tests.pool.conftest import CPUS, MakePool
from tests.pool.test_daily import endings, latest, put_data, write_study
from tests.pool.watching import active, assert_exactly_once
from tests.storm.victims import victims
from trialfleet import Run
from trialfleet.infra.pool.embedded import Pool
from trialfleet.workflows.control.daily.day_loop import Days
from trialfleet.workflows.facts.journal.journal import Ending, Journal, latest_outcomes

pytestmark = pytest.mark.usefixtures("pool")
PROGRAM = Path(__file__).with_name("daily_program.py")
DAY = date(2026, 11, 22)


@pytest.fixture
def here(work: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(work)
    return work


def start(file: Path, day: date, *between: date) -> subprocess.Popen[bytes]:
    """Start the program on a day, an hour after its time of day."""
    words = [str(file), f"{day}T03:30:00+00:00", *map(str, between)]
    return subprocess.Popen([sys.executable, str(PROGRAM), *words])


def wait_until_done(process: subprocess.Popen[bytes], seconds: float = 400) -> None:
    try:
        assert process.wait(seconds) == 0
    finally:
        process.kill()
        process.wait()


def ended_within(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def kill_after(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Kill a process unless it ends before; return whether it was."""
    if ended_within(process, seconds):
        return False
    process.kill()
    process.wait()
    return True


def test_a_day_that_is_killed_and_started_twice_is_done_once(here: Path) -> None:
    put_data(here, DAY, A="1", B="2")
    file = write_study(here)
    moments = random.Random(12)  # noqa: S311 - not for secrets
    kills = sum(kill_after(start(file, DAY), moments.uniform(1, 7)) for _ in range(5))
    assert kills >= 3
    both = [start(file, DAY), start(file, DAY)]
    for process in both:
        wait_until_done(process)
    days = Days(file)
    assert endings(days, DAY) == {"A": Ending.PUBLISHED, "B": Ending.PUBLISHED}
    assert [(one.run, one.ended is None) for one in days.journal.attempts()] == [(str(DAY), False)]
    assert_exactly_once(Run(here / "runs" / "demo" / str(DAY)), 1)


REGIONS = [f"R{n:02}" for n in range(41)]
DAYS = [date(2026, 11, 1) + timedelta(days=n) for n in range(14)]
OFF = {DAYS[4], DAYS[5], DAYS[9]}  # the machine is off
LATE = {(DAYS[2], "R07"), (DAYS[7], "R11"), (DAYS[8], "R07")}  # data that comes days later


# Processes that a day's run loses, in the order of a seed: DAGMans recover, the schedd is started
# by its master, and the pool's starter, systemd on a manager, starts a master.
LOSSES = ["dagman", "dagman of a region"] * 3 + ["schedd"] * 3 + ["master"] * 2


def data_of(day: date, region: str) -> str:
    """Two regions' data are new on a day, which is when they train; on the first day all are."""
    number = REGIONS.index(region)
    news = [n for n in range(14) if n <= DAYS.index(day) and number in {3 * n + 1, 3 * n + 2}]
    return f"{region} {max(news, default=0)}"


@pytest.mark.thorough
@pytest.mark.timeout(3600)
def test_two_weeks_of_41_regions_end_despite_kills(here: Path, make_pool: MakePool) -> None:
    with active(make_pool(cpus=CPUS)) as pool:
        two_weeks(here, pool)


def loses(process: subprocess.Popen[bytes], pool: Pool, kind: str, seconds: float) -> bool:
    """Kill a process of the pool while a day goes on; return whether there was one by its end."""
    if ended_within(process, seconds):
        return False
    while not (found := victims(pool.condor_config, frozenset({kind}))):
        if ended_within(process, 0.2):
            return False
    os.kill(found[-1].pid, signal.SIGKILL)
    if kind == "master":
        pool.up()
    return True


def two_weeks(here: Path, pool: Pool) -> None:
    for day in DAYS:
        put_data(here, day, **{r: data_of(day, r) for r in REGIONS if (day, r) not in LATE})
    file = write_study(here, regions=REGIONS)
    moments = random.Random(41)  # noqa: S311 - not for secrets
    losses = moments.sample(LOSSES, len(LOSSES))
    killed: Counter[str] = Counter()
    for day in DAYS:
        if day in OFF:
            continue
        process, loss = start(file, day), losses.pop()  # first: a run continues without `daily run`
        killed[loss] += loses(process, pool, loss, moments.uniform(0, 5))
        killed["daily run"] += kill_after(process, moments.uniform(0, 10))
        killed["daily run"] += kill_after(start(file, day), moments.uniform(1, 15))
        wait_until_done(start(file, day), 1800)
    print(killed)
    assert losses == []
    assert set(LOSSES) <= set(+killed), killed
    runs = here / "runs" / "demo"
    journal = Journal(runs / "daily.db")
    for run in {o.run for o in journal.outcomes() if o.run}:
        assert_exactly_once(Run(runs / run), 1)
    before = {(one.date, one.region, one.attempt) for one in journal.outcomes()}
    assert {day for day, _, _ in before} == set(DAYS) - OFF
    assert {(o.date, o.region) for o in journal.outcomes() if o.ending is Ending.FAILED} == LATE

    for day, region in LATE:
        put_data(here, day, **{region: data_of(day, region)})
    kill_after(start(file, DAYS[-1], DAYS[0], DAYS[-1]), moments.uniform(5, 20))
    wait_until_done(start(file, DAYS[-1], DAYS[0], DAYS[-1]), 1800)

    added = [o for o in journal.outcomes() if (o.date, o.region, o.attempt) not in before]
    missing = {(day, region) for day in OFF for region in REGIONS} | LATE
    assert {(o.date, o.region) for o in added} == missing
    assert len(added) == len(missing)
    ended = [o for o in journal.outcomes() if o.ending is not Ending.FAILED]
    assert Counter((o.date, o.region) for o in ended) == {(d, r): 1 for d in DAYS for r in REGIONS}
    trained = {o.region: o for o in latest_outcomes(ended).values() if o.ending is Ending.PUBLISHED}
    newest = {r: max(o.date for o in ended if o.region == r and o.run) for r in trained}
    assert {r: latest(here, r) for r in newest} == {
        r: next(str(o.run) for o in ended if (o.date, o.region) == (newest[r], r)) for r in newest
    }
