"""The findings of `fleet doctor`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one check of `fleet doctor`.

    `ok` is False if `fleet up` would fail; None if this is unknown, or if `fleet up` would work
    only in part.
    """

    check: str
    ok: bool | None
    found: str
    advice: str = ""
