"""The findings of `fleet doctor`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one check of `fleet doctor`.

    `ok` is True if there is no problem, and False if `fleet up` would fail. It is None for a
    warning, or if the check was not possible.
    """

    check: str
    ok: bool | None
    found: str
    advice: str = ""
