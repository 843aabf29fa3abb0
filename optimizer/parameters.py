"""A tuned parameter of a study file: its range or choices, its default, and the checks of these."""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import islice
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, LiteralString

from pydantic import BeforeValidator, Field, PlainValidator
from pydantic_core import PydanticCustomError

from trialfleet.objective import is_number
from trialfleet.sections import Refused, Section

if TYPE_CHECKING:  # optuna takes a second to import; reading a study file does not need it
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

MOST_CHOICES = 1_000  # the model has one input per choice: with 10,000 a suggestion takes minutes
Scalar = str | bool | int | float


def _check_scalar(given: object) -> Scalar:
    if not isinstance(given, Scalar):
        raise PydanticCustomError("scalar", "must be text, a number, true or false")
    if problem := scalar_problem(given):
        raise PydanticCustomError("scalar", problem)
    return given


def scalar_problem(given: Scalar) -> LiteralString | None:
    """Return why a database or a sampler can't represent `given`, or None if both can."""
    if isinstance(given, str):
        is_text = not any("\ud800" <= letter <= "\udfff" for letter in given)
        return None if is_text else "must be Unicode text without unpaired surrogates"
    try:
        return None if math.isfinite(given) else "must be finite"
    except OverflowError:
        return "must be within ±1.8e308, the range of a double"


# pydantic's own check of a union reports an error for each type in the union
GivenScalar = Annotated[Scalar, PlainValidator(_check_scalar, json_schema_input_type=Scalar)]


def _wrap_in_list(given: object) -> object:
    return [given] if isinstance(given, Scalar) else given


_Values = Annotated[list[GivenScalar], Field(min_length=1, max_length=MOST_CHOICES)]
Condition = Annotated[
    dict[
        str,
        Annotated[_Values, BeforeValidator(_wrap_in_list, json_schema_input_type=Scalar | _Values)],
    ],
    Field(
        min_length=1,
        description="Use this parameter only if each parameter listed here has its given value, "
        "or one of its given values.",
    ),
]

LARGEST_INT = 2**53  # storages and samplers keep doubles: not every larger integer is one
FINEST_STEP = 1e-7  # relative to the larger bound: doubles can't represent finer steps
NARROWEST = 1e-12  # relative to the larger bound: a narrower range has only a few doubles
ON_GRID = 1e-6  # relative to a step: 0.1 + 0.2 counts as 0.3


def are_equal(left: Scalar, right: Scalar) -> bool:
    """Return whether two values are the same setting. For example, 1 equals 1.0, but not `true`."""
    return isinstance(left, bool) == isinstance(right, bool) and left == right


class Parameter(Section, ABC):
    """The base of the three kinds of parameter: float, int and categorical."""

    if TYPE_CHECKING:  # declared in each kind, so that it is the last field in a dump
        when: Condition | None

    @property
    @abstractmethod
    def count(self) -> int | None:
        """The number of possible values, or None if they can't be counted."""

    @abstractmethod
    def nth(self, index: int) -> Scalar:
        """Return the possible value at position `index`, counted from 0."""


