"""The IAM role of EC2 nodes, and the instance profile that has this role."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trialfleet.errors import FleetError
from trialfleet.infra.fleet.aws import retries, tags
from trialfleet.infra.fleet.aws.clients import Aws, asking, or_none
from trialfleet.infra.fleet.spec import names
from trialfleet.infra.fleet.spec.fleet import Fleet

if TYPE_CHECKING:
    from types_boto3_iam import IAMClient
    from types_boto3_iam.type_defs import InstanceProfileTypeDef, RoleTypeDef

MISSING = "NoSuchEntity"
POLICY = "trialfleet-node"  # name of the role's only policy
Document = Mapping[str, Any]


def ensure(aws: Aws, fleet: Fleet, policy: Document, trust: Document) -> str:
    """Create or correct the nodes' role and instance profile. Return the name that both have.

    FleetError if a role or a profile of this name does not belong to the fleet.
    """
    name = names.resource_name(fleet.full_name)
    with asking(f"the role {name}"):
        _ensure_role(aws.iam(fleet.home), fleet, name, trust)
        _ensure_policy(aws.iam(fleet.home), name, policy)
    with asking(f"the instance profile {name}"):
        _ensure_profile(aws.iam(fleet.home), fleet, name)
    return name


def role(aws: Aws, fleet: Fleet) -> RoleTypeDef | None:
    """Return the fleet's role, or None if there is none."""
    found = _role(aws.iam(fleet.home), names.resource_name(fleet.full_name))
    return found if found and tags.is_own(fleet, found.get("Tags")) else None


def profile(aws: Aws, fleet: Fleet) -> InstanceProfileTypeDef | None:
    """Return the fleet's instance profile, or None if there is none."""
    found = _profile(aws.iam(fleet.home), names.resource_name(fleet.full_name))
    return found if found and tags.is_own(fleet, found.get("Tags")) else None


def remove(aws: Aws, fleet: Fleet) -> None:
    """Delete the fleet's instance profile and role."""
    iam, name = aws.iam(fleet.home), names.resource_name(fleet.full_name)
    with asking("the instance profile"):
        if found := profile(aws, fleet):
            for member in found["Roles"]:
                iam.remove_role_from_instance_profile(
                    InstanceProfileName=name, RoleName=member["RoleName"]
                )
            iam.delete_instance_profile(InstanceProfileName=name)
    with asking("the role"):
        if role(aws, fleet):
            for policy in iam.list_role_policies(RoleName=name)["PolicyNames"]:
                iam.delete_role_policy(RoleName=name, PolicyName=policy)
            retries.retry(lambda: iam.delete_role(RoleName=name), "DeleteConflict")


def _role(iam: IAMClient, name: str) -> RoleTypeDef | None:
    return or_none(lambda: iam.get_role(RoleName=name)["Role"], MISSING)


def _profile(iam: IAMClient, name: str) -> InstanceProfileTypeDef | None:
    return or_none(
        lambda: iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"], MISSING
    )


def _ensure_role(iam: IAMClient, fleet: Fleet, name: str, trust: Document) -> None:
    found = _role(iam, name)
    if found is None:
        iam.create_role(
            RoleName=name,
            AssumeRolePolicyDocument=json.dumps(trust),
            Description=f"Nodes of trialfleet's fleet {fleet.full_name}",
            Tags=tags.own_tags(fleet),
        )
        return
    _check_ours(fleet, found.get("Tags"), f"role {name}")
    if found["AssumeRolePolicyDocument"] != trust:
        iam.update_assume_role_policy(RoleName=name, PolicyDocument=json.dumps(trust))


def _ensure_policy(iam: IAMClient, name: str, policy: Document) -> None:
    found = or_none(lambda: iam.get_role_policy(RoleName=name, PolicyName=POLICY), MISSING)
    if found is None or found["PolicyDocument"] != policy:
        text = json.dumps(policy)
        retries.retry(
            lambda: iam.put_role_policy(RoleName=name, PolicyName=POLICY, PolicyDocument=text),
            MISSING,
        )


def _ensure_profile(iam: IAMClient, fleet: Fleet, name: str) -> None:
    found = _profile(iam, name)
    if found is None:
        found = iam.create_instance_profile(InstanceProfileName=name, Tags=tags.own_tags(fleet))[
            "InstanceProfile"
        ]
    else:
        _check_ours(fleet, found.get("Tags"), f"instance profile {name}")
    if not found["Roles"]:
        retries.retry(
            lambda: iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name),
            MISSING,
        )


def _check_ours(fleet: Fleet, found: Any, what: str) -> None:
    if not tags.is_own(fleet, found):
        raise FleetError(
            f"the {what} exists already, without the tag {names.FLEET_TAG}={fleet.full_name}, so "
            "it does not belong to this fleet: give the fleet another `name:`"
        )
