"""A small disk for a storm's run, which can be filled up."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

INSIDE = "TRIALFLEET_STORM_INSIDE"  # set in the mount namespace
DISK_MB = 512


def enter_own_namespace() -> None:
    """Restart this program in a new mount namespace, if that is allowed."""
    if INSIDE in os.environ or shutil.which("unshare") is None:
        return
    as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    prefix = ["unshare", *as_root, "--mount", "--propagation", "private", "--"]
    if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0:
        os.environ[INSIDE] = "1"
        os.execvp(prefix[0], [*prefix, sys.executable, "-m", "tests.storm", *sys.argv[1:]])  # noqa: S606


def fill_disk(ballast: Path) -> None:
    """Fill a disk to its last byte with the file `ballast`, which can be removed again."""
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError:
                continue


class Disk:
    """The folder of the storm's runs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._ballast = root / "ballast"
        self._modes: dict[Path, int] = {}
        root.mkdir()
        self.is_small = INSIDE in os.environ
        if self.is_small:
            mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "trialfleet-storm"]
            subprocess.run([*mount, root], check=True)

    def fill(self) -> None:
        """Fill the disk to its last byte."""
        fill_disk(self._ballast)

    def empty(self) -> None:
        """Remove what `fill` wrote."""
        self._ballast.unlink(missing_ok=True)

    def protect(self) -> None:
        """Let no file be created, renamed, removed or opened for writing.

        This uses file modes, because a disk can't be mounted read-only while files are open. The
        modes work because the pool's processes have no privilege that overrides them.
        """
        for path in [self.root, *sorted(self.root.rglob("*"))]:
            try:
                if not path.is_symlink():
                    self._modes.setdefault(path, path.stat().st_mode)
                    path.chmod(self._modes[path] & ~0o222)
            except FileNotFoundError:
                continue

    def allow(self) -> None:
        """End the effect of `protect`."""
        for path, mode in self._modes.items():
            try:
                path.chmod(mode)
            except FileNotFoundError:
                continue
        self._modes = {}

    def keep(self, place: Path) -> None:
        """Copy the disk's content to `place`, which outlives the namespace."""
        if self.is_small:
            shutil.copytree(self.root, place, symlinks=True, ignore=_without_sockets)

    def remove(self) -> None:
        """Unmount the disk, so that its folder can be removed."""
        if self.is_small:
            subprocess.run(["umount", "--lazy", self.root], check=False)


def _without_sockets(folder: str, names: list[str]) -> set[str]:
    return {name for name in names if (Path(folder) / name).is_socket()}