class _Number(Parameter):
    """The base of the two kinds of number between two bounds, both included."""

    other_words: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("min", "minimum", "lower", "start", "from"), "low"),
        **dict.fromkeys(("max", "maximum", "upper", "end", "to"), "high"),
    }
    no_steps: ClassVar[set[int | None]] = {None}  # values of `step` that exclude no number

    if TYPE_CHECKING:
        low: float
        high: float
        log: bool
        step: float | None
        default: float | None

    @abstractmethod
    def nth(self, index: int) -> float:
        """Return low + index · step."""

    @abstractmethod
    def nearest(self, value: Scalar) -> float:
        """Return the possible value that is nearest to `value`."""

    @abstractmethod
    def _width_faults(self) -> Iterator[tuple[str, str]]:
        """Yield a fault if doubles can't represent the range or the step."""

    def resolve(self, value: object) -> float | None:
        """Return the possible value that equals `value` up to rounding, or None."""
        if not is_number(value):
            return None
        nearest = self.nearest(value)
        tolerance = ON_GRID * self.step if isinstance(self.step, float) else 0.0
        return nearest if abs(nearest - value) <= tolerance else None

    def fallback(self) -> float:
        """Return `default`. Without a default, return the middle of the range."""
        if self.default is not None:
            return self.nearest(self.default)
        if self.count is not None and not self.log:
            return self.nth((self.count - 1) // 2)
        low, high = self.low, self.high
        middle = math.sqrt(low) * math.sqrt(high) if self.log else low / 2 + high / 2
        return self.nearest(float(f"{middle:.12g}"))  # 0.001, not 0.0010000000000000002

    def extreme_values(self) -> Sequence[Scalar]:
        """Return the ends of the range."""
        return self.low, self.high

    def problems(self) -> Iterator[Refused]:
        """Yield the first fault of the range, and that of a logarithm of 0 or less."""
        for field, text in islice(self._range_faults(), 1):
            yield (field,), text, getattr(self, field)
        if self.log and self.low <= 0:
            yield ("low",), f"must be above 0 with log: true, not {self.low}", self.low

    def _range_faults(self) -> Iterator[tuple[str, str]]:
        """Yield faults: the wrong field, and what is wrong. Only the first is certain."""
        low, high, step = self.low, self.high, self.step
        if low >= high:
            yield "high", f"must be above low, which is {low}; write a fixed value as a constant"
        if step is not None and step <= 0:
            yield "step", f"must be above 0, not {step}"
        if self.log and step not in self.no_steps:
            yield "step", "can't be combined with log: true"
        yield from self._width_faults()
        if step is not None and (_exact(high) - _exact(low)) % _exact(step):
            steps = (self.count or 1) - 1
            choices = f"{self.nth(steps)} or {self.nth(steps + 1)}"
            yield "high", f"must be low plus a whole number of steps: {choices}, not {high}"
        if self.default is not None and self.resolve(self.default) is None:
            grid = f" in steps of {step}" if step is not None else ""
            yield "default", f"must be from {low} to {high}{grid}, not {self.default}"


class FloatParameter(_Number):
    """A real number between two bounds, both included."""

    type: Literal["float"] = Field(description="The kind of parameter.")
    low: float = Field(description="Smallest value.")
    high: float = Field(description="Largest value.")
    log: bool = Field(
        default=False, description="Search evenly in the logarithm; low must be above 0."
    )
    step: float | None = Field(None, description="Only low, low + step, low + 2 step, …")
    default: float | None = Field(None, description="Value of the region's first trial.")
    when: Condition | None = None

    @property
    def count(self) -> int | None:
        """The number of possible values, or None if there is no `step`."""
        if self.step is None:
            return None
        return int((_exact(self.high) - _exact(self.low)) / _exact(self.step)) + 1

    def nth(self, index: int) -> float:
        """Return low + index · step, computed exactly and then rounded to a double."""
        assert self.step is not None
        return float(_exact(self.low) + index * _exact(self.step))

    def nearest(self, value: Scalar) -> float:
        """Return the possible value that is nearest to `value`."""
        clipped = min(max(float(value), self.low), self.high)
        if self.step is None:
            return clipped
        assert self.count is not None
        index = round((clipped - self.low) / self.step)
        return self.nth(min(max(index, 0), self.count - 1))

    def distribution(self) -> FloatDistribution:
        """Return Optuna's distribution of this parameter."""
        from optuna.distributions import FloatDistribution

        return FloatDistribution(self.low, self.high, log=self.log, step=self.step)

    def _width_faults(self) -> Iterator[tuple[str, str]]:
        largest, step = max(abs(self.low), abs(self.high)), self.step or 0.0
        narrowest = max(NARROWEST * largest, sys.float_info.min)
        if not math.isfinite(self.high - self.low + step):
            most = f"{sys.float_info.max:.2g}"
            yield "high", f"must be less than {most} above low ({self.low}), not {self.high}"
        elif self.high - self.low < narrowest:
            text = f"must be at least {narrowest:.2g} above low ({self.low}), not {self.high}"
            yield "high", text
        elif 0 < step < FINEST_STEP * largest:
            least = f"{FINEST_STEP * largest:.2g}"
            yield "step", f"{step} is too fine for this range: use {least} or more, or no step"


class IntParameter(_Number):
    """A whole number between two bounds, both included."""

    no_steps: ClassVar[set[int | None]] = {None, 1}
    type: Literal["int"] = Field(description="The kind of parameter.")
    low: int = Field(ge=-LARGEST_INT, le=LARGEST_INT, description="Smallest value.")
    high: int = Field(ge=-LARGEST_INT, le=LARGEST_INT, description="Largest value.")
    log: bool = Field(
        default=False, description="Search evenly in the logarithm; low must be above 0."
    )
    step: int | None = Field(None, description="Only low, low + step, low + 2 step, …")
    default: int | None = Field(None, description="Value of the region's first trial.")
    when: Condition | None = None

    @property
    def count(self) -> int:
        """The number of possible values."""
        return (self.high - self.low) // self._stride + 1

    def nth(self, index: int) -> int:
        """Return low + index · step."""
        return self.low + index * self._stride

    def nearest(self, value: Scalar) -> int:
        """Return the possible value that is nearest to `value`."""
        clipped = min(max(float(value), self.low), self.high)
        return self.nth(round((clipped - self.low) / self._stride))

    def distribution(self) -> IntDistribution:
        """Return Optuna's distribution of this parameter."""
        from optuna.distributions import IntDistribution

        return IntDistribution(self.low, self.high, log=self.log, step=self._stride)

    def _width_faults(self) -> Iterator[tuple[str, str]]:
        if self.high - self.low > LARGEST_INT:
            text = f"must be at most {LARGEST_INT} above low ({self.low}), not {self.high}"
            yield "high", text

    @property
    def _stride(self) -> int:
        return 1 if self.step is None else self.step


class CategoricalParameter(Parameter):
    """One of several values that have no order."""

    other_words: ClassVar[Mapping[str, str]] = {"values": "choices", "options": "choices"}
    type: Literal["categorical"] = Field(description="The kind of parameter.")
    choices: list[GivenScalar] = Field(description="The values, all different.")
    default: GivenScalar | None = Field(None, description="Value of the region's first trial.")
    when: Condition | None = None

    @property
    def count(self) -> int:
        """The number of choices."""
        return len(self.choices)

    def nth(self, index: int) -> Scalar:
        """Return the choice at position `index`, counted from 0."""
        return self.choices[index]

    def resolve(self, value: object) -> Scalar | None:
        """Return the choice that equals `value`, or None."""
        if not isinstance(value, str | int | float):
            return None
        return next((choice for choice in self.choices if are_equal(choice, value)), None)

    def nearest(self, value: Scalar) -> Scalar:
        """Return the choice that equals `value`, which must be one of the choices."""
        choice = self.resolve(value)
        assert choice is not None, f"{value!r} is not in {self.choices}"
        return choice

    def fallback(self) -> Scalar:
        """Return `default`. Without a default, return the first choice."""
        return self.choices[0] if self.default is None else self.nearest(self.default)

    def extreme_values(self) -> Sequence[Scalar]:
        """Return the choices."""
        return self.choices

    def distribution(self) -> CategoricalDistribution:
        """Return Optuna's distribution of this parameter."""
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(self.choices)

    def problems(self) -> Iterator[Refused]:
        """Yield faults of the choices and of the default."""
        place, given = ("choices",), self.choices
        if len(given) < 2:
            yield place, "needs two values or more; write a single value as a constant", given
        if (count := len(given)) > MOST_CHOICES:
            most = f"at most {MOST_CHOICES:,}: the optimiser learns each choice separately"
            yield place, f"has {count:,} choices; {most}", given
        # Optuna finds a choice by ==, which makes 1 equal to true, and 1.0 to 1
        first = {x: i for i, x in reversed(list(enumerate(given)))}
        twice = [x for i, x in enumerate(given) if first[x] != i]
        if twice:
            hint = "" if isinstance(twice[0], str) else " (true equals 1)"
            text = f"must all differ, but {twice[0]!r} equals an earlier choice{hint}"
            yield place, text, given
        if self.default is not None and self.resolve(self.default) is None:
            text = f"must be one of the choices {given}, not {self.default!r}"
            yield ("default",), text, self.default


def _exact(number: float) -> Decimal:
    return Decimal(repr(number))
