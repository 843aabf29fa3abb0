"""The search space: what is refused and where, defaults, conditions, the three forms of a point."""

# ruff: noqa: FBT003

from __future__ import annotations

import itertools
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from tests.search_spaces import value_at
from trialfleet.optimizer.space import Scalar, SearchSpace


class Study(BaseModel):
    """Stands for the study that contains the space."""

    search_space: SearchSpace


def make(**entries: Any) -> SearchSpace:
    return SearchSpace.model_validate(entries)


def number(low: float, high: float, **more: Any) -> dict[str, Any]:
    return {"type": "float", "low": low, "high": high, **more}


def whole(low: int, high: int, **more: Any) -> dict[str, Any]:
    return {"type": "int", "low": low, "high": high, **more}


def choice(*choices: Scalar, **more: Any) -> dict[str, Any]:
    return {"type": "categorical", "choices": list(choices), **more}


# ---------------------------------------------------------------- refused spaces, and the place

REFUSED = [
    ({"a": number(2, 2)}, ("a", "high"), "above low"),
    ({"a": number(2, 1)}, ("a", "high"), "above low"),
    ({"a": {"type": "float", "low": "1", "high": 2}}, ("a", "low"), "number"),
    ({"a": {"type": "float", "low": True, "high": 2}}, ("a", "low"), "number"),
    ({"a": number(0, float("inf"))}, ("a", "high"), "finite"),
    ({"a": number(float("nan"), 1)}, ("a", "low"), "finite"),
    ({"a": number(0, 1, log=True)}, ("a", "low"), "above 0"),
    ({"a": number(1, 2, log=True, step=0.5)}, ("a", "step"), "log"),
    ({"a": number(0, 1, step=0)}, ("a", "step"), "above 0"),
    ({"a": number(0, 1, step=0.3)}, ("a", "high"), "0.9 or 1.2"),
    ({"a": number(0, 1, default=1.5)}, ("a", "default"), "1.5"),
    ({"a": number(0, 1, step=0.25, default=0.3)}, ("a", "default"), "steps of 0.25"),
    ({"a": whole(1, 9, default=True)}, ("a", "default"), "integer"),
    ({"a": {"type": "int", "low": 1, "high": 9.5}}, ("a", "high"), "integer"),
    ({"a": whole(0, 9, log=True)}, ("a", "low"), "above 0 with log"),
    ({"a": whole(1, 9, log=True, step=2)}, ("a", "step"), "log"),
    ({"a": whole(1, 9, step=3)}, ("a", "high"), "7 or 10"),
    ({"a": whole(1, 9, step=-1)}, ("a", "step"), "above 0"),
    ({"a": whole(0, 2**60)}, ("a", "high"), "less than or equal"),
    ({"a": number(-1.7e308, 1.7e308)}, ("a", "high"), " above low (-1.7e+308)"),
    ({"a": number(0, 1.7e308, step=1.7e308)}, ("a", "high"), "must be less than"),
    ({"a": number(1, 1 + 1e-15)}, ("a", "high"), "must be at least 1e-12 above low (1.0)"),
    ({"a": number(1, 1 + 1e-15, log=True)}, ("a", "high"), "must be at least"),
    ({"a": number(0, 5e-324)}, ("a", "high"), "must be at least"),
    (
        {"a": number(0, 1, step=1e-300)},
        ("a", "step"),
        "1e-300 is too fine for this range: use 1e-07",
    ),
    ({"a": number(-1e16, 0, step=0.1)}, ("a", "step"), "0.1 is too fine for this range: use 1e+09"),
    ({"a": whole(-(2**53), 99)}, ("a", "high"), "must be at most 9007199254740992 above low ("),
    ({"a": choice(1, 10**400)}, ("a", "choices", 1), "the range of a double"),
    ({"a": choice("x", "\ud800")}, ("a", "choices", 1), "must be Unicode text"),
    ({"a": whole(1, 2), "b": 10**400}, ("b",), "a constant must be within ±1.8e308"),
    ({"a": whole(1, 2), "b": "\ud800"}, ("b",), "a constant must be Unicode text"),
    ({"a": choice("x")}, ("a", "choices"), "two values"),
    ({"a": choice("x", "y", "x")}, ("a", "choices"), "'x' equals an earlier choice"),
    ({"a": choice(1, True)}, ("a", "choices"), "True equals an earlier choice"),
    ({"a": choice(1, 1.0)}, ("a", "choices"), "1.0 equals an earlier choice"),
    ({"a": choice("x", float("nan"))}, ("a", "choices", 1), "finite"),
    ({"a": {"type": "categorical", "choices": "xy"}}, ("a", "choices"), "list"),
    ({"a": {"type": "categorical", "choices": ["x", None]}}, ("a", "choices", 1), "must be text"),
    ({"a": choice("x", "y", default="z")}, ("a", "default"), "'z'"),
    ({"a": choice(1, 2, default=True)}, ("a", "default"), "True"),
    ({"a": {"type": "flaot", "low": 0, "high": 1}}, ("a", "type"), "float, int, categorical"),
    ({"a": {"low": 0, "high": 1}}, ("a",), "float, int, categorical"),
    ({"a": number(0, 1, hihg=2)}, ("a",), "'hihg' (did you mean 'high'?)"),
    ({"a": None, "b": whole(1, 2)}, ("a",), "constant"),
    ({"a": [1], "b": whole(1, 2)}, ("a",), "constant"),
    ({"a": float("inf"), "b": whole(1, 2)}, ("a",), "finite"),
    ({"a": 3}, (), "nothing to tune"),
    ({}, (), "nothing to tune"),
    ({"a b": whole(1, 2)}, ("a b",), "letter"),
    ({"": whole(1, 2)}, ("",), "letter"),
    ({"a\nb": whole(1, 2)}, ("a\nb",), "letter"),
    ({"a\n": whole(1, 2)}, ("a\n",), "letter"),
    ({"a": whole(1, 9, when={})}, ("a", "when"), "at least 1"),
    ({"a": whole(1, 9), "b": whole(1, 9, when={"a": []})}, ("b", "when", "a"), "at least 1"),
    ({"a": whole(1, 9), "b": whole(1, 9, when={"c": [1]})}, ("b", "when", "c"), "choices: a"),
    ({"a": whole(1, 9, when={"c": [3]}), "c": 3}, ("a", "when", "c"), "a constant"),
    ({"a": whole(1, 9), "b": whole(1, 9, when={"a": [3, 10]})}, ("b", "when", "a", 1), "10"),
    ({"a": whole(1, 9), "b": whole(1, 9, when={"a": [True]})}, ("b", "when", "a", 0), "True"),
    ({"a": choice(True, False), "b": whole(1, 9, when={"a": [1]})}, ("b", "when", "a", 0), "1"),
    ({"a": whole(1, 9), "b": whole(1, 9, when={"a": 10})}, ("b", "when", "a", 0), "10"),
    ({"a": whole(1, 9, when={"a": [1]})}, ("a", "when"), "itself"),
    (
        {"a": whole(1, 9, when={"b": [1]}), "b": whole(1, 9, when={"a": [1]})},
        ("a", "when"),
        "itself",
    ),
    (
        {
            "a": choice("x", "y"),
            "b": whole(1, 9, when={"a": ["x"]}),
            "c": whole(1, 9, when={"b": [1], "a": ["y"]}),
        },
        ("c", "when"),
        "never hold",
    ),
]


