"""The axes of the report's pictures: where values lie, and the texts beside them."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import quantiles
from typing import Any

from trialfleet.workflows.report.formatting import number, power_of_ten, setting, shortened
from trialfleet.workflows.report.model import ParameterRange

LABEL_LENGTH = 24
CHOICE_LENGTH = 14
HOVER_LENGTH = 60
LOG_SPAN = 1e3  # a positive quantity over more than this is drawn on a logarithmic axis
FEW = 8  # values, too few to call one of them an outlier
FAR = 5.0  # interquartile ranges beyond the quartiles: what lies farther is left outside at first
MOST_TICKS = 5
MARGIN = 0.06  # of an axis, beyond what lies on it


@dataclass(frozen=True)
class Axis:
    """How a quantity is drawn: plotly's axis, and how many points lie outside its first range."""

    spec: Mapping[str, Any]
    outside: int


def plotly_text(text: str, length: int) -> str:
    """`text` in one line as plotly shows it literally: it understands some HTML tags in texts."""
    return html.escape(shortened(text, length), quote=False)


def short(value: float | None) -> float | None:
    """Seven significant digits: less than a pixel off, and half the bytes."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.7g}")


def value_axis(values: Sequence[float], keep: Sequence[float]) -> Axis:
    """An axis on which most of `values`, and all of `keep`, can be told apart."""
    if values and min(values) > 0 and max(values) / min(values) > LOG_SPAN:
        return Axis(log_axis(min(values), max(values)), 0)
    low, high = _bulk(values)
    inside = [value for value in values if low <= value <= high] + list(keep)
    outside = sum(not min(inside) <= value <= max(inside) for value in values)
    if outside == 0:
        return Axis({}, 0)
    return Axis({"range": [short(end) for end in _around(min(inside), max(inside))]}, outside)


def _bulk(values: Sequence[float]) -> tuple[float, float]:
    """Between what most values lie; between infinities where nothing sticks out."""
    if len(values) < FEW:
        return -math.inf, math.inf
    first, _, third = quantiles(values, n=4)
    reach = FAR * (third - first) or math.inf
    return first - reach, third + reach


def coordinate(value: Any, range_: ParameterRange) -> float | None:
    """Where a parameter's value lies on `parameter_axis`; None if it isn't on it."""
    if range_.choices is None:
        return short(value) if isinstance(value, int | float) else None
    same = (
        at
        for at, choice in enumerate(range_.choices)
        if type(choice) is type(value) and choice == value  # 1, 1.0 and True are three choices
    )
    return next(same, None)


def parameter_axis(range_: ParameterRange) -> dict[str, Any]:
    """The axis of a parameter: its range, or its choices side by side."""
    if range_.choices is not None:
        labels = [plotly_text(setting(choice), CHOICE_LENGTH) for choice in range_.choices]
        return {
            **_ticks(range(len(labels)), labels),
            "range": [-0.5, len(labels) - 0.5],
            "showgrid": False,
        }
    assert range_.low is not None, range_
    assert range_.high is not None, range_
    low, high = float(range_.low), float(range_.high)
    if range_.log:
        return {**log_axis(low, high), "range": _around(math.log10(low), math.log10(high))}
    few = isinstance(range_.low, int) and high - low <= 2 * MOST_TICKS
    return {"range": _around(low, high), **({"dtick": 1} if few else {"nticks": MOST_TICKS})}


def _around(low: float, high: float) -> list[float]:
    """From `low` to `high` with room for a marker at either end."""
    room = MARGIN * (high - low)
    return [low - room, high + room]


def log_axis(low: float, high: float) -> dict[str, Any]:
    """A logarithmic axis with at most a few ticks, at powers of ten or 1, 2, 5 between them."""
    first, last = max(-307, math.floor(math.log10(low))), min(308, math.ceil(math.log10(high)))
    decades = [at for at in range(first, last + 1) if low <= 10.0**at <= high]
    if len(decades) >= 3:
        step = math.ceil(len(decades) / MOST_TICKS)
        places = [10.0**at for at in decades[::step]]
    else:
        steps = [1, 2, 5] if high / low > 4 else range(1, 10)
        places = [m * 10.0**at for at in range(first, last + 1) for m in steps]
        places = [place for place in places if low <= place <= high]
    return {"type": "log", **_ticks(places, [_log_label(place) for place in places])}


def _log_label(place: float) -> str:
    exponent = round(math.log10(place))
    if not 1e-3 <= place <= 1e4 and math.isclose(place, 10.0**exponent):
        return power_of_ten(exponent)
    return number(place, 3)


def _ticks(places: Sequence[float], labels: Sequence[str]) -> dict[str, Any]:
    return {"tickvals": list(places), "ticktext": list(labels)}
