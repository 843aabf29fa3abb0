"""Names of the tar files (packages) with a gang's checkpoints and results.

The packages are in the folder `words/gang` on the access point. A generation of the gang is a
period with the same ranks. A package's name has the number of its generation. So the gang's keeper
recognises a package that a lost rank has sent late.
"""

from __future__ import annotations

import re
from typing import NamedTuple

RESULT = "result"  # the other kind is CHECKPOINT
_NAME = re.compile(r"(checkpoint|result)\.(\d{6})\.(\d{6})\.tar")


class Package(NamedTuple):
    """The parts of a package's name. The package of a later checkpoint compares as greater."""

    kind: str  # CHECKPOINT or RESULT
    generation: int  # the generation that made it
    number: int  # of a checkpoint: its number in the generation; of a result: the job's proc

    @property
    def name(self) -> str:
        """The package's file name."""
        return f"{self.kind}.{self.generation:06}.{self.number:06}.tar"


def parse_package_name(name: str) -> Package | None:
    """Return the parts of a package's file name, or None for any other name."""
    found = _NAME.fullmatch(name)
    return Package(found[1], int(found[2]), int(found[3])) if found else None
