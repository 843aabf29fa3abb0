"""The tags of a fleet's resources, and the filters that find these resources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trialfleet.infra.fleet.spec import names
from trialfleet.infra.fleet.spec.fleet import Fleet

# Each of AWS's services has its own type for a tag: hence `Any` below.


def own_tags(fleet: Fleet) -> Any:
    """Return the tags that every resource of the fleet gets, including the user's tags."""
    return _tag_list({**fleet.tags, names.FLEET_TAG: fleet.full_name})


def specification(fleet: Fleet, kind: str, more: Mapping[str, str] = {}) -> Any:
    """Return the fleet's tags and `more` as EC2's TagSpecification for a new resource."""
    return {"ResourceType": kind, "Tags": [*own_tags(fleet), *_tag_list(more)]}


def fleet_filter(fleet: Fleet) -> Any:
    """Return EC2's filter that selects the fleet's resources."""
    return {"Name": f"tag:{names.FLEET_TAG}", "Values": [fleet.full_name]}


def is_own(fleet: Fleet, tags: Any) -> bool:
    """Return whether a resource with these tags belongs to the fleet."""
    return table(tags).get(names.FLEET_TAG) == fleet.full_name


def table(tags: Any) -> dict[str, str]:
    """Return AWS's list of tags as a dictionary."""
    return {tag["Key"]: tag["Value"] for tag in tags or []}


def _tag_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]
