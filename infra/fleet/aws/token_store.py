"""The pool's token for nodes, in an encrypted SSM parameter."""

from __future__ import annotations

from trialfleet.infra.fleet.aws import tags
from trialfleet.infra.fleet.aws.clients import Aws, asking, or_none
from trialfleet.infra.fleet.spec import names
from trialfleet.infra.fleet.spec.fleet import Fleet

MISSING = "ParameterNotFound"


def ensure(aws: Aws, fleet: Fleet, token: str) -> str:
    """Store the token in SSM, and return the name of the SSM parameter."""
    name, ssm = names.token_parameter(fleet.full_name), aws.ssm(fleet.home)
    with asking(f"the token as SSM parameter {name}"):
        found = or_none(lambda: ssm.get_parameter(Name=name, WithDecryption=True), MISSING)
        if found is None:  # only a new parameter can be tagged in the same call
            ssm.put_parameter(
                Name=name, Value=token, Type="SecureString", Tags=tags.own_tags(fleet)
            )
        elif found["Parameter"]["Value"] != token:
            ssm.put_parameter(Name=name, Value=token, Type="SecureString", Overwrite=True)
    return name


def exists(aws: Aws, fleet: Fleet) -> bool:
    """Return whether the token's parameter exists in SSM, without reading its value."""
    found = aws.ssm(fleet.home).describe_parameters(
        ParameterFilters=[{"Key": "Name", "Values": [names.token_parameter(fleet.full_name)]}]
    )
    return bool(found["Parameters"])


def remove(aws: Aws, fleet: Fleet) -> None:
    """Delete the token's parameter from SSM."""
    name = names.token_parameter(fleet.full_name)
    with asking(f"the SSM parameter {name}"):
        or_none(lambda: aws.ssm(fleet.home).delete_parameter(Name=name), MISSING)
