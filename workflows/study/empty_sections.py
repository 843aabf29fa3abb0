"""Optional tables of a study's file with nothing behind their key: they read as "its defaults"."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import NoneType
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from trialfleet.sections import Section
from trialfleet.workflows.study.paths import Keys, Problem


def empty_sections(model: type[BaseModel], tree: Any, keys: Keys = ()) -> Iterator[Problem]:
    """Find what YAML reads as null where a table may stand: the study would go on without it.

    A region with nothing behind its name is none of them: it has all that the study says.

    Args:
        model: what the table of a file is to become.
        tree: the table.
        keys: where it stands in its file.
    """
    if not isinstance(tree, Mapping):
        return
    for name, field in model.model_fields.items():
        if name not in tree:
            continue
        value, place = tree[name], (*keys, name)
        if value is not None:
            yield from _within(field.annotation, value, place)
        elif not field.is_required() and NoneType in get_args(field.annotation):
            for section in _sections(field.annotation):
                yield Problem(place, _advice(name, section))


def _within(annotation: Any, value: Any, keys: Keys) -> Iterator[Problem]:
    """Those of a field's value, whose form decides which of the field's types is meant."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield from empty_sections(annotation, value, keys)
        return
    parts = get_args(annotation)
    origin = getattr(annotation, "__origin__", None)
    if origin is dict:
        if isinstance(value, Mapping):
            for key, each in value.items():
                yield from _within(parts[1], each, (*keys, key))
    elif origin is list:
        if isinstance(value, list):
            for i, each in enumerate(value):
                yield from _within(parts[0], each, (*keys, i))
    else:
        for part in parts:
            yield from _within(part, value, keys)


def _sections(annotation: Any) -> list[type[Section]]:
    members = (annotation, *get_args(annotation))
    return [each for each in members if isinstance(each, type) and issubclass(each, Section)]


def _advice(name: str, section: type[Section]) -> str:
    try:
        section.model_validate({})
    except ValidationError:
        known = ", ".join(section.model_fields)
        return f"{name} is empty: give it keys ({known}), or leave it out"
    return f"{name} is empty: write {name}: {{}} for its defaults, or leave it out"
