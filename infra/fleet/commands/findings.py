"""The findings of `fleet doctor`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one check.

    Attributes:
        check: the subject of the check.
        ok: True without a fault; False if the fleet would not come up; None if unknown, or if the
            fleet would come up only in part.
        found: the state that the check found.
        advice: how to correct a fault; empty if nothing is to be done.
    """

    check: str
    ok: bool | None
    found: str
    advice: str = ""
