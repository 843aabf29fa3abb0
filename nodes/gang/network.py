"""The network addresses of a gang's ranks, and the socket between a worker and its agent."""

from __future__ import annotations

import fcntl
import os
import re
import socket
import struct
from pathlib import Path

from trialfleet.nodes.job import job_ad

_SOCKET = ".agent.sock"
_GET_ADDRESS = 0x8915  # SIOCGIFADDR
_OUTSIDE = ("192.0.2.1", 9)  # an unused address, to look up the default route; nothing is sent


def own_address() -> str:
    """Return the IP address at which other machines reach this one.

    This is the address in the slot's ClassAd, else that of the interface with the default route.
    """
    ad = job_ad.text("_CONDOR_MACHINE_AD")
    found = re.search(r'^MyAddress\s*=\s*"<([0-9.]+):\d+', ad, re.MULTILINE)
    return found[1] if found else _outgoing_address()


def _outgoing_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_OUTSIDE)
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def free_port(host: str) -> int:
    """Return a port of `host` that is free now. It is not reserved."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def variables(host: str) -> dict[str, str]:
    """Return environment variables that make gloo and NCCL use the interface with address `host`.

    By default both libraries use the address of the machine's name, often a loopback address.
    Variables that the environment already has are left out. If no interface has the address `host`,
    return no variables.
    """
    if not (name := _find_interface(host)):
        return {}
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    return {each: name for each in names if each not in os.environ}


def world_of_one() -> dict[str, str]:
    """Return the environment variables of a distributed training with one rank."""
    return variables("127.0.0.1") | {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port("127.0.0.1")),
    }


def _find_interface(host: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(any_socket.fileno(), _GET_ADDRESS, request)
            except OSError:
                continue
            if socket.inet_ntoa(answer[20:24]) == host:
                return name
    return ""


class SaveSocket:
    """The agent's Unix socket, to which a worker connects when it has saved a checkpoint.

    `folder` is a file descriptor of the socket's folder. `listener` is readable once a worker has
    connected.
    """

    def __init__(self, folder: Path) -> None:
        (folder / _SOCKET).unlink(missing_ok=True)
        self.folder = os.open(folder, os.O_PATH | os.O_DIRECTORY)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(f"/proc/self/fd/{self.folder}/{_SOCKET}")
        self.listener.listen(16)
        self.listener.settimeout(0)

    def address(self, holder: int) -> str:
        """Return a path at which workers find the socket, below /proc/PID/fd.

        The socket's real path may exceed the 107 bytes that Unix allows. PID is `holder`, another
        process that has the descriptor `folder` open. Workers can't access the descriptors of this
        process.
        """
        return f"/proc/{holder}/fd/{self.folder}/{_SOCKET}"

    def accept(self) -> socket.socket | None:
        """Return the next worker's connection, or None if no worker has connected."""
        try:
            connection, _ = self.listener.accept()
        except BlockingIOError:
            return None
        connection.settimeout(1.0)
        return connection
