"""Checkpoints and results on their way between a gang's machines and the access point.

A package is a tar file in the folder `gang` of the trial. Its name has the generation and a number
within it: what a rank sends that was thought lost belongs to a generation that is over.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import NamedTuple

from trialfleet.nodes import CHECKPOINT, MODEL, PROGRESS, TRIAL
from trialfleet.nodes import RESULT as RESULT_FILE
from trialfleet.nodes.job import packages

RESULT = "result"  # the other kind, beside CHECKPOINT
_NAME = re.compile(r"(checkpoint|result)\.(\d{6})\.(\d{6})\.tar")
_IN_CHECKPOINT = (CHECKPOINT, PROGRESS)
IN_RESULT = (RESULT_FILE, PROGRESS)  # and MODEL, of a full training


class Package(NamedTuple):
    """A package by its name; of one kind, the later is the greater.

    Attributes:
        kind: what it holds.
        generation: in which it was made.
        number: of a checkpoint, counted in its generation; of a result, the job's proc.
    """

    kind: str
    generation: int
    number: int

    @property
    def name(self) -> str:
        """The file's."""
        return f"{self.kind}.{self.generation:06}.{self.number:06}.tar"

    @property
    def part(self) -> str:
        """The file's name before it is whole."""
        return f"{self.name}.part"


def package_of(name: str) -> Package | None:
    """Return the package that a file is; None where it is none."""
    found = _NAME.fullmatch(name)
    return Package(found[1], int(found[2]), int(found[3])) if found else None


def pack(kind: str, sandbox: Path, to: Path) -> None:
    """Make a package of what lies in a sandbox."""
    names = [*(_IN_CHECKPOINT if kind == CHECKPOINT else IN_RESULT)]
    if kind == RESULT and _mode(sandbox) == "final":
        names.append(MODEL)
    with to.open("wb") as file:
        packages.pack(names, sandbox, file.write)


def _mode(sandbox: Path) -> str:
    try:
        return str(json.loads((sandbox / TRIAL).read_text(encoding="utf-8")).get("mode"))
    except (OSError, ValueError, AttributeError):
        return ""


def state_of(sandbox: Path) -> tuple[tuple[str, int, int], ...]:
    """Return what tells one checkpoint of a sandbox from the next."""
    stats = ((path, path.stat()) for path in sorted((sandbox / CHECKPOINT).rglob("*")))
    return tuple((str(path), stat.st_mtime_ns, stat.st_size) for path, stat in stats)


def begin_anew(sandbox: Path) -> None:
    """Remove what a generation left in a sandbox: the next begins with its checkpoint alone."""
    for folder in (CHECKPOINT, MODEL):
        shutil.rmtree(sandbox / folder, ignore_errors=True)
        (sandbox / folder).mkdir(exist_ok=True)
    for file in IN_RESULT:
        (sandbox / file).write_bytes(b"")
