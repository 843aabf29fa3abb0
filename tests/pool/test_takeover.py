"""Two managers of one study: the second continues a day whose manager was killed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from tests.pool.conftest import MakePool
from tests.pool.test_daily import put_data
from tests.pool.two_managers import Manager, bucket, let_lapse, trials_of, two_managers
from tests.postgresql import Server, private_server
from trialfleet.workflows.facts.journal.journal import Ending

pytestmark = [pytest.mark.postgres, pytest.mark.thorough, pytest.mark.timeout(900)]
DAY = date(2026, 11, 20)
TRIALS = 3
NODES = [f"{region}.{node}" for region in "AB" for node in ("l1.t01", "l1.t02", "l1.t03", "best")]
BEFORE_FULL_TRAINING = [node for node in NODES if "best" not in node]
BEGUN = "the day is begun"
UP_TO = {  # steps that end before the first manager is killed
    BEGUN: [],
    "tuning": ["A.l1.t01", "B.l1.t01"],
    "full training": BEFORE_FULL_TRAINING,
    "one region is published": [*BEFORE_FULL_TRAINING, "A.best"],
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    yield from private_server()


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch, work: Path) -> Iterator[Any]:
    with bucket(work, monkeypatch) as client:
        yield client


@pytest.fixture
def managers(
    work: Path, make_pool: MakePool, server: Server, s3: Any
) -> Iterator[tuple[Manager, Manager]]:
    put_data(work, DAY, A="1", B="2")
    gate = work / "gate"
    gate.mkdir()
    space = {"x": {"type": "float", "low": 0.0, "high": 1.0}, "gate": str(gate)}
    budget = {"trials": TRIALS, "lanes": 1}
    with two_managers(work, make_pool, server, search_space=space, budget=budget) as both:
        yield both


def finished(server: Server) -> int:
    return sum(state == "COMPLETE" for _, state in trials_of(server))


@pytest.mark.parametrize("moment", UP_TO)
def test_the_second_manager_continues_a_day_whose_manager_was_killed(
    managers: tuple[Manager, Manager],
    server: Server,
    s3: Any,
    work: Path,
    moment: str,
    wait_for: Callable[..., None],
) -> None:
    first, second = managers
    for node in UP_TO[moment]:
        (work / "gate" / node).touch()
    begun = first.start(DAY)
    begins = (lambda: first.has_begun(DAY)) if moment == BEGUN else first.run(DAY).exists
    wait_for(begins, 60)
    stands_by = second.start(DAY)
    done = sum("best" not in node for node in UP_TO[moment])
    wait_for(lambda: finished(server) >= done, 200)
    if moment == "one region is published":
        wait_for(lambda: len(first.journal.outcomes()) == 1, 120)
    assert stands_by.poll() is None
    assert not second.run(DAY).exists(), "it has no lease"

    first.kill()
    begun.wait()
    for node in NODES:
        (work / "gate" / node).touch()
    let_lapse(server)
    assert stands_by.wait(400) == 0, second.log

    outcomes = second.journal.outcomes()
    assert sorted((o.region, o.ending, o.run) for o in outcomes) == [
        ("A", Ending.PUBLISHED, str(DAY)),
        ("B", Ending.PUBLISHED, str(DAY)),
    ]
    assert trials_of(server) == [
        (f"demo/{DAY}/{region}", "COMPLETE") for region in "AB" for _ in range(TRIALS)
    ]
    for region in "AB":
        pointer = s3.get_object(Bucket="our-models", Key=f"demo/{region}/latest.json")
        assert json.load(pointer["Body"])["run"] == str(DAY)
        latest = second.folder / "models" / "demo" / region / "latest"
        assert latest.resolve().name == str(DAY)
        assert (latest / "provenance.json").exists()
    assert_alerted_once(work)


def assert_alerted_once(work: Path) -> None:
    heard = [json.loads(line) for line in (work / "heard").read_text().splitlines() if line]
    titles = [one["title"] for one in heard if "took over" in one["title"]]
    assert (len(titles), [one["event"] for one in heard].count("day-done")) == (1, 1), heard


def test_a_manager_that_was_suspended_writes_nothing_when_it_resumes(
    managers: tuple[Manager, Manager],
    server: Server,
    s3: Any,
    work: Path,
    wait_for: Callable[..., None],
) -> None:
    """Its pool and its run's DAGMan went on meanwhile; the database closed the studies to them."""
    first, second = managers
    begun = first.start(DAY)
    (work / "gate" / "A.l1.t01").touch()
    wait_for(lambda: finished(server) >= 1, 200)
    os.kill(begun.pid, signal.SIGSTOP)
    stands_by = second.start(DAY)
    wait_for((second.folder / "runs").exists, 60)
    let_lapse(server)
    wait_for(second.run(DAY).exists, 200)
    os.kill(begun.pid, signal.SIGCONT)
    for node in NODES:
        (work / "gate" / node).touch()
    assert stands_by.wait(400) == 0, second.log
    assert begun.wait(200) == 0, first.log
    assert "this one is on standby" in first.log
    assert trials_of(server) == [
        (f"demo/{DAY}/{region}", "COMPLETE") for region in "AB" for _ in range(TRIALS)
    ]
    for manager in managers:
        outcomes = manager.journal.outcomes()
        assert sorted((o.region, o.ending) for o in outcomes) == [
            ("A", Ending.PUBLISHED),
            ("B", Ending.PUBLISHED),
        ]
    assert_alerted_once(work)
