"""Ports that nothing else on this machine gets before a test's server listens on them."""

from __future__ import annotations

import socket

_held: list[socket.socket] = []


def reserved_port() -> int:
    """Return a port of 127.0.0.1 that is this process's until it ends.

    It is bound, and nobody listens: connections are refused. A server that sets SO_REUSEADDR, as
    those of Python, torch and moto do, can listen on it.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    _held.append(held)
    return int(held.getsockname()[1])
