"""All errors that trialfleet raises for its users, with their exit codes.

A message tells the user the fault, the given value, the valid choices and where to look. A bug of
trialfleet itself raises a plain `AssertionError`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

# An "@" in any URL but an S3 object's: user and password, perhaps continued after a "?".
_WITH_PASSWORD = re.compile(
    r"((?<![A-Za-z])(?!s3:)[A-Za-z][A-Za-z0-9+.-]*:/{1,2}+"  # a Path keeps one of two slashes
    r"|(?<!:)//(?=[^\s:@/]*:))"  # a URL that lost its scheme, or a part of the scheme
    r"(?!(USER:PASSWORD|[^\s:@/]*:\*\*\*)@[^\s@]*(\s|$))"  # as SQLAlchemy hides a password
    r"\S*@[^\s'\"]*"
)


class TrialfleetError(Exception):
    """The base of all errors that the command line prints without a traceback.

    The exit code is 1, except for InputError. The message is safe to show in any terminal, page or
    log, even if it repeats a file's content.
    """

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(escape_control(message))


def escape_control(text: str) -> str:
    r"""Return `text` in a form that is safe to show in a terminal.

    Characters that control a terminal are escaped (`\x1b`, `\u202e`), except `\n`. A URL with an
    "@", other than `s3://…`, becomes `***` after its scheme, because it may contain a password.
    """
    text = _WITH_PASSWORD.sub(r"\1***", text)
    if text.isprintable():
        return text
    return "".join(
        c if c == "\n" or c.isprintable() else c.encode("unicode_escape").decode() for c in text
    )


def join_names(names: Sequence[str], limit: int) -> str:
    """Return the first `limit` names joined by commas, as in `a, b, c and 2 more`."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


class InputError(TrialfleetError):
    """An argument, a file or a path given by the user can't be used. The exit code is 2."""

    exit_code = 2


class StudyError(InputError):
    """A study file is invalid. The message has a line per problem, with the problem's place."""


class PoolError(TrialfleetError):
    """HTCondor is not installed, not running, or refused a request."""


class OptimizerError(TrialfleetError):
    """The optimiser's service or the trial database can't be used."""


class FleetError(TrialfleetError):
    """AWS can't be reached, or refused a request. The message names any missing permission."""


class ExportError(TrialfleetError):
    """A failed request to S3 or MLflow, which will be retried. The message contains no secret.

    `is_of_all`: the export of other regions would fail with the same error.
    """

    def __init__(self, message: str, *, is_of_all: bool = False) -> None:
        super().__init__(message)
        self.is_of_all = is_of_all
