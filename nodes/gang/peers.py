"""TCP probes between a gang's machines, which show whether one machine can reach another.

A broken network or a firewall may separate two machines that both reach the access point. Their
workers would wait for each other until torch's timeout of half an hour. So each job's agent probes
the agents of lower ranks: it opens a connection and closes it at once. A refused connection also
shows that the machine is reachable.
"""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

EVERY = 3.0  # seconds between probes
ANSWER_SECONDS = 4.0  # time limit of a probe
BACKLOG = 4096  # maximum probes that an agent hasn't accepted yet, because it may be busy
AGAIN = 1.0  # seconds from a failed probe to the next one
# Seconds of failed probes after which a peer is lost. If the machine can't reach the access point
# either, the gang's keeper counts it as lost earlier.
LOST_SECONDS = 13.0

_UNREACHED = {errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN}


class Peer(NamedTuple):
    """Another agent of the gang, with its address for probes."""

    token: str
    host: str
    door: int


class _Watched:
    """The probes of one agent, one after another."""

    def __init__(self, peer: Peer) -> None:
        self.peer, self.is_lost = peer, False
        self._next = time.monotonic()
        self._silent_since: float | None = None
        self._socket: socket.socket | None = None
        self._began = 0.0

    def update(self, now: float) -> None:
        if self._socket is None:
            if now < self._next:
                return
            self._socket, self._began = socket.socket(), now
            self._socket.settimeout(0)
        # a further call tells how the first one ended
        code = self._socket.connect_ex((self.peer.host, self.peer.door))
        if code in {errno.EINPROGRESS, errno.EALREADY}:
            if now < self._began + ANSWER_SECONDS:
                return
            code = errno.ETIMEDOUT
        self.close()
        if code in _UNREACHED:
            self._silent_since = self._silent_since or self._began
            self.is_lost, self._next = now - self._silent_since >= LOST_SECONDS, now + AGAIN
        else:
            self._silent_since, self.is_lost, self._next = None, False, now + EVERY

    def close(self) -> None:
        if self._socket:
            self._socket.close()
        self._socket = None


class Peers:
    """Answers other agents' probes on the port `door`, and probes other agents."""

    def __init__(self, host: str) -> None:
        self._listener = socket.socket()
        self._listener.bind((host, 0))
        self._listener.listen(BACKLOG)
        self._listener.settimeout(0)
        self.door = int(self._listener.getsockname()[1])
        self._watched: list[_Watched] = []

    @property
    def unreachable_peers(self) -> tuple[str, ...]:
        """The tokens (names) of the probed agents that can't be reached."""
        return tuple(each.peer.token for each in self._watched if each.is_lost)

    def watch(self, peers: Iterable[Peer]) -> None:
        """Probe these agents from now on, and no others. Previous results are forgotten."""
        for each in self._watched:
            each.close()
        self._watched = [_Watched(peer) for peer in peers if peer.door]

    def update(self) -> None:
        """Accept other agents' probes, and start or finish this agent's probes, without waiting."""
        with suppress(OSError):
            while True:
                self._listener.accept()[0].close()
        now = time.monotonic()
        for each in self._watched:
            each.update(now)
