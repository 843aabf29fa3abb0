"""Mounts and namespaces by system calls; standard library only, because it runs in machines."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC = 32, 4096, 16384
CLONE_NEWCGROUP = 0x02000000
_KEPT = MS_NOSUID | MS_NODEV | MS_NOEXEC  # flags that a user namespace may not drop
_libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    """Put this process into new namespaces; OSError if the kernel refuses."""
    if _libc.unshare(flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"unshare: {os.strerror(number)}")


def mount(source: str | Path, target: Path, kind: str = "", flags: int = 0, data: str = "") -> None:
    """Mount `source` on `target`.

    Raises:
        OSError: the kernel refuses.
    """
    words = [os.fsencode(text) or None for text in (str(source), str(target), kind)]
    if _libc.mount(*words, ctypes.c_ulong(flags), data.encode() or None) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mount {source}: {os.strerror(number)}", str(target))


def bind(source: Path, target: Path, *, read_only: bool = True) -> None:
    """Show a file or folder at the path `target` also, which is created if it is missing."""
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    elif not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    mount(source, target, flags=MS_BIND | MS_REC)
    if read_only:
        make_read_only(target)


def make_read_only(target: Path) -> None:
    """Make a mount point read-only."""
    kept = os.statvfs(target).f_flag & _KEPT
    mount("none", target, flags=MS_REMOUNT | MS_BIND | MS_RDONLY | kept)


def memory(target: Path, mode: int = 0o755) -> None:
    """Mount an empty file system in memory."""
    target.mkdir(parents=True, exist_ok=True)
    mount("tmpfs", target, "tmpfs", data=f"mode={mode:o}")


def overlay(lower: Path, upper: Path, work: Path, target: Path) -> None:
    """Show `lower` on `target`; what is written there goes to `upper`."""
    for folder in (upper, work, target):
        folder.mkdir(parents=True, exist_ok=True)
    places = f"lowerdir={lower},upperdir={upper},workdir={work}"
    try:
        mount("overlay", target, "overlay", data=places)
    except OSError:  # in a user namespace
        mount("overlay", target, "overlay", data=f"{places},userxattr")


def write_files(root: Path, files: Mapping[str, str]) -> None:
    """Write small files, whose names are absolute paths inside `root`."""
    for name, text in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def write_programs(root: Path, programs: Mapping[str, Iterable[str]]) -> None:
    """Write one-line shell scripts: each runs its words, followed by the script's arguments."""
    for name, words in programs.items():
        path = root / name.lstrip("/")
        path.unlink(missing_ok=True)
        write_files(root, {name: f'#!/bin/sh\nexec {" ".join(words)} "$@"\n'})
        path.chmod(0o755)


def pivot(root: Path) -> None:
    """Make the mount point `root` this namespace's root, and unmount the old one."""
    old = root / "old"
    old.mkdir()
    os.chdir(root)
    subprocess.run(["pivot_root", ".", "old"], check=True)
    os.chdir("/")
    subprocess.run(["umount", "--lazy", "/old"], check=True)
    Path("/old").rmdir()
