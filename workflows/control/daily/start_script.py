"""Scripts that run a trialfleet command in the working directory of the process that wrote them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from trialfleet.errors import InputError
from trialfleet.files import write_atomic
from trialfleet.infra.pool.embedded import FOLDER_VARIABLE
from trialfleet.render import needs_escape, render_template
from trialfleet.workflows.facts.journal.folder import DailyFolder

# Variables with which the program finds the same HTCondor and AWS account. None is a secret.
_KEPT = (
    "PATH",
    "CONDOR_CONFIG",
    FOLDER_VARIABLE,
    "AWS_PROFILE",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
)


def write_start(folder: DailyFolder, study: str, file: Path) -> str:
    """Write the script that the schedule starts, and return the script's text.

    InputError if a path has a character that systemd units or submit files can't contain.
    """
    text = start_text(folder, study, "daily", "run", file.absolute())
    folder.root.mkdir(parents=True, exist_ok=True)
    write_atomic(folder.start, text, mode=0o755)
    return text


def start_text(folder: DailyFolder, study: str, *words: str | Path) -> str:
    """Return the text of a script that runs the trialfleet command `words`.

    InputError if a path has a character that systemd units or submit files can't contain.
    """
    for path in (folder.root, *words, Path.cwd(), Path(sys.executable)):
        if needs_escape(str(path)) or not str(path).isprintable():
            raise InputError(
                f"{str(path)!r} has a character that a schedule can't contain: a double quote, a "
                "backslash, '$(', "
                "'$$' or a character that does not print; move or rename the file or folder"
            )
    # htcondor2 sets CONDOR_CONFIG to /dev/null if it is not set
    given = {name: os.environ.get(name, "") for name in _KEPT}
    environment = {
        name: value
        for name, value in given.items()
        if value.isprintable() and value not in {"", os.devnull}
    }
    return render_template(
        "run/daily.start.j2",
        study=study,
        here=Path.cwd(),
        environment=environment,
        python=sys.executable,
        words=words,
    )
