"""A tuned parameter of a study file: its range or choices, its default, and the checks of these."""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, LiteralString, Self

from pydantic import BeforeValidator, Field, PlainValidator, model_validator
from pydantic_core import PydanticCustomError

from trialfleet.objective import is_number
from trialfleet.sections import Section, refuse

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


BOUNDS = {"min": "low", "minimum": "low", "lower": "low", "start": "low", "from": "low"} | {
    "max": "high", "maximum": "high", "upper": "high", "end": "high", "to": "high"
}  # fmt: skip


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

    @abstractmethod
    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield each fault of this parameter: the name of the wrong field, and what is wrong."""

    def from_unit(self, u: float) -> Scalar:
        """Map a number in [0, 1) evenly to the possible values."""
        assert self.count is not None
        return self.nth(min(int(u * self.count), self.count - 1))

    @model_validator(mode="after")
    def _check(self) -> Self:
        found = [((field,), text, getattr(self, field)) for field, text in self.problems()]
        if found:
            refuse(type(self).__name__, list(found))
        return self


class FloatParameter(Parameter):
    """A real number between two bounds, both included."""

    other_words: ClassVar[Mapping[str, str]] = BOUNDS
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
        return (
            int((_exact_decimal(self.high) - _exact_decimal(self.low)) / _exact_decimal(self.step))
            + 1
        )

    def nth(self, index: int) -> float:
        """Return low + index · step, computed exactly and then rounded to a double."""
        assert self.step is not None
        return float(_exact_decimal(self.low) + index * _exact_decimal(self.step))

    def from_unit(self, u: float) -> Scalar:
        """Map a number in [0, 1) to a possible value, evenly in the logarithm if `log` is set."""
        if self.step is not None:
            return super().from_unit(u)
        if not self.log:
            return self._clip(self.low * (1 - u) + self.high * u)
        return self._clip(math.exp(math.log(self.low) * (1 - u) + math.log(self.high) * u))

    def resolve(self, value: object) -> float | None:
        """Return the possible value that equals `value` up to rounding, or None."""
        if not is_number(value):
            return None
        nearest = self.nearest(value)
        tolerance = 0.0 if self.step is None else ON_GRID * self.step
        return nearest if abs(nearest - value) <= tolerance else None

    def nearest(self, value: Scalar) -> float:
        """Return the possible value that is nearest to `value`."""
        clipped = self._clip(float(value))
        if self.step is None:
            return clipped
        assert self.count is not None
        index = round((clipped - self.low) / self.step)
        return self.nth(min(max(index, 0), self.count - 1))

    def fallback(self) -> float:
        """Return `default`. Without a default, return the middle of the range."""
        if self.default is not None:
            return self.nearest(self.default)
        middle = self.from_unit(0.5)
        return self.nearest(float(f"{middle:.12g}"))  # 0.001, not 0.0010000000000000002

    def extreme_values(self) -> Sequence[Scalar]:
        """Return the ends of the range."""
        return self.low, self.high

    def distribution(self) -> FloatDistribution:
        """Return Optuna's distribution of this parameter."""
        from optuna.distributions import FloatDistribution

        return FloatDistribution(self.low, self.high, log=self.log, step=self.step)

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield each fault of this parameter: the name of the wrong field, and what is wrong."""
        yield from _range_problems(self, self.step is not None, self._double_problems())
        if self.log and self.low <= 0:
            yield "low", f"must be above 0 with log: true, not {self.low}"

    def _double_problems(self) -> Iterator[tuple[str, str]]:
        """Yield a fault if doubles can't represent the range or the step."""
        largest, step = max(abs(self.low), abs(self.high)), self.step or 0.0
        if not math.isfinite(self.high - self.low + step):
            most = f"{sys.float_info.max:.2g}"
            yield "high", f"must be less than {most} above low ({self.low}), not {self.high}"
        elif self.high - self.low < max(NARROWEST * largest, sys.float_info.min):
            least = f"{max(NARROWEST * largest, sys.float_info.min):.2g}"
            yield "high", f"must be at least {least} above low ({self.low}), not {self.high}"
        elif 0 < step < FINEST_STEP * largest:
            least = f"{FINEST_STEP * largest:.2g}"
            yield "step", f"{step} is too fine for this range: use {least} or more, or no step"

    def _clip(self, value: float) -> float:
        return min(max(value, self.low), self.high)


