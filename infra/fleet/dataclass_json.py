"""Dataclasses as JSON has them."""

from __future__ import annotations

from datetime import datetime
from typing import Any


def plain(value: Any) -> Any:
    """Return data as JSON has it: moments as ISO text, tables and lists all the way down."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value
