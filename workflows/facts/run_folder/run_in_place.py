"""A run's frozen study, if the run is still in the folder in which it was planned."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trialfleet.errors import InputError
from trialfleet.workflows.facts.run_folder.folder import RunFolder

if TYPE_CHECKING:
    from trialfleet.workflows.study.frozen import FrozenStudy


def check_place(found: Path, planned: Path) -> None:
    """Raise InputError if a run was moved from the folder `planned` to the folder `found`."""
    if not planned.is_dir() or not planned.samefile(found):
        # the jobs of a moved run make a folder there, into which the run would be moved back
        is_rest = planned.is_dir() and not RunFolder(planned).study.exists()
        first = " (first remove what its jobs have written there since)" if is_rest else ""
        raise InputError(
            f"the run in {str(found)!r} was planned in {str(planned)!r} and works only there,"
            " because its files contain absolute paths;"
            f" move it back{first}, or plan the study again"
        )


def load_in_place(folder: RunFolder) -> FrozenStudy:
    """Return a run's frozen study; InputError if the run is missing, damaged or moved."""
    # imported here, because a shell's completion needs no pydantic, which is slow to import
    from trialfleet.workflows.study.frozen import load_frozen

    frozen = load_frozen(folder.study)
    check_place(folder.root, Path(frozen.folder))
    return frozen
