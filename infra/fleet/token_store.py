"""The nodes' token in SSM: encrypted there, and read by the nodes' role alone."""

from __future__ import annotations

from botocore.exceptions import ClientError

from trialfleet.infra.fleet import names, tags
from trialfleet.infra.fleet.aws import Aws, asking, code_of
from trialfleet.infra.fleet.spec import Fleet


def ensure(aws: Aws, fleet: Fleet, token: str) -> str:
    """Store the token, unless it is there already.

    Returns:
        The parameter's name.

    Raises:
        FleetError: AWS refuses.
    """
    name, ssm = names.token_parameter(fleet.called), aws.ssm(fleet.home)
    with asking(f"the token as SSM parameter {name}"):
        stored = _stored(aws, fleet)
        if stored is None:  # tags can be given to a new parameter only
            ssm.put_parameter(Name=name, Value=token, Type="SecureString", Tags=tags.own(fleet))
        elif stored != token:
            ssm.put_parameter(Name=name, Value=token, Type="SecureString", Overwrite=True)
    return name


def exists(aws: Aws, fleet: Fleet) -> bool:
    """Tell whether the parameter is there, without reading what it holds."""
    found = aws.ssm(fleet.home).describe_parameters(
        ParameterFilters=[{"Key": "Name", "Values": [names.token_parameter(fleet.called)]}]
    )
    return bool(found["Parameters"])


def remove(aws: Aws, fleet: Fleet) -> None:
    """Delete the parameter.

    Raises:
        FleetError: AWS refuses.
    """
    name = names.token_parameter(fleet.called)
    with asking(f"the SSM parameter {name}"):
        try:
            aws.ssm(fleet.home).delete_parameter(Name=name)
        except ClientError as error:
            if code_of(error) != "ParameterNotFound":
                raise


def _stored(aws: Aws, fleet: Fleet) -> str | None:
    try:
        found = aws.ssm(fleet.home).get_parameter(
            Name=names.token_parameter(fleet.called), WithDecryption=True
        )
    except ClientError as error:
        if code_of(error) != "ParameterNotFound":
            raise
        return None
    return found["Parameter"]["Value"]
