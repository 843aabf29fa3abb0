"""TCP probes between a gang's machines, which show whether one machine can reach another.

A broken network or a firewall may separate two machines that both reach the access point. Their
workers would wait for each other until torch's timeout of half an hour. So each job's agent probes
the agents of lower ranks: it opens a connection and closes it at once. A refused connection also
shows that the machine is reachable.
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


class _Probe:
    def __init__(self, peer: Peer, now: float) -> None:
        self.since = now
        self._socket = socket.socket()
        self._socket.settimeout(0)
        code = self._socket.connect_ex((peer.host, peer.door))
        self._code = None if code == errno.EINPROGRESS else code

    def answer(self, now: float) -> int | None:
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
    next: float
    silent_since: float | None = None
    is_lost: bool = False
    probe: _Probe | None = None

    def update(self, peer: Peer, now: float) -> None:
        if self.probe is None and now >= self.next:
            self.probe = _Probe(peer, now)
        code = self.probe.answer(now) if self.probe else None
        if self.probe is None or code is None:
            return
        if code not in _UNREACHED:
            self.silent_since = None
        elif self.silent_since is None:
            self.silent_since = self.probe.since
        is_reached = self.silent_since is None
        self.is_lost = self.silent_since is not None and now - self.silent_since >= LOST_SECONDS
        self.next = now + (EVERY if is_reached else AGAIN)
        self.close_probe()

    def close_probe(self) -> None:
        if self.probe:
            self.probe.close()
        self.probe = None


class Peers:
    """Answers other agents' probes on the port `door`, and probes other agents."""

    def __init__(self, host: str) -> None:
        self._listener = socket.socket()
        self._listener.bind((host, 0))
        self._listener.listen(BACKLOG)
        self._listener.settimeout(0)
        self.door = int(self._listener.getsockname()[1])
        self._known: dict[Peer, _Known] = {}

    @property
    def unreachable_peers(self) -> tuple[str, ...]:
        """The tokens (names) of the probed agents that can't be reached."""
        return tuple(peer.token for peer, known in self._known.items() if known.is_lost)

    def watch(self, peers: Iterable[Peer]) -> None:
        """Probe these agents from now on, and no others. Previous results are forgotten."""
        for known in self._known.values():
            known.close_probe()
        self._known = {peer: _Known(next=time.monotonic()) for peer in peers if peer.door}

    def close(self) -> None:
        """Close the listener and all probes."""
        self.watch(())
        self._listener.close()

    def update(self) -> None:
        """Accept other agents' probes, and start or finish this agent's probes, without waiting."""
        with suppress(OSError):
            while True:
                self._listener.accept()[0].close()
        now = time.monotonic()
        for peer, known in self._known.items():
            known.update(peer, now)
