"""The lease and the journal that two managers share: one writes, one reads, no record is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from tests.postgresql import Server, private_server
from trialfleet.optimizer.run_ownership import Owner
from trialfleet.workflows.facts.journal.journal import Attempt, Ending, Journal
from trialfleet.workflows.facts.journal.lease import LeaseLostError
from trialfleet.workflows.facts.journal.shared_journal import SharedJournal
from trialfleet.workflows.facts.journal.shared_rows import SharedRows

psycopg = pytest.importorskip("psycopg")
pytestmark = pytest.mark.postgres
DAY = date(2026, 11, 20)
NOW = datetime(2026, 11, 20, 2, 30, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
Open = Callable[[str], SharedRows]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    yield from private_server()


@pytest.fixture
def opened(server: Server) -> Iterator[Open]:
    """Give what opens the rows of a study of the test's own, for a manager by its name."""
    with psycopg.connect(server.url().replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    made: list[SharedRows] = []

    def opens(name: str) -> SharedRows:
        owner = Owner(name, f"/home/{name}", f"{name}.example", "")
        made.append(SharedRows(server.url(), "demo", owner, MINUTE))
        return made[-1]

    yield opens
    for rows in made:
        rows.close()


def let_lapse(server: Server, seconds: int = 60) -> None:
    with psycopg.connect(server.url().replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(
            "UPDATE trialfleet_leases SET renewed = renewed - make_interval(secs => %s)", (seconds,)
        )


def journal(folder: Path, rows: SharedRows) -> SharedJournal:
    folder.mkdir(exist_ok=True)
    return SharedJournal(folder / "daily.db", rows, lambda error: pytest.fail(str(error)))


def attempt(day: date = DAY) -> Attempt:
    return Attempt(
        date=day, attempt=1, run=str(day), regions=("A", "Ø'\n"), started=NOW, deadline=None
    )


def test_one_manager_has_the_lease_until_it_lapses_or_is_given_back(
    opened: Open, server: Server
) -> None:
    first, second = opened("first"), opened("second")
    assert first.lease() is None
    assert first.take()
    assert not second.take()
    assert first.take(), "renewed"
    let_lapse(server, 50)
    assert not second.take()
    found = second.lease()
    assert found is not None
    assert (found.host, found.is_ours, 50 <= found.age < 60) == ("first.example", False, True)
    assert opened("first").take(), "started again on the same machine"
    let_lapse(server)
    assert second.take()
    assert not first.take()
    second.give_back()
    assert first.take()
    found = second.lease()
    assert found is not None
    assert (found.host, found.token) == ("first.example", 3)


def test_one_of_several_managers_gets_a_lapsed_lease(opened: Open, server: Server) -> None:
    opened("first").take()
    let_lapse(server)
    others = [opened(f"m{n}") for n in range(6)]
    barrier, got = threading.Barrier(len(others)), []

    def takes(rows: SharedRows) -> None:
        barrier.wait()
        got.append(rows.take())

    threads = [threading.Thread(target=takes, args=(rows,)) for rows in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == [False] * 5 + [True]


def test_a_manager_that_lost_the_lease_cannot_write(
    opened: Open, server: Server, tmp_path: Path
) -> None:
    first, second = opened("first"), opened("second")
    one, two = journal(tmp_path / "one", first), journal(tmp_path / "two", second)
    with pytest.raises(LeaseLostError):
        one.begin(attempt())
    assert first.take()
    begun = one.begin(attempt())
    one.record([begun.outcome("A", Ending.FAILED, "no data")], NOW)

    let_lapse(server)
    assert second.take()
    assert two.pull() == []
    assert two.attempts() == one.attempts()
    assert two.outcomes() == one.outcomes()
    with pytest.raises(LeaseLostError, match=r"taken over by the manager on second\.example"):
        one.end(begun, NOW)
    assert not one.attempts()[0].ended
    two.end(begun, NOW + MINUTE)

    let_lapse(server)
    assert not first.take(), "the lease is its own, but what it knows is old"
    with pytest.raises(LeaseLostError):
        one.record([begun.outcome("Ø'\n", Ending.KEPT, "")], NOW)
    assert first.take()
    one.pull()
    assert one.attempts() == [replace(begun, ended=NOW + MINUTE)]


def test_a_write_that_a_kill_left_in_the_database_alone_is_pulled_later(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = opened("first")
    rows.take()
    one = journal(tmp_path / "one", rows)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as between:
        between.setattr(Journal, "begin", killed)
        with pytest.raises(KeyboardInterrupt):
            one.begin(attempt())
    assert one.attempts() == []
    again = journal(tmp_path / "one", opened("first"))
    again.pull()
    assert again.attempts() == [attempt()]


def test_a_manager_knows_the_alerts_that_the_other_sent(opened: Open, tmp_path: Path) -> None:
    one = journal(tmp_path / "one", opened("first"))
    two = journal(tmp_path / "two", opened("second"))
    one.note_sent(["a", "b"])
    assert two.pull() == ["a", "b"]
    one.note_sent(["b", "c"])
    assert two.pull() == ["c"]
    assert two.scope == one.scope == "demo"


def test_a_write_waits_for_a_database_that_is_away(
    opened: Open, server: Server, tmp_path: Path
) -> None:
    rows, waited = opened("first"), []
    rows.take()

    def starts_it_again(error: Exception) -> None:
        waited.append(str(error))
        server.start()

    one = SharedJournal(tmp_path / "daily.db", rows, starts_it_again)
    server.stop("fast")
    one.begin(attempt())
    assert len(waited) == 1
    assert waited[0].startswith("the database of the daily runs of 'demo' can't be used: ")
    assert one.attempts() == [attempt()]
