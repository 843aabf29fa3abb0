"""The HTCondor configuration of the embedded pool, as text.

The same settings always give the same bytes.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from trialfleet.errors import InputError
from trialfleet.infra.pool.htcondor_installation import Installation
from trialfleet.infra.pool.user_namespace import Identity
from trialfleet.render import render_template

# Jobs have this variable, which marks the pool's processes (see `processes`).
MARK = "TRIALFLEET_POOL_PROCESS"
FILE = "condor_config"  # in a pool's folder; HTCondor's tools find it by CONDOR_CONFIG
LEAST_CPUS = 2  # the pool's cpus on a machine with one core, so that two lanes can run
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"


def check_path(what: str, path: Path) -> None:
    """Raise InputError if HTCondor's configuration can't contain `path` as it is.

    The message begins with `what`, a name of the path such as "the pool's folder".
    """
    text = str(path)
    # $ begins a macro, # and \ are special in some lists, a comma or a double quote splits.
    unusable = re.search(r"[\x00-\x1f\x7f$\\\",]", text)
    if unusable or text != text.strip():
        why = f"contains {unusable[0]!r}" if unusable else "begins or ends with a blank"
        raise InputError(f"{what} {text!r} {why}, which HTCondor can't use: choose another path")


def render(
    folder: Path, installation: Installation, who: Identity, port: int, apptainer: Path | None
) -> str:
    """Return the text of the configuration file of the pool in `folder`.

    `apptainer` is the program that runs jobs with a container image, or None if it is not
    installed. InputError if HTCondor can't use one of the paths.
    """
    check_path("the pool's folder", folder)
    check_path("HTCondor's folder", installation.release)
    if apptainer:
        check_path("the path of apptainer", apptainer)
    path = f"{Path(sys.executable).parent}:{SYSTEM_PATH}"
    variables = f"{variable('PATH', path)} {variable(MARK, str(folder / FILE))}"
    return render_template(
        "condor/embedded.conf.j2",
        folder=folder,
        installation=installation,
        who=who,
        port=port,
        apptainer=apptainer,
        cpus=max(LEAST_CPUS, len(os.sched_getaffinity(0))),
        job_environment=f'"{variables}"',  # the variables that each job gets
    )


def variable(name: str, value: str) -> str:
    """Return `name=value` as one word, in the syntax of HTCondor's environment settings."""
    quoted = value.replace("'", "''").replace('"', '""')
    return f"'{name}={quoted}'"
