"""Placement groups for moto, which has none; and EC2's answers to launches into them.

Only what fleets call: create, describe by filters, delete; and that a launch names one that is
there, in a single zone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from moto.core.responses import ActionResult, EmptyResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.responses import EC2Response
from moto.ec2.responses.instances import InstanceResponse

_RUN_INSTANCES = InstanceResponse.run_instances
_ALIVE = {"pending", "running", "shutting-down", "stopping", "stopped"}


@contextmanager
def placement_groups() -> Iterator[None]:
    """Let moto's EC2 have placement groups."""
    actions: dict[str, Any] = {
        "create_placement_group": _create,
        "describe_placement_groups": _describe,
        "delete_placement_group": _delete,
        "run_instances": _run_instances,
    }
    with mock.patch.multiple(EC2Response, create=True, **actions):
        yield


def _create(self: Any) -> ActionResult:
    self.error_on_dryrun()
    name = self._get_param("GroupName")
    groups = _groups(self)
    if name in groups:
        raise EC2ClientError("InvalidPlacementGroup.Duplicate", f"{name} is there already")
    tags = self._parse_tag_specification().get("placement-group", {})
    groups[name] = {
        "GroupName": name,
        "State": "available",
        "Strategy": self._get_param("Strategy"),
        "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
    }
    return ActionResult({"PlacementGroup": groups[name]})


def _describe(self: Any) -> ActionResult:
    filters = self._filters_from_querystring()
    found = [group for group in _groups(self).values() if _fits(group, filters)]
    return ActionResult({"PlacementGroups": found})


def _delete(self: Any) -> ActionResult:
    name = self._get_param("GroupName")
    if name not in _groups(self):
        raise EC2ClientError("InvalidPlacementGroup.Unknown", f"there is no {name}")
    if _members(self, name):
        raise EC2ClientError("InvalidPlacementGroup.InUse", f"{name} is in use")
    del _groups(self)[name]
    return EmptyResult()


def _run_instances(self: Any) -> ActionResult:
    name = self._get_param("Placement.GroupName")
    if name is None:
        return _RUN_INSTANCES(self)
    if name not in _groups(self):
        raise EC2ClientError("InvalidPlacementGroup.Unknown", f"there is no {name}")
    result = _RUN_INSTANCES(self)
    made: Any = result.result
    for instance in made.instances:
        instance.placement.group_name = name
    zones = {instance.placement.zone for instance in _members(self, name)}
    assert len(zones) == 1, f"EC2 has no cluster placement group in several zones: {zones}"
    return result


def _groups(self: Any) -> dict[str, dict[str, Any]]:
    return self.ec2_backend.__dict__.setdefault("placement_groups", {})  # type: ignore[no-any-return]


def _members(self: Any, name: str) -> list[Any]:
    return [
        instance
        for reservation in self.ec2_backend.reservations.values()
        for instance in reservation.instances
        if getattr(instance.placement, "group_name", None) == name
        and instance._state.name in _ALIVE
    ]


def _fits(group: dict[str, Any], filters: dict[str, list[str]]) -> bool:
    tags = {f"tag:{tag['Key']}": tag["Value"] for tag in group["Tags"]}
    values = {"state": group["State"], "group-name": group["GroupName"], **tags}
    return all(values.get(name) in wanted for name, wanted in filters.items())
