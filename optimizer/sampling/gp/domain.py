"""Points of a search space as rows of numbers, the input of the Gaussian process.

A number is scaled to [0, 1]. If its distribution has `log`, the logarithm of the number is scaled
instead. A choice is encoded as its index. In a canonical row, each number encodes a possible value,
and inactive parameters have their default. So points that differ only in inactive parameters have
the same canonical row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
_SAME = 1e-9  # difference between equal numbers that were computed differently
COUNTABLE = 50  # a parameter with more values is searched as a continuous one, then rounded


@dataclass(frozen=True)
class Column:
    """One parameter's encoding. The numbers (or logarithms) `low` and `high` become 0 and 1."""

    distribution: BaseDistribution
    low: float
    high: float

    @classmethod
    def from_distribution(cls, distribution: BaseDistribution) -> Column:
        """Return the column of a parameter with this distribution."""
        if isinstance(distribution, CategoricalDistribution):
            return cls(distribution, 0.0, 1.0)
        assert isinstance(distribution, FloatDistribution | IntDistribution)
        half = (distribution.step or 0) / 2  # each value of a grid has the same share of [0, 1]
        low, high = distribution.low - half, distribution.high + half
        if distribution.log:
            low, high = float(np.log(low)), float(np.log(high))
        return cls(distribution, low, high)

    @property
    def is_categorical(self) -> bool:
        """True if the parameter's values have no order."""
        return isinstance(self.distribution, CategoricalDistribution)

    @property
    def count(self) -> int | None:
        """The number of the parameter's values, or None if they can't be counted."""
        if isinstance(self.distribution, CategoricalDistribution):
            return len(self.distribution.choices)
        assert isinstance(self.distribution, FloatDistribution | IntDistribution)
        if self.distribution.step is None:
            return 1 if self.distribution.single() else None
        span = self.distribution.high - self.distribution.low
        return round(span / self.distribution.step) + 1

    def encode(self, values: Any) -> Array:
        """Encode numbers, or the indices of choices."""
        numbers = np.asarray(values, dtype=float)
        if self.is_categorical:
            return numbers
        if self._is_log:
            numbers = np.log(numbers)
        if self.high == self.low:
            return np.zeros_like(numbers)
        return np.asarray((numbers - self.low) / (self.high - self.low))

    def decode(self, encoded: Array) -> Array:
        """Return the possible numbers (or indices of choices) that are nearest to `encoded`."""
        if self.is_categorical:
            return np.clip(np.rint(encoded), 0, (self.count or 1) - 1)
        assert isinstance(self.distribution, FloatDistribution | IntDistribution)
        low, high = self.distribution.low, self.distribution.high
        numbers = self.low + np.clip(encoded, 0.0, 1.0) * (self.high - self.low)
        if self._is_log:
            numbers = np.exp(numbers)
            numbers = np.where(encoded <= 0.0, low, np.where(encoded >= 1.0, high, numbers))
        if self.distribution.step is not None:
            step = self.distribution.step
            numbers = low + np.rint((numbers - low) / step) * step
        return np.clip(numbers, low, high)

    @property
    def _is_log(self) -> bool:
        return bool(getattr(self.distribution, "log", False))


class Domain:
    """A search space in the form that the Gaussian process uses, with one column per parameter."""

    def __init__(
        self,
        distributions: Mapping[str, BaseDistribution],
        conditions: Mapping[str, Mapping[str, Sequence[Any]]] | None = None,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        """Take the parameters' distributions, conditions and defaults.

        `conditions` has, for each conditional parameter, the values of other parameters that
        activate it. The conditions must have no cycles. If `defaults` lacks a parameter, its
        default is the middle of its range, or its first choice.
        """
        self.columns = {
            name: Column.from_distribution(item) for name, item in distributions.items()
        }
        self.names = list(self.columns)
        columns = list(self.columns.values())
        self.is_categorical: Mask = np.array([column.is_categorical for column in columns])
        counts = [column.count for column in columns]
        self.is_continuous: Mask = np.array(
            [
                not column.is_categorical and (count is None or count > COUNTABLE)
                for column, count in zip(columns, counts, strict=True)
            ]
        )
        middle = [0.0 if column.is_categorical else 0.5 for column in columns]
        self.defaults: Array = np.array(middle)
        self.defaults = self.encode([defaults or {}])[0]
        self._conditions = {
            name: {other: self._encode(other, values) for other, values in when.items()}
            for name, when in (conditions or {}).items()
        }
        parents_first = TopologicalSorter(self._conditions).static_order()
        self._order = [name for name in parents_first if name in self._conditions]

    @property
    def size(self) -> int:
        """The number d of parameters."""
        return len(self.names)

    def encode(self, points: Sequence[Mapping[str, Any]]) -> Array:
        """Return the rows of n points, as an n × d matrix. A missing parameter gets its default."""
        rows = np.tile(self.defaults, (len(points), 1))
        for place, name in enumerate(self.names):  # by columns: there may be ten thousand points
            known = [i for i, point in enumerate(points) if name in point]
            if known:
                rows[known, place] = self._encode(name, [points[i][name] for i in known])
        return rows

    def decode(self, row: Array) -> dict[str, Any]:
        """Return the values of all parameters that `row` encodes."""
        return {
            name: _value(column.distribution, float(column.decode(row[place])))
            for place, (name, column) in enumerate(self.columns.items())
        }

    def canonical(self, rows: Array) -> Array:
        """Return the canonical rows that are nearest to m rows, as a new m × d matrix."""
        found = np.empty_like(rows)
        for place, column in enumerate(self.columns.values()):
            found[:, place] = column.encode(column.decode(rows[:, place]))
        return np.where(self.active(found), found, self.defaults)

    def active(self, rows: Array) -> Mask:
        """Return which parameters are active in each of m rows, as an m × d matrix."""
        found = np.ones(rows.shape, dtype=bool)
        for name in self._order:
            place = self.names.index(name)
            for other, values in self._conditions[name].items():
                parent = self.names.index(other)
                allowed = np.abs(rows[:, parent, None] - values) < _SAME
                found[:, place] &= found[:, parent] & allowed.any(axis=1)
        return found

    def spread(self, unit: Array) -> Array:
        """Map m points of the unit cube to canonical rows.

        Each choice of a categorical parameter gets an equal part of the interval [0, 1).
        """
        rows = unit.copy()
        for place, column in enumerate(self.columns.values()):
            if column.is_categorical:
                rows[:, place] = np.floor(unit[:, place] * (column.count or 1))
        return self.canonical(rows)

    def _encode(self, name: str, values: Sequence[Any]) -> Array:
        column = self.columns[name]
        if isinstance(column.distribution, CategoricalDistribution):
            return np.array([column.distribution.to_internal_repr(value) for value in values])
        return column.encode(values)


def _value(distribution: BaseDistribution, number: float) -> Any:
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices[int(number)]
    return round(number) if isinstance(distribution, IntDistribution) else number
