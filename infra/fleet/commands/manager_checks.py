"""Checks of `fleet doctor`: is this machine a manager, and can EC2 nodes join its pool?"""

from __future__ import annotations

import platform
import socket
from datetime import UTC, datetime, timedelta
from importlib.metadata import version

from trialfleet.errors import InputError, PoolError
from trialfleet.infra.fleet.aws import own_instance
from trialfleet.infra.fleet.aws.own_instance import OwnInstance
from trialfleet.infra.fleet.commands import shell
from trialfleet.infra.fleet.commands.permissions import Finding
from trialfleet.infra.fleet.lifecycle import up
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.infra.manager import tokens
from trialfleet.infra.pool import htcondor_installation

PATIENCE = 3.0  # seconds for the manager's port to answer
LEFT = timedelta(days=7)  # a token is renewed weekly, and is valid for much longer
REACHED = (
    "set `manager:` to an address at which these nodes reach the manager (docs/ec2.md: Nodes in "
    "another AWS region)"
)
INSTALL = "`sudo trialfleet manager install` makes this machine a manager"


def examine(fleet: Fleet) -> list[Finding]:
    """Check the manager's port, versions and token, and whether nodes can reach the manager."""
    program = f"{version('trialfleet')}, with Python {platform.python_version()}"
    own = own_instance.find()
    return [
        _port(fleet, own),
        _htcondor(),
        Finding(check="trialfleet", ok=True, found=program),
        _check_token(),
        *_check_reach(fleet, own),
        *([_shells()] if fleet.ssm else []),
    ]


def unreachable_error(fleet: Fleet, own: OwnInstance | None) -> str:
    """Return why some nodes can't reach the manager, or an empty text if all can."""
    if fleet.manager:
        return ""
    if own is None and len(fleet.aws_regions) > 1:
        return (
            "the fleet has several AWS regions and no `manager:`: nodes get the manager's private "
            "address, which nodes in other regions can't reach"
        )
    if own and (away := [region for region in fleet.aws_regions if region != own.aws_region]):
        return (
            f"nodes in {', '.join(away)} can't reach the manager: without `manager:` they get "
            f"its private address in {own.aws_region}, {own.address}"
        )
    return ""


def _check_reach(fleet: Fleet, own: OwnInstance | None) -> list[Finding]:
    if not (found := unreachable_error(fleet, own)):
        return []
    part = own is None or own.aws_region in fleet.aws_regions
    return [
        Finding(
            check="manager, from its nodes", ok=None if part else False, found=found, advice=REACHED
        )
    ]


def _shells() -> Finding:
    missing = shell.missing_programs()
    found = missing or f"{' and '.join(shell.GUIDES)} are here"
    return Finding(check="programs for fleet ssh", ok=None if missing else True, found=found)


def _port(fleet: Fleet, own: OwnInstance | None) -> Finding:
    check = "manager"
    try:
        address = up.manager_address(fleet, own)
    except InputError as error:
        return Finding(check=check, ok=False, found=str(error))
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), PATIENCE).close()
    except OSError as error:
        found = f"nothing listens at {address}: {error.strerror or error}"
        return Finding(check=check, ok=False, found=found, advice=INSTALL)
    return Finding(check=check, ok=True, found=f"{address} listens")


def _htcondor() -> Finding:
    check, bindings = "HTCondor", version("htcondor")
    try:
        daemons = htcondor_installation.managers_version()
    except PoolError as error:
        return Finding(check=check, ok=False, found=str(error))
    found = f"{daemons}, and {bindings} of its Python bindings"
    if daemons.split(".")[:2] != bindings.split(".")[:2]:
        advice = "install the same release of both: only that is tested"
        return Finding(check=check, ok=None, found=found, advice=advice)
    return Finding(check=check, ok=True, found=found)


def _check_token() -> Finding:
    check = "token of the nodes"
    try:
        ends = tokens.expiry(tokens.read_node_token())
    except PoolError as error:
        return Finding(check=check, ok=False, found=str(error))
    left, found = ends - datetime.now(UTC), f"good until {ends:%Y-%m-%d %H:%M} UTC"
    if left < LEFT:
        return Finding(check=check, ok=None, found=found, advice=tokens.MAKE)
    return Finding(check=check, ok=True, found=found)
