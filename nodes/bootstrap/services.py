"""systemd's part: the bootstrap again after a reboot, the agent while the node is up, a fence."""

from __future__ import annotations

import sys

from trialfleet.nodes.bootstrap.machine import HOME, Machine

UNITS = "/etc/systemd/system"
CONDOR = "condor.service"
BOOTSTRAP = "trialfleet-bootstrap.service"
AGENT = "trialfleet-agent.service"
FENCE = f"{UNITS}/{CONDOR}.d/trialfleet.conf"

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

# The metadata hand out the keys of the node's role, which read the pool's token. Their hop limit
# keeps containers from them, not jobs. By user rather than by unit: not everywhere do HTCondor's
# jobs run in the unit's cgroup. Without `ip`, HTCondor starts all the same.
NOBODY = 65_534  # the account of jobs
KEEP_OUT = (
    "ip rule del pref 169 2>/dev/null; "
    f"ip rule add pref 169 uidrange {NOBODY}-{NOBODY} to 169.254.169.254 prohibit"
)
_FENCE = f"""\
[Service]
ExecStartPre=-/bin/sh -c '{KEEP_OUT}'
"""


def write(machine: Machine) -> None:
    """Make systemd know both services and the fence; the bootstrap alone starts at a boot."""
    fill = {"home": machine.place(HOME), "python": sys.executable, "condor": CONDOR}
    changed = [
        machine.write(f"{UNITS}/{name}", text.format(**fill))
        for name, text in ((BOOTSTRAP, _BOOTSTRAP), (AGENT, _AGENT))
    ]
    changed.append(machine.write(FENCE, _FENCE))
    if any(changed):
        machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "enable", BOOTSTRAP)


def runs(machine: Machine, unit: str) -> bool:
    """Say whether a service is up."""
    return machine.ask("systemctl", "is-active", "--quiet", unit) is not None
