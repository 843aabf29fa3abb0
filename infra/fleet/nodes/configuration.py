"""The HTCondor configuration of a fleet's nodes, as a text without secrets."""

from __future__ import annotations

import re

from trialfleet.attributes import INSTANCE
from trialfleet.errors import InputError
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.infra.pool.joining import PORT, TRUST_DOMAIN
from trialfleet.render import render_template

HOME = "/opt/trialfleet"
TOKENS = "/etc/condor/tokens.d"
PROBE_SECONDS = 900
ATTRIBUTES = tuple(attribute.name for attribute in INSTANCE)


def render(fleet: Fleet, manager: str) -> str:
    """Return the nodes' configuration. InputError if `manager` is not HOST or HOST:PORT."""
    host, port = split(manager)
    return render_template(
        "condor/node.conf.j2",
        fleet=fleet.full_name,
        host=host,
        port=port,
        own_port=PORT,
        domain=TRUST_DOMAIN,
        tokens=TOKENS,
        attributes=ATTRIBUTES,
        home=HOME,
        probe_seconds=PROBE_SECONDS,
        probe_options=fleet.probe.options(),
        trials_per_gpu=fleet.shares,
    )


def split(manager: str) -> tuple[str, int]:
    """Return an address's host and port (default: HTCondor's). InputError if it is invalid."""
    found = re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9.-]*)(?::([0-9]{1,5}))?", manager)
    port = int(found[2] or PORT) if found else 0
    if found is None or not 0 < port < 65_536:
        raise InputError(
            f"the manager's address is {manager!r}; it must be a host name or an IPv4 address,"
            f" followed by :PORT (1 to 65535) unless the port is {PORT}"
        )
    return found[1], port
