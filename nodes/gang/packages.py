"""Checkpoints and results on their way between a gang's machines and the access point.

A package is a tar file in the folder `gang` of the node. Its name has the generation and a number
within it: what a rank sends that was thought lost belongs to a generation that is over.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from trialfleet.nodes import CHECKPOINT

RESULT = "result"  # the other kind, beside CHECKPOINT
_NAME = re.compile(r"(checkpoint|result)\.(\d{6})\.(\d{6})\.tar")


class Package(NamedTuple):
    """A package by its name; of one kind, the later is the greater."""

    kind: str  # what it holds
    generation: int  # in which it was made
    number: int  # of a checkpoint, counted in its generation; of a result, the job's proc

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


def state_of(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Return what tells one checkpoint of a trial's folder from the next."""
    stats = ((path, path.stat()) for path in sorted((folder / CHECKPOINT).rglob("*")))
    return tuple((str(path), stat.st_mtime_ns, stat.st_size) for path, stat in stats)
