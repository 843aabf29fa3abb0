"""The environment variables and PATH of HTCondor's programs."""

from __future__ import annotations

import os

from trialfleet.infra.pool.htcondor_installation import Installation


def inherited_environment() -> dict[str, str]:
    """Return this process's environment without `_CONDOR_…` and CONDOR_INHERIT.

    A pool sets these variables for its daemons and jobs. This process may be one of these jobs.
    """
    names = (name for name in os.environ if not name.upper().startswith("_CONDOR_"))
    return {name: os.environ[name] for name in names if name != "CONDOR_INHERIT"}


def extended_path(path: str, installation: Installation) -> str:
    """Return `path` with the folders of HTCondor's programs added.

    The folders of an unpacked copy come first. The folders of the machine's own HTCondor come last.
    """
    folders = [str(installation.bin), str(installation.sbin)]
    before = path.split(os.pathsep) if path else []
    if installation.unpacked:
        return os.pathsep.join([*folders, *(folder for folder in before if folder not in folders)])
    return os.pathsep.join([*before, *(folder for folder in folders if folder not in before)])
