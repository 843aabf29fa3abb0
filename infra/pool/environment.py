"""The environment variables and PATH of HTCondor's programs, and the ends of their logs."""

from __future__ import annotations

import os
from pathlib import Path

from trialfleet.infra.pool.htcondor_installation import Installation

TAIL = 15  # lines of a log in an error


def inherited_environment() -> dict[str, str]:
    """Return this process's environment without `_CONDOR_…` and CONDOR_INHERIT.

    A pool sets these for its own daemons and jobs, and this process may be one of those.
    """
    names = (name for name in os.environ if not name.upper().startswith("_CONDOR_"))
    return {name: os.environ[name] for name in names if name != "CONDOR_INHERIT"}


def extended_path(path: str, installation: Installation) -> str:
    """Return `path` with HTCondor's folders: an unpacked copy's first, the machine's own last."""
    folders = [str(installation.bin), str(installation.sbin)]
    before = path.split(os.pathsep) if path else []
    if installation.unpacked:
        return os.pathsep.join([*folders, *(folder for folder in before if folder not in folders)])
    return os.pathsep.join([*before, *(folder for folder in folders if folder not in before)])


def tail(log: Path) -> str:
    """Return the path and the last lines of a log, for an error message."""
    try:
        lines = log.read_text(errors="replace").splitlines()[-TAIL:]
    except OSError:
        lines = []
    return f"the end of {log}:\n" + "\n".join(f"  {line}" for line in lines or ["(empty)"])