class IntParameter(Parameter):
    """A whole number between two bounds, both included."""

    other_words: ClassVar[Mapping[str, str]] = BOUNDS
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

    def from_unit(self, u: float) -> Scalar:
        """Map a number in [0, 1) to a possible value, evenly in the logarithm if `log` is set."""
        if not self.log:
            return super().from_unit(u)
        lowest, highest = math.log(self.low - 0.5), math.log(self.high + 0.5)
        return self.nearest(math.exp(lowest * (1 - u) + highest * u))

    def resolve(self, value: object) -> int | None:
        """Return the possible value that equals `value`, or None."""
        if not is_number(value):
            return None
        return self.nearest(value) if self.nearest(value) == value else None

    def nearest(self, value: Scalar) -> int:
        """Return the possible value that is nearest to `value`."""
        clipped = min(max(float(value), self.low), self.high)
        return self.nth(round((clipped - self.low) / self._stride))

    def fallback(self) -> int:
        """Return `default`. Without a default, return the middle of the range."""
        if self.default is not None:
            return self.default
        if self.log:
            return self.nearest(math.sqrt(self.low) * math.sqrt(self.high))
        return self.nth((self.count - 1) // 2)

    def extreme_values(self) -> Sequence[Scalar]:
        """Return the ends of the range."""
        return self.low, self.high

    def distribution(self) -> IntDistribution:
        """Return Optuna's distribution of this parameter."""
        from optuna.distributions import IntDistribution

        return IntDistribution(self.low, self.high, log=self.log, step=self._stride)

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield each fault of this parameter: the name of the wrong field, and what is wrong."""
        yield from _range_problems(self, self.step not in {None, 1}, self._width_problems())
        if self.log and self.low < 1:
            yield "low", f"must be at least 1 with log: true, not {self.low}"

    def _width_problems(self) -> Iterator[tuple[str, str]]:
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

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield each fault of this parameter: the name of the wrong field, and what is wrong."""
        if len(self.choices) < 2:
            yield "choices", "needs two values or more; write a single value as a constant"
        if (count := len(self.choices)) > MOST_CHOICES:
            most = f"at most {MOST_CHOICES:,}: the optimiser learns each choice separately"
            yield "choices", f"has {count:,} choices; {most}"
        # Optuna finds a choice by ==, which makes 1 equal to true, and 1.0 to 1
        first = {x: i for i, x in reversed(list(enumerate(self.choices)))}
        twice = [x for i, x in enumerate(self.choices) if first[x] != i]
        if twice:
            hint = "" if isinstance(twice[0], str) else " (true equals 1)"
            yield "choices", f"must all differ, but {twice[0]!r} equals an earlier choice{hint}"
        if self.default is not None and self.resolve(self.default) is None:
            yield "default", f"must be one of the choices {self.choices}, not {self.default!r}"


def _exact_decimal(number: float) -> Decimal:
    return Decimal(repr(number))


def _range_problems(
    given: FloatParameter | IntParameter, stepped: bool, of_width: Iterator[tuple[str, str]]
) -> Iterator[tuple[str, str]]:
    if given.low >= given.high:
        yield "high", f"must be above low, which is {given.low}; write a fixed value as a constant"
        return
    if given.step is not None and given.step <= 0:
        yield "step", f"must be above 0, not {given.step}"
        return
    if given.log and stepped:
        yield "step", "can't be combined with log: true"
        return
    if problem := next(of_width, None):
        yield problem
        return
    if given.step is not None and (
        _exact_decimal(given.high) - _exact_decimal(given.low)
    ) % _exact_decimal(given.step):
        steps = (given.count or 1) - 1
        choices = f"{given.nth(steps)} or {given.nth(steps + 1)}"
        yield "high", f"must be low plus a whole number of steps: {choices}, not {given.high}"
        return
    if given.default is not None and given.resolve(given.default) is None:
        grid = f" in steps of {given.step}" if given.step is not None else ""
        text = f"must be from {given.low} to {given.high}{grid}, not {given.default}"
        yield "default", text
