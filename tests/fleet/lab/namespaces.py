"""Linux namespaces: whether this machine allows them, how to make and how to enter them."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import time
from pathlib import Path

KINDS = ("--net", "--uts", "--mount", "--ipc", "--pid")
# It ends with its starter: the first process of the namespace dies with `unshare`.
NEW = ("unshare", *KINDS, "--fork", "--kill-child=SIGKILL")
PROGRAMS = ("unshare", "nsenter", "ip", "mount", "umount", "pivot_root", "setpriv", "sysctl")
# A lab on a small scale: a bridge, a cable, a file system in memory, an overlay over /usr.
TRIAL = """
ip link add lab0 type bridge && ip link add lab1 type veth peer name lab2 || exit 1
mount -t tmpfs none /tmp && mkdir /tmp/upper /tmp/work /tmp/merged || exit 1
places=lowerdir=/usr,upperdir=/tmp/upper,workdir=/tmp/work
mount -t overlay none -o $places /tmp/merged 2>/dev/null ||
    mount -t overlay none -o $places,userxattr /tmp/merged
"""


def new_as_this_user() -> list[str]:
    """Return the words before a command that run it in new namespaces, as root there."""
    if os.geteuid() == 0:
        return [*NEW, "--mount-proc"]
    return [NEW[0], "--user", "--map-root-user", "--map-auto", *NEW[1:], "--mount-proc"]


@functools.cache
def why_none() -> str:
    """Return why no lab can run on this machine; empty if one can."""
    search = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    wanted = PROGRAMS if os.geteuid() == 0 else (*PROGRAMS, "newuidmap")
    missing = [name for name in wanted if shutil.which(name, path=search) is None]
    if missing:
        return f"no {', '.join(missing)} on this machine"
    done = subprocess.run(
        [*new_as_this_user(), "sh", "-c", TRIAL],
        env={**os.environ, "PATH": search},
        capture_output=True,
        text=True,
    )
    reason = " ".join(done.stderr.split()) or f"exit {done.returncode}"
    return "" if done.returncode == 0 else f"namespaces are refused here: {reason}"


def first_process(pid: int, seconds: float = 30) -> int:
    """Return the first process in the namespaces that `unshare --fork` (`pid`) made.

    Before that one, it may have started helpers that map user ids.

    Raises:
        TimeoutError: there is no such process after `seconds`.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except FileNotFoundError:
            break
        for child in children:
            if namespace_of(child) not in {"", namespace_of("self")}:
                return int(child)
        time.sleep(0.01)
    raise TimeoutError(f"process {pid} started none in its namespaces")


def namespace_of(process: str) -> str:
    """Return the name of a process's pid namespace; empty if it can't be read."""
    try:
        return str(Path(f"/proc/{process}/ns/pid").readlink())
    except OSError:
        return ""


def entering(pid: int, *, user: bool = False) -> list[str]:
    """Return the words before a command that run it in the namespaces of process `pid`.

    Args:
        pid: the first process of the namespaces, as the caller sees it.
        user: True to enter the process's user namespace, too.
    """
    return ["nsenter", f"--target={pid}", *(["--user"] if user else []), *KINDS, "--"]
