"""The tags that everything of a fleet carries, and the filters that find it again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trialfleet.infra.fleet.spec import names
from trialfleet.infra.fleet.spec.fleet import Fleet

# AWS's services each have a type of their own for a tag: hence `Any` below.


def own(fleet: Fleet) -> Any:
    """Return the tags of everything that the fleet is made of: the user's, and the fleet's."""
    return names.tag_list({**fleet.tags, names.FLEET_TAG: fleet.called})


def specification(fleet: Fleet, kind: str, more: Mapping[str, str] | None = None) -> Any:
    """Return the tags as EC2 takes them with a resource that it makes.

    Args:
        fleet: whose resource it is.
        kind: EC2's word for such resources, such as `instance`.
        more: tags besides the fleet's own.
    """
    return {"ResourceType": kind, "Tags": [*own(fleet), *names.tag_list(more or {})]}


def of(fleet: Fleet) -> Any:
    """Return EC2's filter for what is the fleet's."""
    return {"Name": f"tag:{names.FLEET_TAG}", "Values": [fleet.called]}


def ours(fleet: Fleet, tags: Any) -> bool:
    """Tell by the tags that AWS lists whether a resource is the fleet's."""
    return names.tag_table(tags).get(names.FLEET_TAG) == fleet.called
