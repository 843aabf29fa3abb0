"""Whether the machines of a gang reach each other.

An agent speaks with the access point alone, so one that lives may still be cut off from another:
by a network that is broken between the two, or by a firewall. Their workers would wait for each
other until their library gives up, which torch does after half an hour. So each agent knocks at the
doors of the ranks below its own: a connection that is closed as soon as it is there. Who refuses it
has been reached.
"""

from __future__ import annotations

import errno
import select
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

EVERY = 3.0  # seconds between two knocks
ANSWER_SECONDS = 4.0  # so long the other machine may take
BACKLOG = 4096  # knocks that an agent hasn't opened to: it may be busy for a while
AGAIN = 1.0  # from a knock that nobody heard to the next one
# So long nobody hears any knock: a machine that is cut off from the access point, too, is thought
# lost before that.
LOST_SECONDS = 13.0

_UNREACHED = {errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN}


class Peer(NamedTuple):
    """Another agent, and where its door is."""

    token: str
    host: str
    door: int


class _Knock:
    """A connection to an agent's door that is being made."""

    def __init__(self, peer: Peer, now: float) -> None:
        self.since = now
        self._socket = socket.socket()
        self._socket.settimeout(0)
        code = self._socket.connect_ex((peer.host, peer.door))
        self._code = None if code == errno.EINPROGRESS else code

    def answer(self, now: float) -> int | None:
        """Return 0 or what was wrong, as an errno; None while that isn't known."""
        if self._code is None:
            poll = select.poll()
            poll.register(self._socket, select.POLLOUT)
            if poll.poll(0):
                self._code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            elif now >= self.since + ANSWER_SECONDS:
                self._code = errno.ETIMEDOUT
        return self._code

    def close(self) -> None:
        self._socket.close()


@dataclass
class _Known:
    """What came of the knocks at one door."""

    next: float
    unheard_since: float | None = None
    is_lost: bool = False
    knock: _Knock | None = None

    def look(self, peer: Peer, now: float) -> None:
        """Knock where it is time to, and see whether somebody has opened."""
        if self.knock is None and now >= self.next:
            self.knock = _Knock(peer, now)
        code = self.knock.answer(now) if self.knock else None
        if self.knock is None or code is None:
            return
        if code not in _UNREACHED:
            self.unheard_since = None
        elif self.unheard_since is None:
            self.unheard_since = self.knock.since
        is_heard = self.unheard_since is None
        self.is_lost = self.unheard_since is not None and now - self.unheard_since >= LOST_SECONDS
        self.next = now + (EVERY if is_heard else AGAIN)
        self.forget_knock()

    def forget_knock(self) -> None:
        if self.knock:
            self.knock.close()
        self.knock = None


class Peers:
    """A door at this machine's address, and knocks at others'. Nothing here waits.

    Attributes:
        door: the port at which others knock.
    """

    def __init__(self, host: str) -> None:
        self._listener = socket.socket()
        self._listener.bind((host, 0))
        self._listener.listen(BACKLOG)
        self._listener.settimeout(0)
        self.door = int(self._listener.getsockname()[1])
        self._known: dict[Peer, _Known] = {}

    @property
    def lost(self) -> tuple[str, ...]:
        """The tokens of those that can't be reached."""
        return tuple(peer.token for peer, known in self._known.items() if known.is_lost)

    def watch(self, peers: Iterable[Peer]) -> None:
        """Knock at these from now on; what is known of others is forgotten."""
        for known in self._known.values():
            known.forget_knock()
        self._known = {peer: _Known(next=time.monotonic()) for peer in peers if peer.door}

    def close(self) -> None:
        """Close the door, and knock no more."""
        self.watch(())
        self._listener.close()

    def look(self) -> None:
        """Open to those who knock, and see to one's own knocks."""
        with suppress(OSError):
            while True:
                self._listener.accept()[0].close()
        now = time.monotonic()
        for peer, known in self._known.items():
            known.look(peer, now)
