"""Dataclasses as JSON has them."""

from __future__ import annotations

from dataclasses import is_dataclass
from datetime import datetime
from typing import Any


def plain(value: Any) -> Any:
    """Return data as JSON has it: dataclasses as tables, moments as ISO text, all the way down."""
    if is_dataclass(value):
        return plain(vars(value))
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value
