"""docs/reference/study.md: every key of study.yaml, the `fleet:` table among them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter

from tests.docs.tables import plain, table
from trialfleet.sections import Size
from trialfleet.workflows.study.spec import Study

Schema = Mapping[str, Any]
WORDS = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "`true` or `false`",
    "null": "",
    "scalar": "value",  # text, a number, true or false; the page says so
}
SCALARS = ("string", "boolean", "integer", "number")
# Titles, in the order of the page: what a study has at its top, then their contents.
TITLES = {
    "Study": "The study",
    "Region": "regions: NAME",
    "BudgetOverride": "regions: NAME: budget",
    "RegionGlob": "regions, by files",
    "S3Keys": "s3",
    "Objective": "objective",
    "SearchSpace": "search_space",
    "FloatParameter": "A parameter of type float",
    "IntParameter": "A parameter of type int",
    "CategoricalParameter": "A parameter of type categorical",
    "Budget": "budget",
    "Trainer": "trainer",
    "EarlyStopping": "early_stopping",
    "Gate": "gate",
    "Keep": "keep",
    "Export": "export",
    "Mlflow": "export: mlflow",
    "Daily": "daily",
    "Checks": "checks",
    "Channel": "notify: an entry",
    "Webhook": "notify: webhook",
    "Mail": "notify: mail",
    "TableOptions": "table",
    "Split": "table: split",
    "Resources": "resources",
    "Gang": "resources: nodes",
    "Fleet": "fleet",
    "Needs": "fleet: needs",
    "Spot": "fleet: spot",
    "Gangs": "fleet: gangs",
    "Nodes": "fleet: nodes",
    "PriceCap": "fleet: price_cap",
    "Probe": "fleet: probe",
}


def sections() -> dict[str, Schema]:
    """Return the JSON Schema of each table of a study, by the name of its model."""
    whole = Study.model_json_schema()
    return {"Study": whole, **whole["$defs"]}


def page() -> str:
    """Return the generated part of the page: a section per table.

    Raises:
        AssertionError: a model has no title yet.
    """
    found = sections()
    assert set(found) == set(TITLES), f"TITLES lacks {set(found) ^ set(TITLES)}"
    return "\n\n".join(_section(name, found) for name in TITLES) + "\n"


def meaning(key: Schema, found: Mapping[str, Schema]) -> str:
    """Return what a key's description says; that of its table where it has none."""
    for place in (key, *key.get("anyOf", ())):
        if "description" in place:
            return str(place["description"])
    targets = [one["$ref"] for one in (key, *key.get("anyOf", ())) if "$ref" in one]
    return _first_paragraph(found[_name(targets[0])]) if targets else ""


def _section(name: str, found: Mapping[str, Schema]) -> str:
    schema = found[name]
    required = schema.get("required", ())
    rows = [
        (
            f"`{key}`",
            _type(value),
            _default(value, key in required, found),
            plain(meaning(value, found)),
        )
        for key, value in schema.get("properties", {}).items()
    ]
    parts = [f"## {TITLES[name]}", plain(_first_paragraph(schema))]
    if rows:
        parts.append(table(["Key", "Type", "Default", "Meaning"], rows))
    if name == "SearchSpace":
        parts.append("Each entry is a parameter, of one of the three types below, or a constant.")
    return "\n\n".join(parts)


def _first_paragraph(schema: Schema) -> str:
    return str(schema.get("description", "")).partition("\n\n")[0]


def _name(reference: str) -> str:
    return reference.rpartition("/")[2]


def _anchor(name: str) -> str:
    """Return the anchor of the section's heading on GitHub and on the site."""
    return re.sub(r"[^\w -]", "", TITLES[name]).lower().replace(" ", "-")


def _default(key: Schema, required: bool, found: Mapping[str, Schema]) -> str:
    if required:
        return "required"
    default = key.get("default")
    if "$ref" in key:
        own = found[_name(key["$ref"])]["properties"]
        default = {k: v for k, v in (default or {}).items() if v != own[k].get("default")}
    return "" if default in (None, [], {}) else f"`{_yaml(default)}`"


def _yaml(value: object) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_yaml(one)}' for key, one in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(_yaml(one) for one in value)}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _type(key: Schema) -> str:
    if "anyOf" in key:
        types = dict.fromkeys(filter(None, map(_type, _without_scalars(key["anyOf"]))))
        several = {f"list of {one}" for one in types if " or " in one}
        return " or ".join("list of these" if one in several else one for one in types)
    if "$ref" in key:
        name = _name(key["$ref"])
        label = name.removesuffix("Parameter").lower() if name.endswith("Parameter") else "table"
        return f"[{label}](#{_anchor(name)})"
    if "const" in key:
        return f"`{key['const']}`"
    if "enum" in key:
        return " or ".join(f"`{choice}`" for choice in key["enum"])
    if key.get("type") == "array":
        return f"list of {_type(key['items'])}"
    if key.get("type") == "object":
        # values of keys that must match a pattern, or of any keys
        values = [*key.get("patternProperties", {}).values(), key.get("additionalProperties")]
        return f"table of {_type(values[0])}"
    if key.get("pattern") == SIZE:
        return "size, such as `2GB`"
    return " ".join([WORDS[key["type"]], *_bounds(key)])


def _without_scalars(choices: Sequence[Schema]) -> list[Schema]:
    """Return the choices, with text, truth value, whole number and number told as one."""
    if not all({"type": each} in choices for each in SCALARS):
        return list(choices)
    return [*(one for one in choices if one.get("type") not in SCALARS), {"type": "scalar"}]


def _bounds(key: Schema) -> Iterator[str]:
    """Yield the bounds of a number; bounds without effect are left out."""
    least, most = key.get("minimum"), key.get("maximum")
    if "exclusiveMinimum" in key:
        yield f"above {key['exclusiveMinimum']:,}"
    if least is not None and most is None:
        yield f"from {_number(least)}"
    elif least is not None and most is not None and most < FAR:
        yield f"from {_number(least)} to {_number(most)}"
    elif least is None and most is not None:
        yield f"up to {most:,}"
    if "exclusiveMaximum" in key:
        yield f"and below {key['exclusiveMaximum']:,}"


def _number(value: float) -> str:
    return f"{value:,.3g}" if 0 < value < 1 else f"{value:,}"


FAR = 1e12
SIZE = TypeAdapter(Size).json_schema()["pattern"]
