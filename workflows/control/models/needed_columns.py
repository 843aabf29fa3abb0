"""Columns that current models of `trainer: tabular` need, but that the present tables lack."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from trialfleet.errors import InputError
from trialfleet.files import object_or_empty, read_json
from trialfleet.workflows.facts.models.folders import find_champion, region_models_folder
from trialfleet.workflows.names import region_slug
from trialfleet.workflows.study.spec import Study


class Lacking(NamedTuple):
    """A region whose current model can't be measured on its new table, which lacks `columns`."""

    region: str
    run: str  # of the current model
    columns: tuple[str, ...]


def lacking_regions(study: Study, used: Mapping[str, Collection[str]]) -> Iterator[Lacking]:
    """Yield the regions whose current model needs columns that the region's new table lacks.

    `used` has the columns of each region's new table. In the yielded regions, the gate will keep
    the current model, because it can't be measured on the new table. Without a gate, nothing is
    yielded.
    """
    if study.gate is None:
        return
    for region, columns in used.items():
        try:
            champion = find_champion(region_models_folder(study, region_slug(region)), study.name)
        except InputError:  # the publication reports this
            continue
        missing = [name for name in _needed_columns(champion) if name not in columns]
        if champion and missing:
            yield Lacking(region, champion.name, tuple(missing))


def _needed_columns(model: Path | None) -> list[str]:
    if model is None:
        return []
    columns = object_or_empty(lambda: read_json(model / "model.json")["columns"])
    return [*columns.get("numeric", ()), *columns.get("categorical", ())]
