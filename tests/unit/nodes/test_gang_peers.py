"""Agents of a gang that probe each other."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from trialfleet.nodes.gang import peers
from trialfleet.nodes.gang.peers import Peer, Peers

pytestmark = pytest.mark.slow

HOST = "127.0.0.1"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "EVERY", 0.05)
    monkeypatch.setattr(peers, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(peers, "AGAIN", 0.01)
    monkeypatch.setattr(peers, "LOST_SECONDS", 0.5)


@pytest.fixture
def unreachable() -> Iterator[int]:
    """A port that answers no more, as one behind a broken network: its queue is full."""
    with ExitStack() as opened, socket.socket() as listener:
        listener.bind((HOST, 0))
        listener.listen(0)
        for _ in range(3):
            waiting = opened.enter_context(socket.socket())
            waiting.settimeout(0)
            waiting.connect_ex(listener.getsockname())
        yield int(listener.getsockname()[1])


@pytest.fixture
def make() -> Iterator[Callable[[], Peers]]:
    made: list[Peers] = []

    def make_one() -> Peers:
        made.append(Peers(HOST))
        return made[-1]

    yield make_one
    for each in made:
        each.watch(())
        each._listener.close()


def updated(*all_peers: Peers, until: Callable[[], bool], seconds: float = 10) -> bool:
    """Update them again and again, until something holds."""
    deadline = time.monotonic() + seconds
    while not until() and time.monotonic() < deadline:
        for each in all_peers:
            each.update()
        time.sleep(0.01)
    return until()


def test_a_peer_that_does_not_answer_is_lost_and_the_others_are_not(
    unreachable: int, make: Callable[[], Peers]
) -> None:
    me, other = make(), make()
    with socket.socket() as closed:
        closed.bind((HOST, 0))  # nothing listens there: refused, so the machine is reached
        refusing = closed.getsockname()[1]
        me.watch(
            [Peer("a", HOST, other.door), Peer("b", HOST, unreachable), Peer("c", HOST, refusing)]
        )
        assert updated(me, other, until=lambda: bool(me.unreachable_peers))
    assert me.unreachable_peers == ("b",)


def test_a_peer_without_a_route_is_lost(make: Callable[[], Peers]) -> None:
    me = make()
    me.watch([Peer("a", "224.0.0.1", 9)])  # the kernel finds no route
    assert updated(me, until=lambda: me.unreachable_peers == ("a",))


def test_a_peer_that_is_no_longer_watched_is_not_lost(
    unreachable: int, make: Callable[[], Peers]
) -> None:
    me = make()
    me.watch([Peer("b", HOST, unreachable)])
    assert updated(me, until=lambda: me.unreachable_peers == ("b",))
    me.watch([])
    assert me.unreachable_peers == ()


def test_a_peer_that_answers_again_is_found(unreachable: int, make: Callable[[], Peers]) -> None:
    me, other = make(), make()
    me.watch([Peer("b", HOST, unreachable)])
    assert updated(me, until=lambda: me.unreachable_peers == ("b",))
    (watched,) = me._watched
    watched.peer = Peer("b", HOST, other.door)
    watched.close()
    assert updated(me, other, until=lambda: me.unreachable_peers == ())


def test_a_busy_agent_is_not_lost_while_many_probe_it(make: Callable[[], Peers]) -> None:
    """An agent that is busy for long is not lost."""
    busy, others = make(), [make() for _ in range(20)]
    for each in others:
        each.watch([Peer("a", HOST, busy.door)])
    updated(*others, until=lambda: False, seconds=1)
    assert not any(each.unreachable_peers for each in others)
