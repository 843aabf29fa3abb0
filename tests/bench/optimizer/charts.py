"""Charts of curves as SVG: small files, readable on light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 56, 170, 12, 44
# Okabe and Ito 2008: distinguishable with colour blindness
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#000000")


@dataclass(frozen=True)
class Curve:
    """A line over x = 1, 2, …, and the band around it.

    Attributes:
        name: label at its end.
        values: a logarithmic scale shows only positive ones.
        low: lower edge of the band.
        high: upper edge of the band.
    """

    name: str
    values: Array
    low: Array
    high: Array


@dataclass(frozen=True)
class _Scale:
    """The vertical scale."""

    low: float
    high: float
    linear: bool

    @classmethod
    def of(cls, curves: Sequence[Curve], *, linear: bool) -> _Scale:
        high = max(float(curve.values.max()) for curve in curves)
        if linear:
            return cls(0.0, max(float(curve.high.max()) for curve in curves) or 1.0, linear)
        positive = [float(v) for curve in curves for v in curve.values if v > 0]
        return cls(max(min(positive), high / 1000), high, linear)

    def share(self, value: float) -> float:
        """Return the height of a value, as a share of the chart's height."""
        if self.linear:
            return min(value, 1.05 * self.high) / (1.05 * self.high)
        bottom, top = math.log10(self.low) - 0.05, math.log10(self.high) + 0.05
        return (math.log10(max(value, self.low)) - bottom) / (top - bottom)

    def marks(self) -> list[float]:
        """Return the values of the grid lines."""
        if not self.linear:
            return _marks(self.low, self.high)
        step = 0.1 if self.high > 0.4 else 0.05
        return [float(f"{i * step:g}") for i in range(int(self.high / step) + 1)]


def chart(curves: Sequence[Curve], *, x: str, y: str, linear: bool = False) -> str:
    """Return the SVG of curves.

    Args:
        curves: at most as many as there are colours.
        x: label of the horizontal axis.
        y: label of the vertical axis.
        linear: the vertical axis shows shares, 0 to 1; otherwise it is logarithmic.
    """
    length = max(len(curve.values) for curve in curves)
    scale = _Scale.of(curves, linear=linear)

    def across(trial: float) -> float:
        return LEFT + (trial - 1) / max(1, length - 1) * (WIDTH - LEFT - RIGHT)

    def upwards(value: float) -> float:
        return HEIGHT - BOTTOM - scale.share(value) * (HEIGHT - TOP - BOTTOM)

    def points(values: Array) -> list[str]:
        return [f"{across(i):.1f},{upwards(float(v)):.1f}" for i, v in enumerate(values, start=1)]

    namespace = "http://www.w3.org/2000/svg"
    font = 'font-family="sans-serif" font-size="12"'
    parts = [
        f'<svg xmlns="{namespace}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" {font}>',
        f"<title>{escape(y)} by {escape(x)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
    ]
    for mark in scale.marks():
        place = f"{upwards(mark):.1f}"
        parts.append(f'<path d="M{LEFT} {place}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{place}" dy="4" text-anchor="end">{mark:g}</text>')
    for trial in [1, *range(10, length + 1, 10)]:
        place = f"{across(trial):.1f}"
        parts.append(f'<text x="{place}" y="{HEIGHT - 26}" text-anchor="middle">{trial}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle:g}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x)}</text>')
    parts.append(
        f'<text transform="translate(14 {HEIGHT / 2:g}) rotate(-90)" text-anchor="middle">'
        f"{escape(y)}</text>"
    )
    for curve, colour in zip(curves, COLOURS, strict=False):
        band = " ".join([*points(curve.low), *reversed(points(curve.high))])
        parts.append(f'<polygon points="{band}" fill="{colour}" opacity="0.1"/>')
        line = " ".join(points(curve.values))
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
    ends = _apart([upwards(float(curve.values[-1])) for curve in curves])
    for curve, colour, end in zip(curves, COLOURS, ends, strict=False):
        parts.append(
            f'<text x="{WIDTH - RIGHT + 8}" y="{end:.1f}" dy="4" fill="{colour}">'
            f"{escape(curve.name)}</text>"
        )
    return "\n".join([*parts, "</svg>", ""])


def _marks(low: float, high: float) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found = [part * 10.0**decade for decade in decades for part in (1, 2, 5)]
    return [float(f"{mark:g}") for mark in found if low <= mark <= high]


def _apart(places: Sequence[float], least: float = 15.0) -> list[float]:
    """Return the heights of labels, moved down so that the labels don't overlap."""
    found = list(places)
    previous = -math.inf
    for i in sorted(range(len(places)), key=places.__getitem__):
        found[i] = previous = max(places[i], previous + least)
    overflow = max(0.0, max(found) - (HEIGHT - BOTTOM))
    return [place - overflow for place in found]
