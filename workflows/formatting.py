"""Numbers, money, parameters and times as text for people."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

from trialfleet.errors import escape_control
from trialfleet.objective import is_number
from trialfleet.workflows.cleaning import is_finite

MINUS = "\N{MINUS SIGN}"
TIMES = "\N{MULTIPLICATION SIGN}"
NOTHING = "\N{EN DASH}"
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
DIGITS = 4
MOST_DECIMALS = 7
ALIKE_DECIMALS = 6

BETTER = {"maximize": "higher", "minimize": "lower"}  # the better values


def number(value: float | None, digits: int = DIGITS) -> str:
    """Return `value` as text with `digits` significant digits, such as 0.001234.

    Very small and very large numbers are shown with a power of ten. An int below 10**15 is shown
    with all its digits, such as 1,234,567. None and numbers that aren't finite become a dash.
    """
    if value is None or not is_finite(value):
        return NOTHING
    if isinstance(value, int) and abs(value) < 10**15:
        return _replace_minus(f"{value:,}")
    if value == 0:
        return "0"
    if not 1e-4 <= abs(value) < 1e7:
        return _scientific(value, digits, short=True)
    decimals = max(0, digits - 1 - _exponent(value))
    text = f"{value:z,.{decimals}f}"
    return _replace_minus(text.rstrip("0").rstrip(".") if "." in text else text)


def count_text(count: int, noun: str) -> str:
    """Return a number with its noun, such as "1 trial" or "1,200 trials"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def result_text(name: str, result: float) -> str:
    """Return a metric's name and value, such as "val_auc 0.91235"."""
    return f"{name} {result:.5g}"


def power_of_ten(exponent: int) -> str:
    """Return 10 with the superscript `exponent`, as text."""
    return f"10{str(exponent).translate(SUPERSCRIPTS)}"


def column_decimals(values: Sequence[float | None], digits: int = DIGITS) -> int | None:
    """Return the number of decimals for all numbers of a table's column.

    The largest number gets `digits` significant digits. If these digits don't show how the numbers
    differ, all numbers get more decimals. The result is None if the largest number needs a power of
    ten, or if the smallest would be shown as zero.
    """
    sizes = [abs(value) for value in values if value]
    if not sizes:
        return 0
    known = [value for value in values if value is not None]
    top = max(sizes)
    if not 1e-4 <= top < 1e7:
        return None
    decimals = digits - 1 - _exponent(top)
    spread = max(known) - min(known)
    if spread > 0:
        decimals = max(decimals, 1 - _exponent(spread))
    decimals = min(MOST_DECIMALS, max(0, decimals))
    return decimals if min(sizes) > 0.5 * 10.0**-decimals else None


def fixed_point(value: float | None, decimals: int | None) -> str:
    """Return `value` as text with `decimals` decimals.

    If `value` or `decimals` is None, or if `value` isn't finite, return the text from `number`.
    """
    if value is None or decimals is None or not is_finite(value):
        return number(value)
    return _replace_minus(f"{value:z,.{decimals}f}")


def signed_number(value: float | None, decimals: int | None) -> str:
    """Return a difference as text with its sign, such as "+0.0123"; a dash for None.

    Zero has no sign. A difference that would be shown as zero gets two significant digits instead.
    """
    if value is None or not is_finite(value):
        return NOTHING
    if value == 0:
        return "0"
    text = fixed_point(value, decimals)
    if decimals is not None and float(f"{value:.{decimals}f}") == 0:
        text = number(value, 2)
    return text if value < 0 else f"+{text}"


def uniform_format(values: Sequence[Any]) -> Callable[[Any], str]:
    """Return a function that formats a parameter's values, with the same format for all numbers.

    `setting` formats values that aren't numbers, and all values if none is a float. If six decimals
    show three significant digits of each number, all numbers get the same number of decimals, at
    most six. Otherwise all numbers are shown with powers of ten.
    """
    known = [value for value in values if is_finite(value)]
    if not any(isinstance(value, float) for value in known):
        return setting
    decimals, digits = alike_form(known)
    if decimals is not None:
        return lambda value: fixed_point(value, decimals) if is_finite(value) else setting(value)
    return lambda value: _power_of_ten_text(value, digits) if is_finite(value) else setting(value)


