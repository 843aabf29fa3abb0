"""The HTCondor configuration of a fleet's nodes, as a text without secrets."""

from __future__ import annotations

from trialfleet.attributes import INSTANCE
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.infra.pool.joining import PORT, TRUST_DOMAIN
from trialfleet.render import render_template

HOME = "/opt/trialfleet"
TOKENS = "/etc/condor/tokens.d"
PROBE_SECONDS = 900
ATTRIBUTES = tuple(attribute.name for attribute in INSTANCE)


def render(fleet: Fleet, manager: str) -> str:
    """Return the nodes' configuration. `manager` is HOST:PORT of the central manager."""
    host, _, port = manager.partition(":")
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
