"""Reads JSON objects that another program wrote, and that may be damaged."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any


def parse_object(text: bytes | None) -> dict[str, Any]:
    """Return the JSON object in `text`, or {} if `text` is missing or anything else."""
    with suppress(ValueError, RecursionError):
        found = json.loads(text or b"{}")
        return found if isinstance(found, dict) else {}
    return {}
