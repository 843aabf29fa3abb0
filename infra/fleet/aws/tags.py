"""The tags that everything of a fleet carries, and the filters that find it again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trialfleet.infra.fleet.spec import names
from trialfleet.infra.fleet.spec.fleet import Fleet

# AWS's services each have a type of their own for a tag: hence `Any` below.


def own(fleet: Fleet) -> Any:
    """Return the tags of everything that the fleet is made of: the user's, and the fleet's."""
    return _listed({**fleet.tags, names.FLEET_TAG: fleet.called})


def specification(fleet: Fleet, kind: str, more: Mapping[str, str] = {}) -> Any:
    """Return the fleet's tags and more, as EC2 takes them with a resource that it makes.

    `kind` is EC2's word for such resources, such as `instance`.
    """
    return {"ResourceType": kind, "Tags": [*own(fleet), *_listed(more)]}


def of(fleet: Fleet) -> Any:
    """Return EC2's filter for what is the fleet's."""
    return {"Name": f"tag:{names.FLEET_TAG}", "Values": [fleet.called]}


def ours(fleet: Fleet, tags: Any) -> bool:
    """Tell by the tags that AWS lists whether a resource is the fleet's."""
    return table(tags).get(names.FLEET_TAG) == fleet.called


def table(tags: Any) -> dict[str, str]:
    """Return AWS's list of tags as a table."""
    return {tag["Key"]: tag["Value"] for tag in tags or []}


def _listed(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]
