"""The meanings of a study file's keys: their descriptions in pydantic's JSON schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

Schema = Mapping[str, Any]


def find_meaning(model: type[BaseModel], keys: Sequence[int | str]) -> str:
    """Return the description of the key at the path `keys`, such as (`daily`, `at`), or ""."""
    whole = model.model_json_schema()
    named = whole.get("$defs", {})
    found: list[Schema] = [whole]
    for key in keys:
        found = [
            child
            for schema in found
            for form in _schema_forms(schema, named)
            for child in _child_schemas(form, str(key))
        ]
    texts = (form.get("description") for schema in found for form in _schema_forms(schema, named))
    return str(next(filter(None, texts), ""))


def _schema_forms(schema: Schema, named: Mapping[str, Schema]) -> Iterator[Schema]:
    """Yield a schema, its alternatives, and the schemas that it refers to."""
    yield schema
    for part in (*schema.get("anyOf", ()), *schema.get("allOf", ()), *schema.get("oneOf", ())):
        yield from _schema_forms(part, named)
    if reference := schema.get("$ref"):
        yield from _schema_forms(named[reference.rpartition("/")[2]], named)


def _child_schemas(schema: Schema, key: str) -> Iterator[Schema]:
    """Yield the schemas of the value at `key`, which is a key of a table or an index of a list."""
    properties = schema.get("properties", {})
    if key in properties:
        yield properties[key]
    for other in ("additionalProperties", "items"):
        if isinstance(child := schema.get(other), Mapping) and not properties:
            yield child
