"""The HTCondor configuration of the embedded pool, as text.

Pure: the same settings give the same bytes. Paths and knobs (the user's settings) are checked: none
can add a line to the file.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trialfleet.errors import InputError
from trialfleet.infra.pool.htcondor_installation import Installation
from trialfleet.render import render_template

KNOB_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
# Jobs have this variable, which marks the pool's processes (see `processes`).
MARK = "TRIALFLEET_POOL_PROCESS"
FILE = "condor_config"  # of a pool's folder: its configuration, the CONDOR_CONFIG of its tools
LEAST_CPUS = 2  # two lanes make sense on the smallest machine
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True, kw_only=True)
class PoolSettings:
    """The settings of an embedded pool; InputError if one is invalid.

    Attributes:
        folder: the pool's own folder, an absolute path.
        account: name of the pool owner's account, as the daemons see it.
        root: True if root owns the pool; the daemons then run in a user namespace.
        cpus: number of cpus to offer; 0: those that this process may use, but at least 2.
        memory_mb: memory to offer in MiB; 0: all of the machine's.
        apptainer: the program that runs jobs with a container image; None if there is none.
        knobs: the user's HTCondor settings, written after trialfleet's.
        extra: the user's configuration text (several lines, `use` statements), written last.
    """

    folder: Path
    installation: Installation
    account: str
    port: int
    root: bool = False
    cpus: int = 0
    memory_mb: int = 0
    apptainer: Path | None = None
    knobs: Mapping[str, str] = field(default_factory=dict)
    extra: str = ""

    def __post_init__(self) -> None:
        if not self.folder.is_absolute():
            raise InputError(f"the pool's folder must be an absolute path, but is {self.folder}")
        check_path("the pool's folder", self.folder)
        check_path("HTCondor's folder", self.installation.release)
        if self.apptainer:
            check_path("the path of apptainer", self.apptainer)
        if self.cpus < 0 or self.memory_mb < 0:
            raise InputError(f"cpus ({self.cpus}) and memory ({self.memory_mb}) can't be negative")
        for name, value in self.knobs.items():
            check_knob(name, value)


def check_path(what: str, path: Path) -> None:
    """Raise InputError if HTCondor would read `path` in its configuration as another path."""
    text = str(path)
    # $ begins a macro, # and \ are special in some lists, a comma or a double quote splits.
    unusable = re.search(r"[\x00-\x1f\x7f$\\\",]", text)
    if unusable or text != text.strip():
        why = f"contains {unusable[0]!r}" if unusable else "begins or ends with a blank"
        raise InputError(f"{what} {text!r} {why}, which HTCondor can't use: choose another path")


def check_knob(name: str, value: str) -> None:
    """Raise InputError unless `name = value` is one HTCondor setting on one line."""
    if not KNOB_NAME.fullmatch(name):
        raise InputError(
            f"{name!r} can't be the name of an HTCondor setting: use letters, digits, _ and"
            " dots, and no digit or dot at first"
        )
    if re.search(r"[\x00\n\r]", value) or value.rstrip().endswith("\\"):
        raise InputError(
            f"the value of {name} must be one line, without a backslash at its end, but is"
            f" {value!r}"
        )


def render(settings: PoolSettings) -> str:
    """Return the text of the pool's configuration file."""
    path = f"{Path(sys.executable).parent}:{SYSTEM_PATH}"
    variables = f"{variable('PATH', path)} {variable(MARK, str(settings.folder / FILE))}"
    values = {
        **vars(settings),
        "cpus": settings.cpus or max(LEAST_CPUS, len(os.sched_getaffinity(0))),
        "job_environment": f'"{variables}"',  # the variables that each job gets
        "extra": settings.extra.strip(),
    }
    return render_template("condor/embedded.conf.j2", **values)


def variable(name: str, value: str) -> str:
    """Return `name=value` as one word, in the syntax of HTCondor's environment settings."""
    quoted = value.replace("'", "''").replace('"', '""')
    return f"'{name}={quoted}'"
