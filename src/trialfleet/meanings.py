"""The meanings of a study file's keys: their descriptions in pydantic's JSON schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

Schema = Mapping[str, Any]


def meaning_of(model: type[BaseModel], keys: Sequence[int | str]) -> str:
    """Return the description of the key at the path `keys`, such as (`daily`, `at`), or ""."""
    whole = model.model_json_schema()
    named = whole.get("$defs", {})
    found: list[Schema] = [whole]
    for key in keys:
        found = [
            child
            for schema in found
            for form in _forms(schema, named)
            for child in _below(form, str(key))
        ]
    texts = (form.get("description") for schema in found for form in _forms(schema, named))
    return str(next(filter(None, texts), ""))


def _forms(schema: Schema, named: Mapping[str, Schema]) -> Iterator[Schema]:
    """Yield a schema, its alternatives, and the schemas that it refers to."""
    yield schema
    for part in (*schema.get("anyOf", ()), *schema.get("allOf", ()), *schema.get("oneOf", ())):
        yield from _forms(part, named)
    if reference := schema.get("$ref"):
        yield from _forms(named[reference.rpartition("/")[2]], named)


def _below(schema: Schema, key: str) -> Iterator[Schema]:
    """Yield the schemas of the value at `key`, a key of a table or an index of a list."""
    properties = schema.get("properties", {})
    if key in properties:
        yield properties[key]
    for other in ("additionalProperties", "items"):
        if isinstance(child := schema.get(other), Mapping) and not properties:
            yield child
