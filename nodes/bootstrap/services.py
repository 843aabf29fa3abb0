"""systemd's part: the bootstrap again after a reboot, the agent while the node is up."""

from __future__ import annotations

import sys

from trialfleet.nodes.bootstrap.machine import HOME, Machine

UNITS = "/etc/systemd/system"
CONDOR = "condor.service"
BOOTSTRAP = "trialfleet-bootstrap.service"
AGENT = "trialfleet-agent.service"

_BOOTSTRAP = """\
[Unit]
Description=trialfleet: makes this machine a node of its pool
Wants=network-online.target
After=network-online.target

[Service]
Type=oneshot
Environment=PYTHONPATH={home}/lib
ExecStart={python} -m trialfleet.nodes.bootstrap
StandardOutput=journal+console

[Install]
WantedBy=multi-user.target
"""

_AGENT = """\
[Unit]
Description=trialfleet: watches spot notices, the lease, and what the node is used for
After={condor}

[Service]
Environment=PYTHONPATH={home}/lib
ExecStart={python} -m trialfleet.nodes.agent
Restart=always
RestartSec=5
StandardOutput=journal+console
"""


def write(machine: Machine) -> None:
    """Make systemd know both services; only the bootstrap starts by itself at a boot."""
    fill = {"home": machine.place(HOME), "python": sys.executable, "condor": CONDOR}
    changed = [
        machine.write(f"{UNITS}/{name}", text.format(**fill))
        for name, text in ((BOOTSTRAP, _BOOTSTRAP), (AGENT, _AGENT))
    ]
    if any(changed):
        machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "enable", BOOTSTRAP)


def runs(machine: Machine, unit: str) -> bool:
    """Say whether a service is up."""
    return machine.ask("systemctl", "is-active", "--quiet", unit) is not None
