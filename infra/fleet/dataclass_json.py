"""Conversion of dataclasses to JSON data."""

from __future__ import annotations

from dataclasses import is_dataclass
from datetime import datetime
from typing import Any


def to_plain(value: Any) -> Any:
    """Return `value` as JSON data, with dataclasses as objects and times as text."""
    if is_dataclass(value):
        return to_plain(vars(value))
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, dict):
        return {key: to_plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(each) for each in value]
    return value