def alike_form(known: Sequence[float]) -> tuple[int | None, int]:
    """Return the format that `uniform_format` uses for the finite numbers `known`.

    The result is (number of decimals, 0). If the numbers need powers of ten, it is (None, number of
    significant digits).
    """
    sizes = [abs(value) for value in known if value]
    decimals = column_decimals(known)
    if decimals is not None and sizes:
        decimals = max(decimals, 2 - _exponent(min(sizes)))
    if decimals is not None and decimals <= ALIKE_DECIMALS:
        return _needed_decimals((f"{value:.{decimals}f}" for value in known), decimals), 0
    shares = (f"{value:.{DIGITS - 1}e}".split("e")[0] for value in known)
    return None, 1 + _needed_decimals(shares, DIGITS - 1)


def _needed_decimals(texts: Iterable[str], decimals: int) -> int:
    needed = 0
    for text in texts if decimals else ():
        needed = max(needed, decimals - (len(text) - len(text.rstrip("0"))))
        if needed == decimals:
            break
    return needed


def _power_of_ten_text(value: float, digits: int) -> str:
    return _scientific(value, digits) if value else "0"


def setting(value: Any) -> str:
    """Return a parameter's value as text.

    A float gets the format of `number`. A text that is not blank stays as it is. All other values
    become JSON.
    """
    if isinstance(value, str):
        return value if value.strip() else json.dumps(value)
    if not is_number(value):
        return json.dumps(value, ensure_ascii=False)
    return number(value) if isinstance(value, float) else _replace_minus(str(value))


def usd(amount: float | None, decimals: int | None = None) -> str:
    """Return an amount in USD as text, with `decimals` decimals; empty for None.

    By default, 0 and amounts of at least one dollar have two decimals, and other amounts have four.
    A positive amount that is too small for these decimals becomes, for example, `<0.0001`.
    """
    if amount is None:
        return ""
    if decimals is None:
        decimals = usd_decimals(amount)
    least = 10.0**-decimals
    return f"<{least:.{decimals}f}" if 0 < amount < least else f"{amount:,.{decimals}f}"


def usd_decimals(amount: float) -> int:
    """Return how many decimals an amount in USD gets: two if it is 0 or at least 1, else four."""
    return 2 if amount >= 1 or amount == 0 else 4


def duration(seconds: float | None) -> str:
    """Return a time span as text, such as "0.4 s", "3 min 05 s" or "1 d 03 h"; a dash for None."""
    if seconds is None:
        return NOTHING
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f} s"  # negative if the clock was set back
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    for unit, size, sub, subsize in (("min", 60, "s", 1), ("h", 3600, "min", 60)):
        if whole < size * (60 if unit == "min" else 24):
            return f"{whole // size} {unit} {whole % size // subsize:02} {sub}"
    return f"{whole // 86400} d {whole % 86400 // 3600:02} h"


def rough_duration(seconds: float | None) -> str:
    """Return a rounded time span, such as "119 min", "47 h" or "3 days"; empty for None."""
    if seconds is None:
        return ""
    minutes = max(1, round(seconds / 60))
    if minutes < 120:
        return f"{minutes} min"
    hours = round(seconds / 3600)
    return f"{hours} h" if hours < 48 else f"{round(seconds / 86400)} days"


def local_time(moment: datetime | None) -> str:
    """Return a moment in this machine's time zone, such as "2026-11-25 23:05"; empty for None."""
    return f"{moment.astimezone():%Y-%m-%d %H:%M}" if moment else ""


def in_one_line(text: str, max_length: int = 200) -> str:
    """Return `text` as one line of printable characters, cut after `max_length` characters."""
    line = " ".join(escape_control(text).split())
    return line if len(line) <= max_length else f"{line[: max_length - 1]}…"


def shorten(text: str, length: int) -> str:
    """Return `text` as one line of at most `length` characters; its middle may be left out."""
    line = " ".join(text.split())
    if len(line) <= length:
        return line
    tail = length // 3
    return f"{line[: length - tail - 1]}…{line[-tail:]}"


def excerpt(text: str, length: int) -> str:
    """Return `text`; if it has more than `length` characters, its middle is left out."""
    if len(text) <= length:
        return text
    head, tail = length // 3, length - length // 3
    return f"{text[:head]}\n… {len(text) - length:,} characters …\n{text[-tail:]}"


def _exponent(value: float) -> int:
    return math.floor(math.log10(abs(value)))


def _scientific(value: float, digits: int, short: bool = False) -> str:
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    if short and "." in mantissa:
        mantissa = mantissa.rstrip("0").rstrip(".")
    return f"{_replace_minus(mantissa)} {TIMES} {power_of_ten(int(exponent))}"


def _replace_minus(text: str) -> str:
    return text.replace("-", MINUS)
