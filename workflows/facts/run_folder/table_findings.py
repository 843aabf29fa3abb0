"""Findings in a region's data, by `plan` and by the checks of a daily run."""

from __future__ import annotations

from typing import Any

from trialfleet.files import object_or_empty, read_json
from trialfleet.workflows.facts.run_folder.folder import RegionFolder


def read_description(region: RegionFolder) -> dict[str, Any] | None:
    """Return the description of a region's data (`table_from_rows.Description`).

    Return None if the data was not examined when the run was planned.
    """
    if not region.table_found.exists():
        return None
    found: dict[str, Any] = read_json(region.table_found)["table"]
    return found


def source_of_table(region: RegionFolder) -> list[dict[str, Any]] | None:
    """Return the source files of a region's table, with checksums; None if there is no table."""
    if not region.table.exists():
        return None
    source: list[dict[str, Any]] = read_json(region.table_found)["source"]
    return source


def read_checks(region: RegionFolder) -> dict[str, Any] | None:
    """Return the results of the checks of a region's table; None if it was not checked.

    "days" is the number of past days with which the table was compared. "reason" is the text of the
    warnings, or None.
    """
    found, keys = object_or_empty(lambda: read_json(region.checks)), ("days", "reason")
    return {key: found[key] for key in keys} if found.keys() >= {*keys} else None


def read_warnings(region: RegionFolder) -> str | None:
    """Return the warnings from the checks of a region's table; None if there are none."""
    reason = (read_checks(region) or {}).get("reason")
    return None if reason is None else str(reason)
