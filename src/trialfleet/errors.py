"""Every error that trialfleet raises for a person to read.

TrialfleetError           exit code 1: something outside this command went wrong
├── InputError            exit code 2: what the user gave can't be used
│   └── StudyError        … in a study file: names file, line, key, value and choices
├── PoolError             HTCondor is missing, down, or refused what was asked of it
├── OptimizerError        the optimiser's service can't be reached or its storage can't be used
└── FleetError            AWS can't be reached or refused what was asked of it

The message is the whole story for the user: what was wrong, the value given, the valid choices,
where to look. Mistakes of the program itself are plain `AssertionError`s and never of these types.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

# An "@" in any URL but an S3 object's: user and password, and perhaps more of it behind a "?".
_WITH_PASSWORD = re.compile(
    r"((?<![A-Za-z])(?!s3:)[A-Za-z][A-Za-z0-9+.-]*:/{1,2}+"  # a path has one slash of it
    r"|(?<!:)//(?=[^\s:@/]*:))"  # its scheme, or a part of that, was lost
    r"(?!(USER:PASSWORD|[^\s:@/]*:\*\*\*)@[^\s@]*(\s|$))"  # as SQLAlchemy hides it
    r"\S*@[^\s'\"]*"
)


class TrialfleetError(Exception):
    """Base of all errors that the command line prints without a traceback.

    Its text may be shown in any terminal, page or log, whatever the message repeats.
    """

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


def printable(text: str) -> str:
    r"""Return `text` as it may be shown.

    What a terminal would act on is escaped (`\x1b`, `\u202e`; not `\n`). What follows the scheme of
    a URL with an "@" is left out: wherever it was written by mistake, it may hold a password.
    """
    text = _WITH_PASSWORD.sub(r"\1***", text)
    if text.isprintable():
        return text
    return "".join(
        c if c == "\n" or c.isprintable() else c.encode("unicode_escape").decode() for c in text
    )


def first_of(names: Sequence[str], most: int) -> str:
    """Return names in a line, `a, b, c and 2 more` where there are more than `most`."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


class InputError(TrialfleetError):
    """An argument, a file or a path given by the user can't be used."""

    exit_code = 2


class StudyError(InputError):
    """A study file is wrong; one line per problem, each with its place in the file."""


class PoolError(TrialfleetError):
    """HTCondor is not installed, not running, or refused a request."""


class OptimizerError(TrialfleetError):
    """The optimiser's service or its storage can't be used."""


class FleetError(TrialfleetError):
    """AWS can't be reached, or refused a request; names the permission where one is missing."""
