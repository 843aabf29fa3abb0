"""The check that DAGMan can use the path of a run's folder.

    python3 -m trialfleet.workflows.run_path_check FOLDER

prints an error if FOLDER can't be a run's folder. This module needs only Python's standard library,
so that the command works before trialfleet's dependencies are installed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from trialfleet.errors import InputError
from trialfleet.render import is_transferable, needs_escape

_LONGEST = 255  # bytes of a file's name in Linux
_TEMPORARY = Path("/tmp")  # noqa: S108 - DAGMan's default is to refuse its log there


def usable_place(out: Path) -> Path:
    """Return the absolute path of a run's folder; InputError if DAGMan can't use the path."""
    place = Path(os.path.abspath(out))  # noqa: PTH100 - resolve() would follow the user's links
    # A "|" in the name of a configuration file means the output of a program.
    if needs_escape(str(place)) or "|" in str(place) or not str(place).isprintable():
        raise InputError(
            f"the run's folder {str(place)!r} has a character that DAGMan can't use: a double "
            "quote, a backslash, '|', '$(', '$$' or a character that does not print; choose "
            "another folder with --out"
        )
    if long := [name for name in place.parts if len(os.fsencode(name)) > _LONGEST]:
        raise InputError(
            f"the name {long[0][:40]!r}… in the path of the run's folder has "
            f"{len(os.fsencode(long[0]))} bytes; a name has at most {_LONGEST} bytes: choose "
            "another folder with --out"
        )
    return place


def place_warning(place: Path) -> str | None:
    """Return a warning if a run's folder is below /tmp, which a reboot may empty; else None."""
    if not place.is_relative_to(_TEMPORARY):
        return None
    return (
        f"the run's folder {str(place)!r} is under {_TEMPORARY}, which many machines empty at a "
        "reboot: for a run that should last, choose another folder with --out"
    )


def main() -> None:
    """Check the folder that `sys.argv[1]` names; InputError if it can't be a run's folder.

    HTCondor must be able to use the folder's path, and this user must be able to write to the
    folder or to create it.
    """
    place = usable_place(Path(sys.argv[1]))
    if not is_transferable(str(place)):
        raise InputError(
            f"the path of the run's folder {str(place)!r} has a comma, which HTCondor's file "
            "transfer can't handle: rename the folder that has the comma in its name"
        )
    existing = next(folder for folder in (place, *place.parents) if folder.exists())
    if not os.access(existing, os.W_OK):
        raise InputError(
            f"the run's folder {str(place)!r} can't be used: this user has no permission to "
            f"write to {str(existing)!r}"
        )


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(f"Error: {error}")
