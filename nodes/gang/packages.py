"""Packages with a gang's checkpoints and results: tar files in `words/gang` on the access point.

The name has the generation and a number within it. So a late package from a rank that counted as
lost is known to belong to an old generation.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from trialfleet.nodes import CHECKPOINT

RESULT = "result"  # the other kind is CHECKPOINT
_NAME = re.compile(r"(checkpoint|result)\.(\d{6})\.(\d{6})\.tar")


class Package(NamedTuple):
    """A package by its name; of two packages of one kind, the later one compares greater."""

    kind: str  # CHECKPOINT or RESULT
    generation: int  # the generation that made it
    number: int  # a checkpoint's number in its generation; a result's proc of the job

    @property
    def name(self) -> str:
        """The file's name."""
        return f"{self.kind}.{self.generation:06}.{self.number:06}.tar"

    @property
    def part(self) -> str:
        """The file's name while it is incomplete."""
        return f"{self.name}.part"


def package_of(name: str) -> Package | None:
    """Return the package with a file's name; None if the name is not that of a package."""
    found = _NAME.fullmatch(name)
    return Package(found[1], int(found[2]), int(found[3])) if found else None


def state_of(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Return the state of a trial's checkpoint folder, which changes with each checkpoint."""
    stats = ((path, path.stat()) for path in sorted((folder / CHECKPOINT).rglob("*")))
    return tuple((str(path), stat.st_mtime_ns, stat.st_size) for path, stat in stats)
