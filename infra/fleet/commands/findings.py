"""The findings of `fleet doctor`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one check of `fleet doctor`.

    `ok` is True if the check found no problem, and False if `fleet up` would fail. None stands for
    a warning, or for a check that could not be made.
    """

    check: str
    ok: bool | None
    found: str
    advice: str = ""
