"""Findings in a region's data when the run was planned: regions/SLUG/table.json."""

from __future__ import annotations

from typing import Any

from trialfleet.files import object_or_empty, read_json
from trialfleet.workflows.facts.run_folder.folder import RegionFolder


def found_in(region: RegionFolder) -> dict[str, Any] | None:
    """Return the findings, see `building.Description`; None if nothing was examined."""
    if not region.table_found.exists():
        return None
    found: dict[str, Any] = read_json(region.table_found)["table"]
    return found


def source_of_table(region: RegionFolder) -> list[dict[str, Any]] | None:
    """Return the file from which the region's table was made, with its checksum.

    None where trials read the data itself.
    """
    if not region.table.exists():
        return None
    source: list[dict[str, Any]] = read_json(region.table_found)["source"]
    return source


def checks_in(region: RegionFolder) -> dict[str, Any] | None:
    """Return the `days` compared with the table, and the `reason` for a warning or None.

    None where nothing was checked.
    """
    found = object_or_empty(lambda: read_json(region.checks))
    return (
        {key: found[key] for key in ("days", "reason")} if {"days", "reason"} <= {*found} else None
    )


def warnings_of(region: RegionFolder) -> str | None:
    """Return the warnings about the table of a region's day; None if there are none."""
    reason = (checks_in(region) or {}).get("reason")
    return None if reason is None else str(reason)
