"""What a plan tells of gangs of the reference trainer: how much their ranks send each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trialfleet.nodes.tabular.settings import Settings
from trialfleet.workflows.gang.traffic import (
    ETHERNET_10,
    gradient_bytes,
    sent_bytes,
    weights_of,
)

if TYPE_CHECKING:
    from trialfleet.optimizer.parameters import Scalar
    from trialfleet.workflows.study.spec import Study

_PAGE = "docs/large-models.md"


def gang_lines(study: Study, tables: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a line of the region whose ranks send most; none where nothing is known of it.

    Args:
        study: the run's.
        tables: what was found in each region's data.
    """
    if study.trainer != "tabular":
        return []
    sent = [
        (sent_bytes(bytes_of(study, name, table), nodes.max), name, nodes.max)
        for name, table in tables.items()
        if (nodes := study.nodes_of(name)) and nodes.max > 1
    ]
    if not sent:
        return []
    most, name, ranks = max(sent)
    settings = largest(study, name)
    steps = settings.local_steps
    often = f"every {steps} steps" if steps > 1 else "each step"
    if settings.parallel == "sharded":
        often += ", beside the embeddings of its batch"
    seconds = most / ETHERNET_10.bandwidth
    words = f"each of {ranks} ranks sends up to {most / 1e6:.3g} MB {often}"
    time = f"{1000 * seconds:.2g} ms of 10 Gbit/s"
    return [f"  gangs    {name}: {words}, {time}; {_PAGE} says when that pays"]


def bytes_of(study: Study, region: str, table: Mapping[str, Any]) -> int:
    """Return the bytes that a region's ranks add up, with its largest settings."""
    settings = largest(study, region)
    vocabularies, classes = [*table["categorical"].values()], len(table.get("classes") or ())
    weights = weights_of(
        len(table["numeric"]),
        vocabularies,
        classes if classes > 2 else 1,
        dataclasses.asdict(settings),
    )
    if settings.parallel == "sharded":  # what travels of the embeddings is the batch's
        weights -= sum(size + 1 for size in vocabularies) * settings.embedding
    return gradient_bytes(weights, settings.wire)


def largest(study: Study, region: str) -> Settings:
    """Return a region's settings with the widest and deepest network that it may have."""
    space = study.space_of(region)
    values: dict[str, Scalar] = space.complete(space.defaults())
    for name in ("hidden", "layers", "embedding"):
        if high := getattr(space.parameters.get(name), "high", None):
            values[name] = high
    return Settings.of(values)
