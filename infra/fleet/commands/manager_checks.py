"""Whether this machine is a manager that nodes can join."""

from __future__ import annotations

import platform
import socket
from datetime import UTC, datetime, timedelta
from importlib.metadata import version

from trialfleet.errors import InputError, PoolError
from trialfleet.infra.fleet.aws import own_instance
from trialfleet.infra.fleet.commands.findings import Finding
from trialfleet.infra.fleet.lifecycle import up
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.infra.manager import tokens
from trialfleet.infra.pool import htcondor_installation

PATIENCE = 3.0  # seconds for the manager's port to answer
LEFT = timedelta(days=7)  # a token is renewed weekly, and lasts much longer
INSTALL = "`sudo trialfleet manager install` makes this machine a manager"


def examine(fleet: Fleet) -> list[Finding]:
    """Look at the manager's port, the versions and the token; nothing is raised."""
    program = f"{version('trialfleet')}, with Python {platform.python_version()}"
    return [
        _port(fleet),
        _htcondor(),
        Finding(check="trialfleet", ok=True, found=program),
        _token(),
    ]


def _port(fleet: Fleet) -> Finding:
    check = "manager"
    try:
        address = up.manager_address(fleet, own_instance.look())
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
        advice = "the same release of both is tested together"
        return Finding(check=check, ok=None, found=found, advice=advice)
    return Finding(check=check, ok=True, found=found)


def _token() -> Finding:
    check = "token of the nodes"
    try:
        ends = tokens.expiry(tokens.read_node_token())
    except PoolError as error:
        return Finding(check=check, ok=False, found=str(error))
    left, found = ends - datetime.now(UTC), f"good until {ends:%Y-%m-%d %H:%M} UTC"
    if left < LEFT:
        return Finding(check=check, ok=None, found=found, advice=tokens.MAKE)
    return Finding(check=check, ok=True, found=found)
