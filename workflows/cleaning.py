"""Cleaning of texts and numbers that come from trainers and users."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import is_dataclass, replace
from typing import Any, TypeGuard

from trialfleet.objective import is_number
from trialfleet.workflows.names import TURNING

TERMINAL_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?)")
CONTROL = re.compile(
    rf"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029{TURNING}\ud800-\udfff\ufffe\uffff]"
)
_NUMBERS = (int, float)
_LARGEST = sys.float_info.max


def clean(value: Any) -> Any:
    """Return `value` with all texts in it cleaned, so that they can be shown and stored.

    Terminal sequences, such as colours, are removed. Control characters are replaced, and so are
    surrogates, because a UTF-8 file can't store them. Mappings become dicts, and tuples become
    lists, except in a dataclass.
    """
    if isinstance(value, str):
        if value.isprintable():
            return value
        text = TERMINAL_SEQUENCE.sub("", value.replace("\r\n", "\n"))
        return CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)
    if value is None or type(value) in _NUMBERS:  # the most frequent case, and the fastest check
        return value
    if isinstance(value, Mapping):
        # interned: the names are the same in thousands of trials, and most items are numbers
        return {
            sys.intern(clean(str(key))): item if type(item) is float else clean(item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [clean(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        own = {
            name: tuple(map(clean, item)) if isinstance(item, tuple) else clean(item)
            for name, item in vars(value).items()
        }
        return replace(value, **own)
    return value


def is_finite(value: Any) -> TypeGuard[int | float]:
    """Return whether `value` is a finite number that a float can store, and not a boolean."""
    return (type(value) in _NUMBERS or is_number(value)) and abs(value) <= _LARGEST


def amount(value: Any) -> float | None:
    """Return `value` as a float; None if it is not a finite number of at least 0."""
    if type(value) is float and 0.0 <= value <= _LARGEST:  # the common case, faster
        return value
    return float(value) if is_finite(value) and value >= 0 else None


def keep_finite(values: Mapping[str, Any]) -> dict[str, float]:
    """Return only those entries of `values` that are finite numbers."""
    return {name: value for name, value in values.items() if is_finite(value)}
