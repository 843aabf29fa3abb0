"""What the checks of `fleet doctor` find."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What came out of one check.

    Attributes:
        check: what was looked at.
        ok: False where a fleet would not come up; None where nobody can tell, or it would in part.
        found: what there is.
        advice: what to do about it; empty where there is nothing to do.
    """

    check: str
    ok: bool | None
    found: str
    advice: str = ""
