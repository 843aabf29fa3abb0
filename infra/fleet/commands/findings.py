"""The findings of `fleet doctor`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one check.

    `ok` is False if the fleet would not come up; None if that is unknown, or if only a part of the
    fleet would come up.
    """

    check: str
    ok: bool | None
    found: str
    advice: str = ""
