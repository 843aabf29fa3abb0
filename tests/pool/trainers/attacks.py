"""A trainer's attempts to reach its access point: each that works is a word of `found`.

Used by timing.py, as a trial and as a worker of a gang.
"""

import ctypes
import os
import re
import socket
import struct
from pathlib import Path

COOKIE = re.compile(rb"(\d+\.\d+\.\d+\.\d+) (\d+) ([a-z]{10,})")
VARIABLE = "_CONDOR_CHIRP_CONFIG"
AGENT = "agent.pyz"
ATTACH, DETACH, PIDFD_OPEN, PIDFD_GETFD = (
    16,
    17,
    434,
    438,
)  # requests of ptrace; numbers of system calls
libc = ctypes.CDLL(None, use_errno=True)


def found() -> list[str]:
    """Return what has worked."""
    attempts = [variable(), *files(), *programs()]
    agent = the_agent()
    attempts += [*memory(agent), *descriptors(agent)]
    return sorted({each for each in attempts if each})


def variable() -> str:
    return "the variable" if VARIABLE in os.environ else ""


def files() -> list[str]:
    """Look for the cookie in files of the sandbox, of its parents, and of another job's sandbox."""
    here = Path.cwd()  # a folder in the sandbox, or in a gang the sandbox itself
    places = [*here.rglob("*")]
    for above in here.parents[:3]:
        places += [*above.glob("*"), *above.glob("*/.chirp*")]
    return [f"a file: {each.name}: {by_cookie(text)}" for each in places if (text := read(each))]


def programs() -> list[str]:
    """Look for the cookie in the commands of all processes of this machine."""
    return [
        f"a cookie in /proc/{each.name}/{name}"
        for each in Path("/proc").glob("[0-9]*")
        for name in ("environ", "cmdline")
        if read(each / name)
    ]


def read(path: Path) -> bytes | None:
    """Return the cookie that a file has, with its address."""
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            match = COOKIE.search(file.read(1 << 20))
    except OSError:
        return None
    return match[0] if match else None


def the_agent() -> int:
    """Return the job's first process, by way of this one's parents."""
    pid = os.getpid()
    while pid > 1:
        stat = Path(f"/proc/{pid}/stat").read_text()
        pid = int(stat.rpartition(")")[2].split()[1])
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        if AGENT in words and "workers" not in words:
            return pid
    raise SystemExit("no agent above this process")


def memory(agent: int) -> list[str]:
    works = []
    for name in ("environ", "mem", "maps", "auxv"):
        try:
            Path(f"/proc/{agent}/{name}").open("rb").close()
            works.append(f"open {name}")
        except OSError:
            pass
    if libc.ptrace(ATTACH, agent, None, None) == 0:
        works.append("ptrace")
        os.waitpid(agent, 0x40000000)  # __WALL: it isn't this process's child
        libc.ptrace(DETACH, agent, None, None)
    data = ctypes.create_string_buffer(8)
    local = struct.pack("PN", ctypes.addressof(data), 8)
    remote = struct.pack("PN", id(libc), 8)
    if libc.process_vm_readv(agent, local, 1, remote, 1, 0) >= 0 or ctypes.get_errno() != 1:
        works.append("process_vm_readv")
    return works


def descriptors(agent: int) -> list[str]:
    """Look for the agent's files and connection, and for a connection of this process itself."""
    works = []
    given = os.environ.get("TRIALFLEET_STAYS", "")  # to each trainer: resident ones answer by it
    for number in range(3, 20):
        try:
            Path(f"/proc/{agent}/fd/{number}").readlink()
            works.append(f"the agent's descriptor {number}")
        except OSError:
            pass
        try:
            what = str(Path(f"/proc/self/fd/{number}").readlink())
            if what.startswith("socket:") and str(number) != given:
                works.append(f"an inherited socket {number}")
        except OSError:
            pass
    opened = libc.syscall(PIDFD_OPEN, agent, 0)
    if opened >= 0 and any(libc.syscall(PIDFD_GETFD, opened, n, 0) >= 0 for n in range(3, 20)):
        works.append("pidfd_getfd")
    return works


def by_cookie(text: bytes) -> str:
    """Return what the access point says to its owner's cookie."""
    host, port, cookie = text.decode().split()
    try:
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            connection.sendall(f"cookie {cookie}\ngetfile trial.sub\n".encode())
            return repr(connection.recv(80))
    except OSError as error:
        return str(error)
