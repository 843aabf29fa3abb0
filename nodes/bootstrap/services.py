"""Writes systemd's unit for the node's agent, and an addition to HTCondor's unit.

The addition makes systemd run `metadata_fence.py`, which keeps jobs from the instance's metadata,
before HTCondor. If `metadata_fence.py` fails, HTCondor doesn't start.
"""

from __future__ import annotations

import sys

from trialfleet.nodes.bootstrap import metadata_fence
from trialfleet.nodes.bootstrap.host import HOME, Host

UNITS = "/etc/systemd/system"
CONDOR = "condor.service"
AGENT = "trialfleet-agent.service"
FENCE = f"{UNITS}/{CONDOR}.d/trialfleet.conf"  # the addition to HTCondor's unit

_AGENT = """\
[Unit]
Description=trialfleet: watches spot notices, the lease, and what the node is used for
After={condor}

[Service]
Environment=PYTHONPATH={home}/lib
ExecStart={python} -m trialfleet.nodes.node_agent
Restart=always
RestartSec=5
StandardOutput=journal+console
"""

# `+`: run with full privileges, although HTCondor's unit may have restrictions.
_FENCE = """\
[Service]
ExecStartPre=+/usr/bin/env PYTHONPATH={home}/lib {python} -m {fence}
"""


def write(host: Host) -> str:
    """Write the agent's unit and the addition to HTCondor's unit, and return their names.

    systemd doesn't start the agent at boot. The bootstrap starts it, before HTCondor.
    """
    fill = {
        "home": host.place(HOME),
        "python": sys.executable,
        "condor": CONDOR,
        "fence": metadata_fence.__name__,
    }
    for file, text in ((f"{UNITS}/{AGENT}", _AGENT), (FENCE, _FENCE)):
        host.write(file, text.format(**fill))
    # Also if the files existed: an earlier bootstrap may have been killed before systemd read them.
    host.run("systemctl", "daemon-reload")
    return f"{AGENT}, {FENCE}"
