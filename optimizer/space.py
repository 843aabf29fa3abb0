"""The search space of a study: parameters, constants, conditions (`when`), and their checks.

A point of the space has three forms:

active     only the parameters whose condition (`when`) holds
canonical  all parameters, inactive ones at their default: the input of the sampler's model. Two
           points with the same active parameters have the same canonical form
complete   the active parameters and the study's constants: what a trial gets
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import PlainValidator, RootModel, model_validator

from trialfleet.errors import join_names
from trialfleet.optimizer.parameters import (
    CategoricalParameter,
    FloatParameter,
    IntParameter,
    Parameter,
    Scalar,
    are_equal,
    scalar_problem,
)
from trialfleet.sections import refuse
from trialfleet.spelling import did_you_mean

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

__all__ = ["CategoricalParameter", "FloatParameter", "IntParameter", "Scalar", "SearchSpace"]

_NAMED = 10  # choices listed in a message
Tunable = FloatParameter | IntParameter | CategoricalParameter
KINDS: dict[str, type[Tunable]] = {
    "float": FloatParameter,
    "int": IntParameter,
    "categorical": CategoricalParameter,
}
OTHER_KINDS = {"double": "float", "real": "float", "number": "float", "uniform": "float"} | {
    "integer": "int", "choice": "categorical", "enum": "categorical", "bool": "categorical"
}  # fmt: skip
MOST_PARAMETERS = 200  # tuned ones: far more than a few hundred trials can distinguish
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}")
Problem = tuple[tuple[str | int, ...], str, object]


def _parse(given: Any) -> Any:
    if isinstance(given, Parameter):
        return given
    if isinstance(given, Mapping):
        kind = given.get("type")
        if not isinstance(kind, str) or kind not in KINDS:
            place = ("type",) if "type" in given else ()
            guess = did_you_mean(kind, KINDS, OTHER_KINDS) if isinstance(kind, str) else ""
            refuse("Parameter", [(place, f"type must be one of {', '.join(KINDS)}{guess}", kind)])
        return KINDS[kind].model_validate(dict(given))
    if not isinstance(given, str | int | float):
        text = "must be a parameter (with a type) or a constant: text, a number, true or false"
        refuse("Parameter", [((), text, given)])
    if problem := scalar_problem(given):
        refuse("Parameter", [((), f"a constant {problem}", given)])
    return given


# Any: otherwise pydantic guesses the union's member when it serializes, and warns
Entry = Annotated[Any, PlainValidator(_parse, json_schema_input_type=Tunable | Scalar)]


class SearchSpace(RootModel[dict[str, Entry]]):
    """Parameters and constants by name, in the order of the study file.

    Raises:
        ValidationError: the search space is invalid. The error names the key of each fault.
    """

    @cached_property
    def parameters(self) -> dict[str, Tunable]:
        """All tuned parameters, including conditional ones."""
        return {name: entry for name, entry in self.root.items() if isinstance(entry, Tunable)}

    def constants(self) -> dict[str, Scalar]:
        """Return the constants, which every trial receives unchanged."""
        return {name: x for name, x in self.root.items() if not isinstance(x, Parameter)}

    def distributions(self) -> dict[str, BaseDistribution]:
        """Return Optuna's distribution of each parameter."""
        return {name: entry.distribution() for name, entry in self.parameters.items()}

    def defaults(self) -> dict[str, Scalar]:
        """Return each parameter's `default`, else the middle of its range or its first choice."""
        return dict(self._defaults)

    @cached_property
    def _defaults(self) -> dict[str, Scalar]:
        return {name: entry.fallback() for name, entry in self.parameters.items()}

    def active(self, values: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """Return the values of the active parameters, in the study file's order.

        A parameter that `values` lacks has its default. Names that aren't parameters are ignored.
        """
        full = self.defaults() | dict(values)
        known: dict[str, bool] = {}
        return {name: full[name] for name in self.parameters if self._is_active(name, full, known)}

    def canonical(self, values: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """Return a value for every parameter. An inactive parameter has its default."""
        return self.defaults() | self.active(values)

    def nearest(self, found: Mapping[str, Any]) -> dict[str, Scalar]:
        """Return the canonical point that is nearest to a sampler's proposal `found`."""
        return self.canonical({name: x.nearest(found[name]) for name, x in self.parameters.items()})

    def trial_params(self, values: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """Return what a trial gets: active parameters and constants, in the study file's order."""
        known = self.constants() | self.active(values)
        return {name: known[name] for name in self.root if name in known}

    def conditions(self) -> dict[str, dict[str, list[Scalar]]]:
        """Return, for each conditional parameter, the values of others that activate it."""
        return {
            name: {
                other: self._resolve_options(other, options)
                for other, options in entry.when.items()
            }
            for name, entry in self.parameters.items()
            if entry.when
        }

    def size(self) -> int | None:
        """Return the number of points if conditions are ignored, or None if it is infinite."""
        counts = [entry.count for entry in self.parameters.values()]
        return None if None in counts else math.prod(count or 0 for count in counts)

    def _is_active(self, name: str, values: Mapping[str, Scalar], known: dict[str, bool]) -> bool:
        if name not in known:
            when = self.parameters[name].when or {}
            known[name] = all(
                self._is_active(other, values, known)
                and any(are_equal(values[other], x) for x in self._resolve_options(other, options))
                for other, options in when.items()
            )
        return known[name]

    def _resolve_options(self, name: str, options: list[Scalar]) -> list[Scalar]:
        found = (self.parameters[name].resolve(option) for option in options)
        return [value for value in found if value is not None]

    @model_validator(mode="after")
    def _check(self) -> Self:
        problems = list(self._size_problems())
        if not problems:  # too many parameters would take too long
            problems = [*self._name_problems(), *self._reference_problems()]
        if not problems:  # the other checks rely on valid names
            problems = list(self._cycle_problems()) or list(self._reach_problems())
        if problems:
            refuse("SearchSpace", problems)
        return self

    def _size_problems(self) -> Iterator[Problem]:
        if (count := len(self.parameters)) > MOST_PARAMETERS:
            yield (), f"has {count:,} parameters; at most {MOST_PARAMETERS} can be tuned", None

    def _name_problems(self) -> Iterator[Problem]:
        for name in self.root:
            if not NAME.fullmatch(name):
                text = (
                    "the name must begin with a letter or '_'; at most 99 letters, digits, '_', "
                    "'-' or '.' may follow"
                )
                yield (name,), text, name
        if not self.parameters:
            yield (), "nothing to tune: give at least one parameter with a type", self.root

    def _reference_problems(self) -> Iterator[Problem]:
        for name, entry in self.parameters.items():
            for other, options in (entry.when or {}).items():
                place = (name, "when", other)
                if other not in self.parameters:
                    kind = "a constant" if other in self.root else "not a parameter of the space"
                    yield (
                        place,
                        f"{other!r} is {kind}{self._other_parameters_text(name, other)}",
                        options,
                    )
                    continue
                for i, option in enumerate(options):
                    if self.parameters[other].resolve(option) is None:
                        text = f"{other!r} never has the value {option!r}{self._values(other)}"
                        yield (*place, i), text, option

    def _other_parameters_text(self, name: str, meant: str) -> str:
        others = [x for x in self.parameters if x != name]
        if not others:
            return ", and the space has no other parameter that `when` can name"
        return f"{did_you_mean(meant, others)}; choices: {', '.join(others)}"

    def _values(self, name: str) -> str:
        entry = self.parameters[name]
        known = [repr(value) for value in entry.extreme_values()]
        if isinstance(entry, CategoricalParameter):
            return f"; choices: {join_names(known, _NAMED)}"
        return f"; its range is {known[0]} to {known[-1]}"

    def _cycle_problems(self) -> Iterator[Problem]:
        for name, entry in self.parameters.items():
            if name in self._ancestors(name):
                yield (name, "when"), f"{name!r} depends on itself", entry.when

    def _ancestors(self, name: str) -> list[str]:
        found: list[str] = []
        waiting = list(self.parameters[name].when or {})
        while waiting:
            other = waiting.pop()
            if other not in found:
                found.append(other)
                waiting.extend(self.parameters[other].when or {})
        return found

    def _reach_problems(self) -> Iterator[Problem]:
        """Yield an error for each condition that needs two values of one parameter at once."""
        for name, entry in self.parameters.items():
            allowed: dict[str, list[Scalar]] = {}
            for dependent in [name, *self._ancestors(name)]:
                for other, options in (self.parameters[dependent].when or {}).items():
                    values = self._resolve_options(other, options)
                    before = allowed.get(other, values)
                    allowed[other] = [x for x in before if any(are_equal(x, y) for y in values)]
            empty = [other for other, values in allowed.items() if not values]
            if empty:
                text = (
                    "can never hold: this condition and those of the parameters in it require "
                    f"different values of {empty[0]!r}"
                )
                yield (name, "when"), text, entry.when
