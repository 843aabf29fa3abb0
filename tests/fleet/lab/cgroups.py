"""The cgroups of a lab's machines: systemd must be the first process of a cgroup.

They are below one cgroup of version 2, which does not end with the lab's namespaces. So a process
outside of the lab creates it. When that process's standard input ends, for whatever reason, it
kills all processes in the cgroup and removes it. Run `python -m tests.fleet.lab.cgroups NAME` as
root, in a separate mount namespace. The module needs only the standard library.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from . import mounting

PLACE = Path("/sys/fs/cgroup")  # it may have other contents outside our mount namespace
PATIENCE = 30.0  # seconds for killed processes to be gone


def mount(place: Path) -> None:
    """Mount cgroup version 2 at `place`; it shows the cgroups of this process's namespace."""
    place.mkdir(parents=True, exist_ok=True)
    mounting.mount("cgroup2", place, "cgroup2", mounting.MS_NOSUID | mounting.MS_NODEV)


def enter(cgroup: Path) -> None:
    """Create `cgroup`, move this process into it, and make it the root that this process sees."""
    cgroup.mkdir()
    (cgroup / "cgroup.procs").write_text("0")
    mounting.unshare(mounting.CLONE_NEWCGROUP)


def remove(cgroup: Path) -> None:
    """Kill all processes in `cgroup`, and remove it with all cgroups below.

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
    """Return `cgroup` and all cgroups below, each before the one that contains it."""
    found = [cgroup, *(path for path in cgroup.rglob("*") if path.is_dir())]
    return sorted(found, key=lambda path: len(path.parts), reverse=True)


def main(name: str) -> None:
    """Make a cgroup, print that it exists, and remove it when the standard input ends."""
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
