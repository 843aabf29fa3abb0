"""The key `regions:`: up to 10,000 regions, as a list of names, a table by name, or a file glob."""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    Field,
    TypeAdapter,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from trialfleet.sections import Refused, refusal, refuse
from trialfleet.workflows.names import doubled_names
from trialfleet.workflows.study.checks import RegionName
from trialfleet.workflows.study.paths import (
    Keys,
    Problem,
    UnusableStudyError,
    placeholder_hint,
)
from trialfleet.workflows.study.sections import Gang, Region, RegionGlob, Resources

MOST_REGIONS = 10_000  # each has its own DAGMan and a folder per trial
RegionList = Annotated[list[RegionName], Field(min_length=1)]
RegionTable = Annotated[dict[RegionName, Region | None], Field(min_length=1)]
_LISTED: TypeAdapter[list[str]] = TypeAdapter(RegionList)
_TABLE: TypeAdapter[dict[str, Region | None]] = TypeAdapter(RegionTable)


def _regions(value: Any, _: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
    """Validate a list, a table or a glob. A union in pydantic would report errors of all three."""
    if isinstance(value, RegionGlob):
        return value
    if not isinstance(value, list | Mapping) or not value:
        raise refusal(
            "must be a list of one or more names, a table of names, or {glob: a path with one *}"
        )
    if problem := too_many_regions(len(value)):
        raise refusal(problem)
    if isinstance(value, list):
        names = _LISTED.validate_python(value)
        _refuse_doubled(names, range(len(names)))
        return dict.fromkeys(names)
    if _is_glob(value):
        return RegionGlob.model_validate(value, context=info.context)
    regions = _TABLE.validate_python(value, context=info.context)
    _refuse_doubled([*regions], [*regions])
    return regions


def _is_glob(table: Mapping[str, Any]) -> bool:
    """Return whether `table` is `{glob: PATTERN}`, and not a table with a region named `glob`.

    A region's value is a table or null. But null as the only entry is treated as an invalid
    pattern.
    """
    pattern = table.get("glob", {})
    return not isinstance(pattern, Mapping | Region) and (pattern is not None or len(table) == 1)


def _refuse_doubled(names: Sequence[str], places: Sequence[int | str]) -> None:
    doubled: list[Refused] = [
        ((places[i],), problem, names[i]) for i, problem in doubled_names(names)
    ]
    if doubled:
        refuse("regions", doubled)


Regions = Annotated[
    RegionGlob | RegionTable,
    WrapValidator(_regions, json_schema_input_type=RegionList | RegionGlob | RegionTable),
    Field(
        description="A list of names; a table of names, if regions differ; or {glob: FILES}: one "
        "region per matching file."
    ),
]


def list_gangs(resources: Resources, regions: Regions | None) -> list[Gang]:
    """Return the gang sizes (slots per training) that `resources` and `regions` set."""
    own = regions.values() if isinstance(regions, dict) else ()
    sizes = [resources.nodes, *(region.nodes for region in own if region)]
    return [size for size in sizes if size]


def too_many_regions(count: int) -> str | None:
    """Return an error text if a study has too many regions, else None."""
    if count <= MOST_REGIONS:
        return None
    return f"has {count:,} regions; the maximum is {MOST_REGIONS:,}: divide the study into several"


def regions_of_glob(pattern: str, folder: Path, keys: Keys) -> dict[str, str]:
    """Return the data files that match `pattern`, by region. The `*` matches the region's name.

    The names and the files are not checked.
    """
    if pattern.count("*") != 1:
        text = f"{pattern!r} must have exactly one '*', which stands for the region's name"
        raise UnusableStudyError(Problem(keys, text))
    head, after = pattern.split("*")
    before = head if head.startswith("/") else f"{folder.absolute()}/{head}"
    found = sorted(glob.glob(f"{glob.escape(before)}*{glob.escape(after)}"))  # noqa: PTH207
    if not found:
        text = f"no file matches {str(folder.absolute() / pattern)!r}{placeholder_hint(pattern)}"
        raise UnusableStudyError(Problem(keys, text))
    if problem := too_many_regions(len(found)):
        raise UnusableStudyError(Problem(keys, problem))
    regions = {file[len(before) : len(file) - len(after)]: file for file in found}
    for i, problem in doubled_names(regions):
        raise UnusableStudyError(Problem(keys, f"{found[i]!r}: {problem}"))
    return regions
