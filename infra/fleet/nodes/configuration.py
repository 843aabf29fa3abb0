"""The HTCondor configuration of a fleet's nodes, as text; it holds no secret.

What a node's slot ad says besides HTCondor's own attributes:

    HAS_GPU, SLOT1_HAS_GPU         there are GPUs for jobs, and all of them have passed the probe
    TrialfleetFleet                the fleet's name
    TrialfleetInstance             such as i-0123456789abcdef0
    TrialfleetInstanceType, -Zone  such as g5.xlarge, eu-west-1a
    TrialfleetLifecycle            spot or on-demand
    TrialfleetPricePerHour         USD when it was asked for; undefined if unknown
    TrialfleetDriverOption         what became of NVreg_CheckPCIConfigSpace: "set", "already 0",
                                   "still 1: reboot needed", "driver no longer checks", "no driver"
    TrialfleetNote                 why it takes no more jobs; "" while it does
    TrialfleetTrialsPerGpu         so many trials share each GPU: it counts as so many in GPUs, too
    TrialfleetBandwidthPerDollar   GB/s of all GPUs that trials get, per USD and hour; 0 if price
                                   or bandwidth is unknown
    TrialfleetGpu…, -SickGpus,     the probe's verdict and measurements (nodes/probe)
    -Bandwidth, -LaunchRate …
"""

from __future__ import annotations

import re

from trialfleet.errors import InputError
from trialfleet.infra.fleet.spec.fleet import Fleet
from trialfleet.infra.pool.joining import PORT, TRUST_DOMAIN
from trialfleet.render import render_template

HOME = "/opt/trialfleet"
TOKENS = "/etc/condor/tokens.d"
PROBE_SECONDS = 900
ATTRIBUTES = (
    "TrialfleetFleet",
    "TrialfleetInstance",
    "TrialfleetInstanceType",
    "TrialfleetZone",
    "TrialfleetLifecycle",
    "TrialfleetPricePerHour",
    "TrialfleetDriverOption",
    "TrialfleetTrialsPerGpu",
    "TrialfleetBandwidthPerDollar",
    "TrialfleetNote",
)


def render(fleet: Fleet, manager: str) -> str:
    """Return the configuration that all nodes of a fleet share.

    Args:
        fleet: whose name the nodes advertise, and how it shares and judges GPUs.
        manager: HOST or HOST:PORT of the central manager, as nodes reach it.

    Raises:
        InputError: the manager's address is none.
    """
    host, port = split(manager)
    return render_template(
        "condor/node.conf.j2",
        fleet=fleet.called,
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
    """Return host and port of the manager's address; the port is HTCondor's where none is given."""
    found = re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9.-]*)(?::([0-9]{1,5}))?", manager)
    port = int(found[2] or PORT) if found else 0
    if found is None or not 0 < port < 65_536:
        raise InputError(
            f"the manager's address must be a host name or an IPv4 address, with :PORT (1 to 65535)"
            f" where it isn't {PORT}, not {manager!r}"
        )
    return found[1], port
