"""Where the ranks of a gang reach this machine, and where a worker reaches its agent."""

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
_OUTSIDE = ("192.0.2.1", 9)  # nowhere; asking for the way to it sends nothing


def own_address() -> str:
    """Return the address that HTCondor advertises for this machine: the others can reach it."""
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
    """Return a port that nothing listens on; who needs it soon finds it free."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def variables(host: str) -> dict[str, str]:
    """Return what has gloo and NCCL use the interface of an address; a user's choice stands.

    They would look for the machine's name, which many a machine resolves to itself.
    """
    if not (name := _interface(host)):
        return {}
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    return {each: name for each in names if each not in os.environ}


def world_of_one() -> dict[str, str]:
    """Return what the only rank of its world has in its environment."""
    return variables("127.0.0.1") | {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port("127.0.0.1")),
    }


def _interface(host: str) -> str:
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
    """A socket in a folder, by which workers say that they have saved.

    Attributes:
        folder: a descriptor of the folder.
        listener: has something to read once a worker has come.
    """

    def __init__(self, folder: Path) -> None:
        (folder / _SOCKET).unlink(missing_ok=True)
        self.folder = os.open(folder, os.O_PATH | os.O_DIRECTORY)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(f"/proc/self/fd/{self.folder}/{_SOCKET}")
        self.listener.listen(16)
        self.listener.settimeout(0)

    def address(self, holder: int) -> str:
        """Return what a worker connects to.

        By a descriptor, because an address has room for 107 bytes; and by that of the process
        `holder`, which has it, too: this one keeps its descriptors from its workers.
        """
        return f"/proc/{holder}/fd/{self.folder}/{_SOCKET}"

    def opened(self) -> socket.socket | None:
        """Return the next worker's connection; None if none has come."""
        try:
            connection, _ = self.listener.accept()
        except BlockingIOError:
            return None
        connection.settimeout(1.0)
        return connection
