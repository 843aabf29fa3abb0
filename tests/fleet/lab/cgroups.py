"""The cgroups of a lab's machines: systemd wants to be the first process of one.

They lie in one cgroup of the kernel's second hierarchy, which no namespace takes down with it. So a
process outside of the lab makes it, and when its standard input ends, however that comes about,
kills what is left in it and removes it. `python -m tests.fleet.lab.cgroups NAME`, as root, in a
mount namespace of its own; the standard library alone.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from . import mounting

PLACE = Path("/sys/fs/cgroup")  # it may have other contents outside our mount namespace
PATIENCE = 30.0  # seconds for killed processes to be gone


def mount(place: Path) -> None:
    """Mount the kernel's second hierarchy, from this process's cgroup namespace down."""
    place.mkdir(parents=True, exist_ok=True)
    mounting.mount("cgroup2", place, "cgroup2", mounting.MS_NOSUID | mounting.MS_NODEV)


def enter(cgroup: Path) -> None:
    """Move this process into a cgroup, which is made, and have it be the root of what it sees."""
    cgroup.mkdir()
    (cgroup / "cgroup.procs").write_text("0")
    mounting.unshare(mounting.CLONE_NEWCGROUP)


def remove(cgroup: Path) -> None:
    """Kill everything in a cgroup and remove it with all below.

    Raises:
        OSError: it can't be removed.
    """
    (cgroup / "cgroup.kill").write_text("1")
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            for folder in deepest_first(cgroup):
                folder.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


def deepest_first(cgroup: Path) -> list[Path]:
    """Return a cgroup and all below, so that each comes before what it lies in."""
    found = [cgroup, *(path for path in cgroup.rglob("*") if path.is_dir())]
    return sorted(found, key=lambda path: len(path.parts), reverse=True)


def main(name: str) -> None:
    """Make a cgroup, say so, and remove it when the standard input ends."""
    mount(PLACE)
    cgroup = PLACE / name
    cgroup.mkdir()
    try:
        print("ready", flush=True)
        sys.stdin.read()
    finally:
        remove(cgroup)


if __name__ == "__main__":
    main(sys.argv[1])