@pytest.mark.parametrize(("entries", "place", "fragment"), REFUSED)
def test_a_wrong_space_is_refused_with_a_message_at_the_wrong_key(
    entries: dict[str, Any], place: tuple[str | int, ...], fragment: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        Study(search_space=entries)
    errors = caught.value.errors(include_url=False)
    assert [e["msg"] for e in errors if e["loc"] == ("search_space", *place)], errors
    assert any(fragment in e["msg"] for e in errors if e["loc"] == ("search_space", *place))


def test_every_problem_is_reported_at_once() -> None:
    with pytest.raises(ValidationError) as caught:
        Study(search_space={"a": number(2, 1), "b": None, "c": choice("x")})
    places = [error["loc"][1:] for error in caught.value.errors()]
    assert places == [("a", "high"), ("b",), ("c", "choices")]


def test_numbers_that_a_computer_rounds_are_still_on_the_grid() -> None:
    space = make(a=number(0, 0.3, step=0.1, default=0.1 + 0.2))
    assert space.defaults() == {"a": 0.3}


# ---------------------------------------------------------------- defaults, constants, forms


def test_defaults_are_the_given_one_or_the_middle_on_the_grid_or_the_first_choice() -> None:
    space = make(
        given=number(0, 1, default=0.9),
        middle=number(0, 4),
        rate=number(1e-5, 1e-1, log=True),
        grid=number(0, 1, step=0.25),
        units=whole(32, 512, step=32),
        depth=whole(1, 4),
        leaves=whole(1, 100, log=True),
        kind=choice("sgd", "adam"),
        flag=choice(True, False, default=False),
    )
    assert space.defaults() == {
        "given": 0.9,
        "middle": 2.0,
        "rate": 0.001,
        "grid": 0.5,
        "units": 256,
        "depth": 2,
        "leaves": 10,
        "kind": "sgd",
        "flag": False,
    }


def test_a_bare_value_is_a_constant_and_trials_get_values_in_file_order() -> None:
    space = make(z=whole(1, 3), epochs=10, a=number(0, 1), name="x", fast=True)
    assert space.constants() == {"epochs": 10, "name": "x", "fast": True}
    complete = space.trial_params({"a": 0.5, "z": 3})
    assert list(complete.items()) == [
        ("z", 3),
        ("epochs", 10),
        ("a", 0.5),
        ("name", "x"),
        ("fast", True),
    ]
    assert list(space.distributions()) == ["z", "a"]


def test_active_omits_inactive_parameters_and_canonical_has_their_defaults() -> None:
    space = make(
        momentum=number(0, 0.9, default=0.5, when={"kind": ["sgd"]}),  # before its condition
        kind=choice("sgd", "adam"),
        nesterov=choice(True, False, when={"momentum": [0.9]}),
    )
    adam: dict[str, Scalar] = {"kind": "adam", "momentum": 0.9, "nesterov": False}
    assert space.active(adam) == {"kind": "adam"}
    assert space.canonical(adam) == {"momentum": 0.5, "kind": "adam", "nesterov": True}
    sgd: dict[str, Scalar] = {"kind": "sgd", "momentum": 0.9, "nesterov": False}
    assert space.active(sgd) == sgd
    assert space.trial_params(sgd) == sgd


@pytest.mark.parametrize("value", ["sgd", True, 0, 0.5])
def test_a_condition_on_one_value_takes_it_bare(value: Scalar) -> None:
    choices = ["adam", value]
    bare = make(kind=choice(*choices), momentum=number(0, 0.9, when={"kind": value}))
    listed = make(kind=choice(*choices), momentum=number(0, 0.9, when={"kind": [value]}))
    assert bare == listed
    assert "momentum" in bare.active({"kind": value})
    assert "momentum" not in bare.active({"kind": "adam"})


def test_true_is_not_one_in_a_condition() -> None:
    space = make(a=choice(True, "1"), b=whole(1, 3, when={"a": ["1"]}), c=choice(0, 1))
    assert "b" not in space.active({"a": True})
    assert "b" in space.active({"a": "1"})
    mixed = make(n=whole(0, 1), b=whole(1, 3, when={"n": [1.0]}))
    assert "b" in mixed.active({"n": 1}), "a whole float means the int"


def test_choices_keep_their_types_through_json() -> None:
    space = make(a=choice(1, 2.0, "1", "2.0"), b=choice(True, False))
    again = SearchSpace.model_validate_json(space.model_dump_json())
    kept = [*again.parameters["a"].choices, *again.parameters["b"].choices]  # type: ignore[union-attr]
    assert [(type(x), x) for x in kept] == [
        (int, 1),
        (float, 2.0),
        (str, "1"),
        (str, "2.0"),
        (bool, True),
        (bool, False),
    ]


def test_the_json_schema_knows_every_kind_of_entry() -> None:
    kinds = Study.model_json_schema()["$defs"]
    assert {"FloatParameter", "IntParameter", "CategoricalParameter"} <= set(kinds)
    offered = kinds["SearchSpace"]["additionalProperties"]["anyOf"]
    assert {"type": "boolean"} in offered


@pytest.mark.slow
def test_reading_a_space_imports_neither_optuna_nor_torch() -> None:
    code = (
        "import sys; from trialfleet.optimizer.space import SearchSpace;"
        "SearchSpace.model_validate({'a': {'type': 'int', 'low': 1, 'high': 3}}).defaults();"
        "sys.exit(bool({'optuna', 'torch', 'sqlalchemy'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# ---------------------------------------------------------------- properties

few = settings(max_examples=40, deadline=None)
finite = st.floats(-1e6, 1e6, allow_nan=False)


@st.composite
def floats(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(["plain", "log", "step"]))
    if kind == "log":
        low = draw(st.floats(1e-9, 1e3))
        return number(low, low * draw(st.floats(1.5, 1e6)), log=True)
    if kind == "step":
        low, step = draw(st.integers(-50, 50)), draw(st.sampled_from([0.1, 0.25, 0.3, 2.0, 1e-3]))
        count = draw(st.integers(1, 40))
        return number(low / 10, round(low / 10 + count * step, 6), step=step)
    low = draw(finite)
    return number(low, low + draw(st.floats(1e-3, 1e6)))


@st.composite
def ints(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(["log", "step"]))
    if kind == "log":
        low = draw(st.integers(1, 1000))
        return whole(low, low + draw(st.integers(1, 10**6)), log=True)
    low, step = draw(st.integers(-1000, 1000)), draw(st.integers(1, 7))
    return whole(low, low + step * draw(st.integers(1, 50)), step=step)


scalars = st.one_of(st.booleans(), st.integers(-3, 3), finite, st.text(max_size=5))
categoricals = st.lists(scalars, min_size=2, max_size=5, unique_by=lambda x: x).map(
    lambda choices: choice(*choices)
)


@st.composite
def spaces(draw: st.DrawFn) -> SearchSpace:
    """Up to six entries; a parameter may depend on a value that an earlier one takes."""
    entries: dict[str, Any] = {}
    for i in range(draw(st.integers(1, 6))):
        entry: dict[str, Any] = draw(st.one_of(floats(), ints(), categoricals))
        is_conditional: bool = draw(st.booleans())
        if entries and is_conditional:
            other = draw(st.sampled_from(sorted(entries)))
            parent = make(x=_unconditional(entries[other])).parameters["x"]
            value = value_at(parent, draw(st.floats(0, 1)))
            entry["when"] = {other: [value]}
        entries[f"p{i}"] = entry
    order = draw(st.permutations(sorted(entries)))
    constants = {"c": draw(scalars)} if draw(st.booleans()) else {}
    return SearchSpace.model_validate({name: entries[name] for name in order} | constants)


def _unconditional(entry: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key != "when"}


@st.composite
def points(draw: st.DrawFn) -> tuple[SearchSpace, dict[str, Scalar]]:
    space = draw(spaces())
    unit = st.floats(0, 1, exclude_max=True)
    return space, {name: value_at(entry, draw(unit)) for name, entry in space.parameters.items()}


@pytest.mark.slow
@few
@given(points())
def test_every_value_is_one_that_optunas_distribution_contains(
    drawn: tuple[SearchSpace, dict[str, Scalar]],
) -> None:
    space, values = drawn
    for name, distribution in space.distributions().items():
        for value in (values[name], space.defaults()[name]):
            assert distribution._contains(distribution.to_internal_repr(value))


@pytest.mark.slow
@few
@given(points())
def test_a_value_is_its_own_nearest_and_resolves_to_itself(
    drawn: tuple[SearchSpace, dict[str, Scalar]],
) -> None:
    space, values = drawn
    for name, entry in space.parameters.items():
        for value in (values[name], entry.fallback()):
            assert type(entry.nearest(value)) is type(value)
            assert entry.nearest(value) == value
            assert entry.resolve(value) == value


@pytest.mark.slow
@few
@given(points())
def test_active_and_canonical_are_idempotent_and_agree(
    drawn: tuple[SearchSpace, dict[str, Scalar]],
) -> None:
    space, values = drawn
    active, canonical = space.active(values), space.canonical(values)
    assert space.active(active) == active == space.active(canonical)
    assert space.canonical(canonical) == canonical == space.canonical(active)
    assert list(canonical) == list(space.parameters)
    assert space.trial_params(values) == space.constants() | active
    assert space.trial_params(active) == space.trial_params(canonical)


@pytest.mark.slow
@few
@given(points())
def test_the_active_parameters_are_those_of_a_slow_reference(
    drawn: tuple[SearchSpace, dict[str, Scalar]],
) -> None:
    space, values = drawn
    expected: set[str] = set()
    for _ in space.parameters:  # each round finds parameters one condition deeper
        for name, entry in space.parameters.items():
            conditions = (entry.when or {}).items()
            if all(
                other in expected and repr(values[other]) in [repr(x) for x in options]
                for other, options in conditions
            ):
                expected.add(name)
    assert set(space.active(values)) == expected


@pytest.mark.slow
@few
@given(points())
def test_a_space_survives_json(drawn: tuple[SearchSpace, dict[str, Scalar]]) -> None:
    space, values = drawn
    again = SearchSpace.model_validate_json(space.model_dump_json())
    assert again == space
    assert list(again.root) == list(space.root)
    assert repr(again.trial_params(values)) == repr(space.trial_params(values))


@few
@given(spaces())
def test_a_finite_parameter_lists_each_of_its_values_once(space: SearchSpace) -> None:
    for entry in space.parameters.values():
        if entry.count is not None and entry.count <= 200:
            values = [entry.nth(i) for i in range(entry.count)]
            assert len({(type(x), x) for x in values}) == entry.count
            assert values[0] == value_at(entry, 0.0)
            assert values[-1] == value_at(entry, 1 - 1e-12)


names = ("a", "b", "c", "d")
conditions = st.dictionaries(
    st.sampled_from(names), st.lists(st.sampled_from([0, 1]), min_size=1, unique=True), max_size=3
)


@few
@given(st.tuples(*[conditions] * 4))
def test_a_space_is_accepted_exactly_if_every_parameter_can_be_active(
    whens: tuple[dict[str, list[int]], ...],
) -> None:
    entries = {
        name: choice(0, 1, **({"when": when} if when else {}))
        for name, when in zip(names, whens, strict=True)
    }
    combinations = [dict(zip(names, x, strict=True)) for x in itertools.product((0, 1), repeat=4)]
    reachable = set().union(*(_reference(whens, values) for values in combinations))
    try:
        SearchSpace.model_validate(entries)
        accepted = True
    except ValidationError:
        accepted = False
    assert accepted == (reachable == set(names))


def _reference(whens: tuple[dict[str, list[int]], ...], values: dict[str, int]) -> set[str]:
    found: set[str] = set()
    for _ in names:
        for name, when in zip(names, whens, strict=True):
            if all(other in found and values[other] in options for other, options in when.items()):
                found.add(name)
    return found


def chain(length: int) -> dict[str, Any]:
    """Parameters each of which depends on the one before."""
    entries: dict[str, Any] = {
        f"p{i}": {"type": "categorical", "choices": [0, 1]} for i in range(length)
    }
    for i in range(1, length):
        entries[f"p{i}"]["when"] = {f"p{i - 1}": [1]}
    return entries


@pytest.mark.parametrize(
    ("entries", "place", "text"),
    [
        (
            {"a": {"type": "categorical", "choices": list(range(1001))}},
            ("a", "choices"),
            "has 1,001 choices; at most 1,000: the optimiser learns each choice separately",
        ),
        (
            {**chain(1), "b": {**number(0, 1), "when": {"p0": [1] * 1001}}},
            ("b", "when", "p0"),
            "at most 1000",
        ),
        (chain(201), (), "has 201 parameters; at most 200 can be tuned"),
        (chain(5000), (), "has 5,000 parameters; at most 200 can be tuned"),
    ],
)
def test_a_space_that_is_too_large_to_search_is_refused(
    entries: dict[str, Any], place: tuple[str, ...], text: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        Study(search_space=entries)
    (error,) = caught.value.errors(include_url=False)
    assert error["loc"] == ("search_space", *place)
    assert text in error["msg"]


@pytest.mark.slow
def test_the_largest_allowed_space_is_accepted() -> None:
    space = SearchSpace.model_validate(chain(200))
    assert space.active(space.defaults()) == {"p0": 0}
    assert len(space.active(dict.fromkeys(space.parameters, 1))) == 200
    large = {"a": {"type": "categorical", "choices": list(range(1000))}}
    assert SearchSpace.model_validate(large).size() == 1000
